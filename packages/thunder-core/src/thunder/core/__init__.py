# SPDX-License-Identifier: Apache-2.0
"""The core: leaf types, the representation of programs, and the primitives. Modules are loaded on first access."""

from __future__ import annotations

import importlib
from types import ModuleType

# Modules from which operators, executors and passes outside of thunder import.
__all__ = ["devices", "dtypes", "prims", "proxies", "pytree", "symbol", "trace", "transforms", "utils"]


def __getattr__(name: str) -> ModuleType:
    module = f"{__name__}.{name}"
    if not name.startswith("_"):
        try:
            # Imported at run time on purpose: a program that uses one module does not wait for the others.
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
