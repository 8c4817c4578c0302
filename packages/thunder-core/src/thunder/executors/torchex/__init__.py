# SPDX-License-Identifier: Apache-2.0
"""The torch executor, and the functions with which contributors extend it.

The text of a compiled program imports `no_autocast` from here. All other names are loaded on access, so that running a
program loads neither the operations nor the tracer.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from thunder.runtime.autocast import no_autocast
from thunder.runtime.names import torch_kernel

if TYPE_CHECKING:
    from thunder.executors.torchex.families import (
        _always_executable,
        _register_implementation,
        _register_torch_operation,
        ex,
        to_torch_device,
        to_torch_dtype,
        torch_impl,
    )

__all__ = [
    "_always_executable",
    "_register_implementation",
    "_register_torch_operation",
    "ex",
    "no_autocast",
    "to_torch_device",
    "to_torch_dtype",
    "torch_impl",
]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in __all__:
        # The import is local: the text of a program needs no operations, only kernels.
        value = getattr(importlib.import_module("thunder.executors.torchex.families"), name)
    else:
        try:
            value = torch_kernel(name)
        except KeyError:
            raise AttributeError(f"the torch executor has no operation called {name!r}") from None
    globals()[name] = value
    return value
