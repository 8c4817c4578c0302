# SPDX-License-Identifier: Apache-2.0
"""Replacements of `int`, `math.sqrt`, `max` and similar builtins that accept data-dependent values.

Python requires that `int()` returns a real int. A program that calls it on a data-dependent value is therefore traced a
second time. In this second trace, classes of the same names replace the builtins, and other functions replace those of
`math` (`core/symint/functions.py`). The replacements return a data-dependent number (`scalars.py`), which user code may
compute with, store and return. A branch on this number raises an error. For other arguments, and for code that is not
traced, the replacements behave like the originals.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from thunder.capture.numbers.overrides import BUILTINS
from thunder.capture.tensors.arrays import is_array_handle
from thunder.capture.tensors.tracer import Tracer
from thunder.core.state import state
from thunder.core.symint.functions import FUNCTIONS, made_complex
from thunder.core.symint.numbers import SymbolicNumber, converted, is_unbacked

__all__ = [
    "CONVERSIONS",
    "functions_replaced",
]


class _Conversion(type):
    """The metaclass of the classes that replace `int`, `float`, `bool` and `complex`."""

    plain: type

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.plain is complex and not kwargs and is_unbacked(*args):
            return made_complex(*args)
        x: Any = args[0] if len(args) == 1 and not kwargs else None
        x = x._thunder_tensor if is_array_handle(x) else x
        if not isinstance(x, (torch.Tensor, SymbolicNumber)) or not isinstance(state.frontend, Tracer):
            return cls.plain(*args, **kwargs)
        if isinstance(x, torch.Tensor):
            if cls.plain is bool and x.dtype is not torch.bool:
                x = torch.ne(x, 0)
            elif cls.plain is int and x.dtype is torch.bool:
                x = x.to(torch.int64)
            x = x.item()
        if not isinstance(x, SymbolicNumber):
            return cls.plain(x)
        if cls.plain is complex:
            return made_complex(x)
        if x.__class__ is complex:
            return cls.plain(x)
        if cls.plain is x.__class__ is float:
            return x
        if x.hint is not None or (cls.plain is bool and x.__class__ is not bool):
            return cls.plain(x)
        return x + 0 if cls.plain is int and x.__class__ is bool else converted(x, cls.plain)

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, cls.plain)

    def __subclasscheck__(cls, x: Any) -> bool:
        return issubclass(getattr(x, "plain", x), cls.plain)

    def __eq__(cls, other: object) -> bool:
        return getattr(other, "plain", other) is cls.plain

    def __hash__(cls) -> int:
        return hash(cls.plain)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.plain, name)

    def __repr__(cls) -> str:
        return repr(cls.plain)


CONVERSIONS: dict[str, Any] = {
    kind.__name__: _Conversion(kind.__name__, (), {"plain": kind}) for kind in (int, float, bool, complex)
}
BUILTINS.update(CONVERSIONS)


def functions_replaced() -> list[tuple[Any, str, Any]]:
    """Return replacements for the functions of `math`, to set in the module itself because user code imports it."""
    return [(math, name, fn) for name, fn in FUNCTIONS["math"].items()]
