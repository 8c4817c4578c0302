# SPDX-License-Identifier: Apache-2.0
"""Executors for thunder whose kernels are written in Triton."""

__version__ = "0.1.0"
