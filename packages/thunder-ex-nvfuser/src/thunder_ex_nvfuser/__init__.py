# SPDX-License-Identifier: Apache-2.0
"""A fusion executor for thunder on nvFuser."""

__version__ = "0.1.0"
