# SPDX-License-Identifier: Apache-2.0
"""Truth values and complex numbers of a program's, and functions of Python's that are given numbers it computes.

`math.sqrt(n)`, `max(n, 1)` and `n > 2` of numbers that only running tells are numbers that only running tells.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from types import GeneratorType
from typing import Any

import torch

from thunder.core.errors import DataDependentError
from thunder.core.state import state
from thunder.core.symint import numbers
from thunder.core.symint.expressions import APPLY, Expression
from thunder.core.symint.numbers import Constraint, Poly, SymbolicNumber, is_unbacked
from thunder.core.symint.scalars import (
    SymbolicFloat,
    SymbolicInt,
    _Arithmetic,
    _is_int,
    _one_of_two,
    _plain,
)
from thunder.core.symint.table import SymbolTable

__all__ = ["FUNCTIONS", "DeferredBool", "SymbolicBool", "SymbolicComplex", "made_complex"]


class SymbolicBool(SymbolicInt):
    """A truth value that only running tells: 0 or 1 where the program computes with it."""

    __class__ = property(lambda self: bool)

    @property
    def constraint(self) -> Constraint:
        """That it is true."""
        return Constraint(self, "==", True)


class DeferredBool(SymbolicBool):
    """The answer to a comparison of data-dependent numbers, which `torch._check` may be given to rely on."""

    def __init__(self, symbols: SymbolTable, poly: Poly, constraint: Constraint):
        super().__init__(symbols, poly, None)
        self._constraint = constraint

    @property
    def constraint(self) -> Constraint:
        return self._constraint

    def __bool__(self) -> bool:
        raise self.symbols.is_unbacked(self._constraint)


def _of_truths(kind: str, fn: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    def apply(self: Any, a: Any, b: Any) -> Any:
        if not (_is_int(a) and _is_int(b)):
            return NotImplemented
        if not is_unbacked(a, b):
            return fn(int(a), int(b))
        symbols = self.symbols
        if a.__class__ is bool and b.__class__ is bool:
            return symbols.truth(kind, (a, b))
        return symbols.operation(kind, (a, b), None)

    return lambda self, other: apply(self, self, other), lambda self, other: apply(self, other, self)


for _name, _kind, _fn in (("and", "&", operator.and_), ("or", "|", operator.or_), ("xor", "^", operator.xor)):
    _forward, _backward = _of_truths(_kind, _fn)
    setattr(SymbolicInt, f"__{_name}__", _forward)
    setattr(SymbolicInt, f"__r{_name}__", _backward)


# -- complex numbers --------------------------------------------------------------------------------------------------
class SymbolicComplex(Expression, _Arithmetic):
    """A complex number that only running tells."""

    __class__ = property(lambda self: complex)

    def __neg__(self) -> Any:
        return _complex("neg", self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return SymbolicFloat(self.symbols, "abs", (self,), None)

    def conjugate(self) -> Any:
        return _complex(".conjugate()", self)

    real = property(lambda self: SymbolicFloat(self.symbols, ".real", (self,), None))
    imag = property(lambda self: SymbolicFloat(self.symbols, ".imag", (self,), None))

    def __int__(self) -> int:
        raise TypeError("int() argument must be a string, a bytes-like object or a real number, not 'complex'")

    def __float__(self) -> float:
        raise TypeError("float() argument must be a string or a real number, not 'complex'")

    def __eq__(self, other: object) -> Any:
        return self.symbols.deferred(self, "==", other) if _is_number(other) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return self.symbols.deferred(self, "!=", other) if _is_number(other) else NotImplemented

    __hash__ = _Arithmetic.__hash__


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float, complex))


def _complex(kind: str, *operands: Any) -> Any:
    symbols = next(x.symbols for x in operands if isinstance(x, SymbolicNumber))  # type: ignore[attr-defined]
    return SymbolicComplex(symbols, kind, operands, None)


def made_complex(real: Any, imag: Any = None) -> Any:
    """Compute `complex(real, imag)`, of which one is symbolic."""
    if imag is None:
        return real if real.__class__ is complex else _complex("complex", real)
    return _complex("complex", real, imag)


def _complex_operation(kind: str, a: Any, b: Any, symbols: SymbolTable) -> Any:
    return SymbolicComplex(symbols, kind, (a, b), None) if _is_number(a) and _is_number(b) else NotImplemented


def _with_tensor(method: str, tensor: torch.Tensor, number: Any) -> Any:
    """Return an operator of a tensor's: torch itself knows no such number, and leaves the operation to it."""
    handle: Any = state.frontend.handle_of(tensor)  # type: ignore[union-attr]
    return type(handle).__torch_function__(getattr(torch.Tensor, method), (), (handle, number))


