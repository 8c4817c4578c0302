# SPDX-License-Identifier: Apache-2.0
"""The replacement of the built-in `type` in programs: it returns the class that a value has in eager mode.

`type(x)` does not use `x.__class__`, so it would return the class of a handle or of a symbolic number. The replacement
is set in the globals of code that names `type`. It is a class, so that `isinstance(x, type)` and metaclasses work.
"""

from __future__ import annotations

from typing import Any

from thunder.capture.numbers.overrides import ANSWERS, DISGUISED
from thunder.core.state import state
from thunder.core.symint.numbers import SymbolicNumber

__all__ = ["TypeOf"]


class _LikeType(type):
    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, type) if cls is TypeOf else type.__instancecheck__(cls, x)

    def __subclasscheck__(cls, x: Any) -> bool:
        return issubclass(x, type) if cls is TypeOf else type.__subclasscheck__(cls, x)

    def __eq__(cls, other: object) -> bool:
        return other is cls or (cls is TypeOf and other is type)

    def __hash__(cls) -> int:
        return hash(type) if cls is TypeOf else type.__hash__(cls)

    def __repr__(cls) -> str:
        return repr(type) if cls is TypeOf else type.__repr__(cls)


class TypeOf(type, metaclass=_LikeType):
    """`type`, which returns the classes that handles and symbolic numbers stand for."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Compute `type(x)` and `type(name, bases, namespace)`."""
        if cls is not TypeOf:  # a metaclass that the program defines
            return type.__new__(cls, *args, **kwargs)
        if len(args) == 1 and not kwargs:
            (x,) = args
            found = x.__class__ if type(x) in DISGUISED or isinstance(x, SymbolicNumber) else type(x)
            return TypeOf if found is type or found is _LikeType else _as_the_program_sees(found)
        return type(*args, **kwargs)

    def __init__(cls, *args: Any, **kwargs: Any) -> None:
        pass


def _as_the_program_sees(kind: type) -> Any:
    """Return the replacement of a built-in type in this program, or the type itself."""
    if kind in (int, float, bool, complex):
        symbolic = getattr(state.frontend, "symbolic", None)
        return kind if symbolic is None else symbolic.stands_for(kind.__name__) or kind
    return kind


ANSWERS[id(type)] = TypeOf
