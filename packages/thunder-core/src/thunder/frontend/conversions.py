# SPDX-License-Identifier: Apache-2.0
"""`int(t)`, `float(t)` and `bool(t)` of a tensor whose value only running tells.

Python itself insists that `int()` gives an int, so a program that asks for one is traced once more, with classes of the
same names in the place of the built-in ones. These give a number that only running tells (`unknown.py`), which may be
computed with, stored and returned; where it decides what the program does, that is an error. For everything else, and
for everybody but the program that is traced, they are what they stand for.
"""

from __future__ import annotations

from typing import Any

import torch

from thunder.core.errors import TracingError
from thunder.core.numbers import SymbolicNumber, converted
from thunder.core.state import state
from thunder.frontend.packing import known_number
from thunder.frontend.tracer import Tracer
from thunder.frontend.unknown import asks_for_value

__all__ = ["CONVERSIONS", "AsksForNumber", "convert_natively"]


class AsksForNumber(TracingError):
    """The program converts a tensor to a number."""


def convert_natively(what: str, tracer: Tracer, x: Any) -> Any:
    """What Python's own conversion of a tensor comes to."""
    number = known_number(tracer, x)
    if number is not None and what == "int()":
        return int(number)
    raise AsksForNumber(*asks_for_value(what).args)


class _Conversion(type):
    """The classes that stand for `int`, `float` and `bool`."""

    plain: type

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        x = args[0] if len(args) == 1 and not kwargs else None
        if not isinstance(x, (torch.Tensor, SymbolicNumber)) or not isinstance(state.frontend, Tracer):
            return cls.plain(*args, **kwargs)
        if isinstance(x, torch.Tensor):
            if cls.plain is bool and x.dtype is not torch.bool:
                x = torch.ne(x, 0)
            elif cls.plain is int and x.dtype is torch.bool:
                x = x.to(torch.int64)
            x = x.item()
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
    kind.__name__: _Conversion(kind.__name__, (), {"plain": kind}) for kind in (int, float, bool)
}