def _complex_operator(name: str, kind: str) -> tuple[Any, Any]:
    def forward(self: Any, other: Any) -> Any:
        if isinstance(other, torch.Tensor):
            return _with_tensor(f"__r{name}__", other, self)
        return _complex_operation(kind, self, _plain(other), self.symbols)

    def backward(self: Any, other: Any) -> Any:
        if isinstance(other, torch.Tensor):
            return _with_tensor(f"__{name}__", other, self)
        return _complex_operation(kind, _plain(other), self, self.symbols)

    return forward, backward


for _name, _kind in (("add", "+"), ("sub", "-"), ("mul", "*"), ("truediv", "/"), ("pow", "**")):
    _forward, _backward = _complex_operator(_name, _kind)
    setattr(SymbolicComplex, f"__{_name}__", _forward)
    setattr(SymbolicComplex, f"__r{_name}__", _backward)
APPLY["complex operation"] = _complex_operation
APPLY["complex"] = lambda *xs: made_complex(*xs) if any(isinstance(x, SymbolicNumber) for x in xs) else complex(*xs)


# -- functions --------------------------------------------------------------------------------------------------------
def _traced(kind: str, fn: Callable[..., Any], gives: type) -> Callable[..., Any]:
    """Return a function that gives another number of the program where it is given one that only running tells."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if state.frontend is not None:
            args = tuple([x.item() if isinstance(x, torch.Tensor) else x for x in args])
        symbols: Any = next((x.symbols for x in args if is_unbacked(x)), None)
        if symbols is None or kwargs or symbols.is_elsewhere or not all(map(_is_number, args)):
            return fn(*args, **kwargs)
        if gives is float:
            return SymbolicFloat(symbols, kind, args, None)
        return symbols.truth(kind, args) if gives is bool else symbols.operation(kind, args, None)

    return call


def _largest_or_smallest(kind: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = args
        if len(args) == 1 and isinstance(args[0], GeneratorType):
            args = (tuple(args[0]),)
        if len(args) == 1 and type(args[0]) in (tuple, list):
            given = tuple(args[0])
        if len(given) < 2 or kwargs or not is_unbacked(*given) or not all(map(_is_number, given)):
            return fn(*args, **kwargs)
        return functools.reduce(functools.partial(_one, kind), given)

    return call


def _one(kind: str, a: Any, b: Any) -> Any:
    if not is_unbacked(a, b):
        return (max if kind == "max" else min)(a, b)
    known: Any = a if isinstance(a, SymbolicNumber) else b
    if _is_int(a) and _is_int(b):
        return _one_of_two(kind, known.symbols, a, b)
    if a.__class__ is b.__class__ is float:
        return SymbolicFloat(known.symbols, kind, (a, b), None)
    raise DataDependentError(
        f"the program asks for the {kind} of an integer and a float, {numbers.text_of(a)} and {numbers.text_of(b)}, of "
        "which only running tells which it is: write both as floats, or both as integers"
    )


_FLOATS = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "copysign", "cos", "cosh", "degrees", "erf",
    "erfc", "exp", "exp2", "expm1", "fabs", "fmod", "gamma", "hypot", "ldexp", "lgamma", "log", "log10", "log1p",
    "log2", "nextafter", "pow", "radians", "remainder", "sin", "sinh", "sqrt", "tan", "tanh", "ulp",
)  # fmt: skip
_INTEGERS = ("comb", "factorial", "gcd", "isqrt", "lcm", "perm")
_TRUTHS = ("isfinite", "isinf", "isnan")

# What takes the place of functions of Python's in a program that computes with numbers that only running tells.
FUNCTIONS: dict[str, dict[str, Callable[..., Any]]] = {
    "math": {
        name: _traced(f"math.{name}", getattr(math, name), kind)
        for kind, names in ((float, _FLOATS), (int, _INTEGERS), (bool, _TRUTHS))
        for name in names
        if hasattr(math, name)  # some are new
    },
    "builtins": {name: _largest_or_smallest(name, fn) for name, fn in (("max", max), ("min", min))},
}


def _apply_extreme(kind: str) -> Callable[[Any, Any], Any]:
    integers = torch.sym_max if kind == "max" else torch.sym_min
    return lambda a, b: integers(a, b) if _is_int(a) and _is_int(b) else _one(kind, a, b)


APPLY.update({f"math.{name}": fn for name, fn in FUNCTIONS["math"].items()})
APPLY.update({"math.floor": math.floor, "math.ceil": math.ceil, "math.trunc": math.trunc})
APPLY.update({kind: _apply_extreme(kind) for kind in ("max", "min")})
APPLY["float.is_integer"] = lambda x: x.is_integer()
APPLY["int.bit_length"] = lambda x: x.bit_length()
