# SPDX-License-Identifier: Apache-2.0
"""Formatting of values in the messages of failed guards."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["format_message", "format_value"]


def format_message(parts: Sequence[Any]) -> str:
    """Join alternating texts and values to a sentence, e.g. `["the value of n was", 2, "and is", 3]`."""
    return " ".join([str(part) if i % 2 == 0 else format_value(part) for i, part in enumerate(parts)])


def format_value(x: Any) -> str:
    """Format a value for a message, without running user code."""
    if isinstance(x, type):
        return f"the class {x.__qualname__}"
    if isinstance(x, types.FunctionType):
        return f"the function {x.__qualname__} ({_line(x.__code__)})"
    if isinstance(x, (types.BuiltinFunctionType, types.MethodDescriptorType)):
        return f"the function {x.__name__}"
    if isinstance(x, types.CodeType):
        return f"the code at {_line(x)}"
    if isinstance(x, types.ModuleType):
        return f"the module {x.__name__}"
    if _is_simple(x):
        text = repr(x)
        return text if len(text) <= 120 else f"{text[:117]}..."
    if type(x) in _CONTAINERS:
        return f"a {type(x).__qualname__} of {len(x)} {'item' if len(x) == 1 else 'items'}"
    return f"a {type(x).__qualname__}"


def _line(code: types.CodeType) -> str:
    return f"{code.co_filename}:{code.co_firstlineno}"


_CONTAINERS = (list, tuple, set, frozenset, deque, dict)
_SIMPLE = (bool, int, float, complex, str, bytes, slice, range, type(None), torch.dtype, torch.device, torch.layout,
           torch.memory_format, torch.Size)  # fmt: skip


def _is_simple(x: Any, depth: int = 3) -> bool:
    if type(x) in _CONTAINERS and type(x) is not dict:
        return len(x) <= 100 and depth > 0 and all(_is_simple(i, depth - 1) for i in x)
    if type(x) is dict:
        return _is_simple([*x.keys(), *x.values()], depth)
    return type(x) in _SIMPLE
