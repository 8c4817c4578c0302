# SPDX-License-Identifier: Apache-2.0
"""A fusion executor for thunder that uses nvFuser."""

__version__ = "0.1.0"
