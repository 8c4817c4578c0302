# SPDX-License-Identifier: Apache-2.0
"""The exception that ends an attempt to make one kernel of operations."""

from __future__ import annotations

__all__ = ["Unfit"]


class Unfit(Exception):
    """Raised with the reason why operations cannot form one kernel."""
