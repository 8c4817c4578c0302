# SPDX-License-Identifier: Apache-2.0
"""Passes and transforms, one a file: a pass makes a trace of a trace; a transform is an object with hooks."""

from __future__ import annotations

import importlib
from typing import Any

# name -> module that has it
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
    "Transform": "base",
    "autocast": "autocasting",
    "debug": "debugging",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(_HOMES)}")
    value = getattr(importlib.import_module(f"thunder.transforms.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
