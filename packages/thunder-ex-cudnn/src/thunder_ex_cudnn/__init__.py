# SPDX-License-Identifier: Apache-2.0
"""Attention and normalization by NVIDIA's cuDNN, for thunder. Installing this wheel is enough."""

__version__ = "0.1.0"
