# SPDX-License-Identifier: Apache-2.0
"""The built-in executors. Accessing a name loads its module, which registers all built-in executors.

The text of a compiled program imports `thunder.executors.torchex`. This import must not load operations that the
program never uses.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thunder.executors.built_in import FLEX_ATTENTION, PYTHON, TORCH, TORCH_COMPILE, add_operator_executor

__all__ = ["FLEX_ATTENTION", "PYTHON", "TORCH", "TORCH_COMPILE", "add_operator_executor"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        # The import is local: compiled programs import this package, but use few of the operations.
        value = getattr(importlib.import_module("thunder.executors.built_in"), name)
    else:
        try:
            value = importlib.import_module(f"{__name__}.{name}")  # `thunder.executors.torchex`, after `import thunder`
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    globals()[name] = value
    return value
