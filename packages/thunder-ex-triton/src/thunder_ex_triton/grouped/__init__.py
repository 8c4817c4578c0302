# SPDX-License-Identifier: Apache-2.0
"""Convolutions with several channels in each group, and their gradients."""
