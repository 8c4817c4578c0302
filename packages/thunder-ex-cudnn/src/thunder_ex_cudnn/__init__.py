# SPDX-License-Identifier: Apache-2.0
"""Attention and normalization with NVIDIA's cuDNN, as a plugin of thunder. Installing this wheel enables it."""

__version__ = "0.1.0"
