# SPDX-License-Identifier: Apache-2.0
"""An executor for thunder that multiplies with NumPy: `pip install` it, and `thunder.jit` uses it."""

__version__ = "0.1.0"
