# SPDX-License-Identifier: Apache-2.0
"""Passes (functions from trace to trace) and transforms (objects with hooks), one per file."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# name -> module that defines it
_HOMES = {
    "AutocastTransform": "autocasting",
    "CUDAGraphTransform": "cuda_graphs",
    "ConstantFoldingTransform": "folding",
    "DebugTransform": "debugging",
    "LoRATransform": "lora",
    "MaterializationTransform": "materialization",
    "PassContext": "base",
    "Pattern": "patterns",
    "ProfileTransform": "profiling",
    "QuantizationTransform": "quantization",
    "RewritePass": "rewrite",
    "Transform": "base",
    "autocast": "autocasting",
    "debug": "debugging",
}

__all__ = [
    "AutocastTransform",
    "CUDAGraphTransform",
    "ConstantFoldingTransform",
    "DebugTransform",
    "LoRATransform",
    "MaterializationTransform",
    "PassContext",
    "Pattern",
    "ProfileTransform",
    "QuantizationTransform",
    "RewritePass",
    "Transform",
    "autocast",
    "debug",
]

# Imports for type checkers, which do not run `__getattr__`.
if TYPE_CHECKING:
    from thunder.transforms.autocasting import AutocastTransform, autocast
    from thunder.transforms.base import PassContext, Transform
    from thunder.transforms.cuda_graphs import CUDAGraphTransform
    from thunder.transforms.debugging import DebugTransform, debug
    from thunder.transforms.folding import ConstantFoldingTransform
    from thunder.transforms.lora import LoRATransform
    from thunder.transforms.materialization import MaterializationTransform
    from thunder.transforms.patterns import Pattern
    from thunder.transforms.profiling import ProfileTransform
    from thunder.transforms.quantization import QuantizationTransform
    from thunder.transforms.rewrite import RewritePass
else:

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(_HOMES)}")
        # Import on access, so that a program that uses one transform does not load the others.
        value = getattr(importlib.import_module(f"thunder.transforms.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
