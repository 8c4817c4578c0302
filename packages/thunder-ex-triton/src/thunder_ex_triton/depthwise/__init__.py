# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolutions and their gradients."""
