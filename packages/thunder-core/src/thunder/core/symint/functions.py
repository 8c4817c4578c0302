# SPDX-License-Identifier: Apache-2.0
"""Symbolic booleans and complex numbers, and Python's functions on unbacked numbers.

If `n` is unbacked, the results of `math.sqrt(n)`, `max(n, 1)` and `n > 2` are unbacked too.
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
    _extreme_of_integers,
    _is_int,
    _unwrap_symint,
)
from thunder.core.symint.table import SymbolTable

__all__ = ["FUNCTIONS", "DeferredBool", "SymbolicBool", "SymbolicComplex", "made_complex"]


class SymbolicBool(SymbolicInt):
    """An unbacked boolean, which is 0 or 1 in arithmetic."""

    __class__ = property(lambda self: bool)

    @property
    def constraint(self) -> Constraint:
        """The constraint that this boolean is true."""
        return Constraint(self, "==", True)

    def __pos__(self) -> Any:
        return SymbolicInt(self.symbols, self.poly, self.hint)  # arithmetic of booleans returns integers

    __abs__ = __floor__ = __ceil__ = __trunc__ = __sym_int__ = conjugate = __pos__
    real = numerator = property(__pos__)

    def __round__(self, ndigits: Any = None) -> Any:
        return round(+self, ndigits)

    def __bool__(self) -> bool:
        if self.hint is not None:
            return bool(self != 0)
        is_false = self.symbols.known_zero(self.poly)
        return self.symbols.decided(self.constraint) if is_false is None else not is_false


class DeferredBool(SymbolicBool):
    """The result of comparing unbacked numbers. `torch._check` can assume that it is true."""

    def __init__(self, symbols: SymbolTable, poly: Poly, constraint: Constraint):
        super().__init__(symbols, poly, None)
        self._constraint = constraint

    @property
    def constraint(self) -> Constraint:
        return self._constraint


def _boolean_operator(kind: str, fn: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    def apply(self: Any, a: Any, b: Any) -> Any:
        if not (_is_int(a) and _is_int(b)):
            return NotImplemented
        if not is_unbacked(a, b):
            return fn(int(a), int(b))
        symbols = self.symbols
        if a.__class__ is bool and b.__class__ is bool:
            return symbols.boolean(kind, (a, b))
        return symbols.operation(kind, (a, b), None)

    return lambda self, other: apply(self, self, other), lambda self, other: apply(self, other, self)


for _name, _kind, _fn in (("and", "&", operator.and_), ("or", "|", operator.or_), ("xor", "^", operator.xor)):
    _forward, _backward = _boolean_operator(_kind, _fn)
    setattr(SymbolicInt, f"__{_name}__", _forward)
    setattr(SymbolicInt, f"__r{_name}__", _backward)


# -- complex numbers --------------------------------------------------------------------------------------------------
class SymbolicComplex(Expression, _Arithmetic):
    """An unbacked complex number."""

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
    """Compute `complex(real, imag)`, where at least one argument may be symbolic."""
    if imag is None:
        return real if real.__class__ is complex else _complex("complex", real)
    return _complex("complex", real, imag)


def _complex_operation(kind: str, a: Any, b: Any, symbols: SymbolTable) -> Any:
    return SymbolicComplex(symbols, kind, (a, b), None) if _is_number(a) and _is_number(b) else NotImplemented


def _with_tensor(method: str, tensor: torch.Tensor, number: Any) -> Any:
    """Compute an operator of a tensor and a symbolic complex number.

    torch does not accept symbolic complex numbers, so Python calls the operator method of the number instead.
    """
    handle: Any = state.frontend.handle_of(tensor)  # type: ignore[union-attr]
    return type(handle).__torch_function__(getattr(torch.Tensor, method), (), (handle, number))


def _complex_operator(name: str, kind: str) -> tuple[Any, Any]:
    def forward(self: Any, other: Any) -> Any:
        if isinstance(other, torch.Tensor):
            return _with_tensor(f"__r{name}__", other, self)
        return _complex_operation(kind, self, _unwrap_symint(other), self.symbols)

    def backward(self: Any, other: Any) -> Any:
        if isinstance(other, torch.Tensor):
            return _with_tensor(f"__{name}__", other, self)
        return _complex_operation(kind, _unwrap_symint(other), self, self.symbols)

    return forward, backward


for _name, _kind in (("add", "+"), ("sub", "-"), ("mul", "*"), ("truediv", "/"), ("pow", "**")):
    _forward, _backward = _complex_operator(_name, _kind)
    setattr(SymbolicComplex, f"__{_name}__", _forward)
    setattr(SymbolicComplex, f"__r{_name}__", _backward)
APPLY["complex operation"] = _complex_operation
APPLY["complex"] = lambda *xs: made_complex(*xs) if any(isinstance(x, SymbolicNumber) for x in xs) else complex(*xs)


# -- functions --------------------------------------------------------------------------------------------------------
def _traced(kind: str, fn: Callable[..., Any], gives: type) -> Callable[..., Any]:
    """Return a replacement for `fn` that returns a symbolic number if one of its arguments is symbolic.

    Integers and booleans that are computed from backed numbers are constants, because sizes and branches need them.
    """

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if state.frontend is not None:
            args = tuple([x.item() if isinstance(x, torch.Tensor) else x for x in args])
        is_symbolic: Any = is_unbacked if gives is not float else lambda x: isinstance(x, SymbolicNumber)
        symbols: Any = next((x.symbols for x in args if is_symbolic(x)), None)
        if symbols is None or kwargs or symbols.is_foreign_thread or not all(map(_is_number, args)):
            return fn(*args, **kwargs)
        if gives is float:
            hints = [x.hint if isinstance(x, SymbolicNumber) else x for x in args]
            return SymbolicFloat(symbols, kind, args, None if is_unbacked(*args) else fn(*hints))
        return symbols.boolean(kind, args) if gives is bool else symbols.operation(kind, args, None)

    return call


def _traced_extreme(kind: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = args
        if len(args) == 1 and isinstance(args[0], GeneratorType):
            args = (tuple(args[0]),)
        if len(args) == 1 and type(args[0]) in (tuple, list):
            given = tuple(args[0])
        if len(given) < 2 or kwargs or not is_unbacked(*given) or not all(map(_is_number, given)):
            return fn(*args, **kwargs)
        return functools.reduce(functools.partial(_extreme, kind), given)

    return call


def _extreme(kind: str, a: Any, b: Any) -> Any:
    if not is_unbacked(a, b):
        return (max if kind == "max" else min)(a, b)
    known: Any = a if isinstance(a, SymbolicNumber) else b
    if _is_int(a) and _is_int(b):
        return _extreme_of_integers(kind, known.symbols, a, b)
    if a.__class__ is b.__class__ is float:
        return SymbolicFloat(known.symbols, kind, (a, b), None)
    raise DataDependentError(
        f"the {kind} of an integer and a float, {numbers.text_of(a)} and {numbers.text_of(b)}, has a data-dependent "
        "type: convert both to floats or both to integers"
    )


_FLOATS = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "copysign", "cos", "cosh", "degrees", "erf",
    "erfc", "exp", "exp2", "expm1", "fabs", "fmod", "gamma", "hypot", "ldexp", "lgamma", "log", "log10", "log1p",
    "log2", "nextafter", "pow", "radians", "remainder", "sin", "sinh", "sqrt", "tan", "tanh", "ulp",
)  # fmt: skip
_INTEGERS = ("comb", "factorial", "gcd", "isqrt", "lcm", "perm")
_BOOLEANS = ("isfinite", "isinf", "isnan")

# Replacements for Python's functions in a program that computes with unbacked numbers.
FUNCTIONS: dict[str, dict[str, Callable[..., Any]]] = {
    "math": {
        name: _traced(f"math.{name}", getattr(math, name), kind)
        for kind, names in ((float, _FLOATS), (int, _INTEGERS), (bool, _BOOLEANS))
        for name in names
        if hasattr(math, name)  # some are missing in older versions of Python
    },
    "builtins": {name: _traced_extreme(name, fn) for name, fn in (("max", max), ("min", min))},
}


def _apply_extreme(kind: str) -> Callable[[Any, Any], Any]:
    integers = torch.sym_max if kind == "max" else torch.sym_min
    return lambda a, b: integers(a, b) if _is_int(a) and _is_int(b) else _extreme(kind, a, b)


APPLY.update({f"math.{name}": fn for name, fn in FUNCTIONS["math"].items()})
APPLY.update({"math.floor": math.floor, "math.ceil": math.ceil, "math.trunc": math.trunc})
APPLY.update({kind: _apply_extreme(kind) for kind in ("max", "min")})
APPLY["float.is_integer"] = lambda x: x.is_integer()
APPLY["int.bit_length"] = lambda x: x.bit_length()
