# SPDX-License-Identifier: Apache-2.0
"""fp8 training for thunder, by NVIDIA's TransformerEngine."""

__version__ = "0.1.0"
