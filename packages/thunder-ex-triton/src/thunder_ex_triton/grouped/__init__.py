# SPDX-License-Identifier: Apache-2.0
"""Convolutions as products: those with several channels in a group, or with few channels, and their gradients."""
