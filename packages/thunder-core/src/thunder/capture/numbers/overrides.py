# SPDX-License-Identifier: Apache-2.0
"""Replacements of Python's built-in functions in programs with data-dependent numbers.

The replacements for `math`, `max` and similar functions are in `core/symint/functions.py`. The conversions `int`,
`float` and `bool` also accept tensors. `dispatch/builtin_overrides.py` registers them.
"""

from __future__ import annotations

import math
from typing import Any

from thunder.core.symint.functions import FUNCTIONS

__all__ = ["ANSWERS", "BUILTINS", "DISGUISED", "override_of"]

# Replacements of built-ins, by name.
BUILTINS: dict[str, Any] = dict(FUNCTIONS["builtins"])

# Replacements of built-ins and of functions of torch that are needed in all programs, by the ids of the originals.
ANSWERS: dict[int, Any] = {}
# Classes whose instances stand for values of other classes, which `x.__class__` returns.
DISGUISED: set[type] = set()

_OVERRIDES = {id(getattr(math, name)): fn for name, fn in FUNCTIONS["math"].items()}


def override_of(x: Any) -> Any:
    """Return the replacement of a function of `math`, whatever its name in the program; None for other values."""
    return _OVERRIDES.get(id(x))
