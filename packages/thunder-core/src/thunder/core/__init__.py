# SPDX-License-Identifier: Apache-2.0
"""The core: leaf types, the representation of programs, the primitives. A module is loaded when it is asked for."""

from __future__ import annotations

import importlib
from types import ModuleType

# Modules that operators, executors and passes outside of thunder import from.
__all__ = ["devices", "dtypes", "prims", "proxies", "pytree", "symbol", "trace", "transforms", "utils"]


def __getattr__(name: str) -> ModuleType:
    module = f"{__name__}.{name}"
    if not name.startswith("_"):
        try:
            # At run time on purpose: a program that asks for one module does not wait for the others.
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
