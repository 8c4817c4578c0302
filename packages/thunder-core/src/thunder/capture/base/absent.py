# SPDX-License-Identifier: Apache-2.0
"""A marker for a missing value, used where None is a valid value."""

from __future__ import annotations

from typing import Any

__all__ = ["ABSENT"]

ABSENT: Any = object()
