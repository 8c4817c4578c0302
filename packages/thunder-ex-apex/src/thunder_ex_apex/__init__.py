# SPDX-License-Identifier: Apache-2.0
"""Executors for thunder that run the CUDA extensions of NVIDIA's apex."""

__version__ = "0.1.0"
