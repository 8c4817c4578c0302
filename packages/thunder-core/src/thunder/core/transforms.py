# SPDX-License-Identifier: Apache-2.0
"""The documented names of `thunder.core.transforms`, loaded lazily from the modules that define them."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "get_grad": "thunder.core.prims",
    "put_grad": "thunder.core.prims",
    "put_grads": "thunder.core.prims",
    "register_grad": "thunder.passes.autodiff",
    "register_jvp": "thunder.passes.forward",
    "register_batch": "thunder.passes.batching",
    "grad": "thunder.frontend.grad",
    "dce": "thunder.passes.dce",
    "cse": "thunder.passes.cse",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Imported by name at run time: higher layers define these names.
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
