# SPDX-License-Identifier: Apache-2.0
"""The marker for what is not there, where None is a value like any other."""

from __future__ import annotations

from typing import Any

__all__ = ["ABSENT"]

ABSENT: Any = object()
