# SPDX-License-Identifier: Apache-2.0
"""Replacements of Python's functions in programs with data-dependent numbers.

Those of `math`, and `max` and the like, are in `core/symint/functions.py`; the conversions (`int`, `float`, `bool`) ask
tensors too, and are registered by `dispatch/builtin_overrides.py`.
"""

from __future__ import annotations

import math
from typing import Any

from thunder.core.symint.functions import FUNCTIONS

__all__ = ["BUILTINS", "override_of"]

# What stands in for a built-in, by name.
BUILTINS: dict[str, Any] = dict(FUNCTIONS["builtins"])

_OVERRIDES = {id(getattr(math, name)): fn for name, fn in FUNCTIONS["math"].items()}


def override_of(x: Any) -> Any:
    """Return what stands in for a function of `math`, under whatever name a program has it; None for anything else."""
    return _OVERRIDES.get(id(x))
