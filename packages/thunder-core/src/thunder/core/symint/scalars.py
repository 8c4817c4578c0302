# SPDX-License-Identifier: Apache-2.0
"""`SymbolicInt` and `SymbolicFloat`: arithmetic and comparisons of symbolic numbers."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from thunder.core.errors import DataDependentFormattingError, TracingError
from thunder.core.proxies import NumberProxy
from thunder.core.state import state
from thunder.core.symint import numbers
from thunder.core.symint.expressions import APPLY, Expression
from thunder.core.symint.node import Node, unwrap_node
from thunder.core.symint.numbers import Constraint, Poly, SymbolicNumber
from thunder.core.symint.table import SymbolTable

__all__ = ["SymbolicFloat", "SymbolicInt"]


def poly_of(x: Any) -> Poly:
    """Return an integer, symbolic or not, as a polynomial."""
    if isinstance(x, SymbolicInt):
        return x.poly
    return {(): int(x)} if x else {}


def key_of_poly(poly: Poly) -> Any:
    """Return a hashable key for a polynomial."""
    return tuple(sorted(poly.items()))


def key_of(x: Any) -> Any:
    """Return a hashable key for a number, symbolic or not."""
    if isinstance(x, SymbolicInt):
        return key_of_poly(x.poly)
    return x.text() if isinstance(x, Expression) else repr(x)


def _is_float(x: Any) -> bool:
    return type(x) is float or isinstance(x, SymbolicFloat)


def _is_complex(x: Any) -> bool:
    return isinstance(x, complex)  # also true for symbolic complex numbers, because of their `__class__`


def _is_int(x: Any) -> bool:
    return type(x) is int or type(x) is bool or isinstance(x, SymbolicInt)


class _Arithmetic(Node):
    """The base class of symbolic numbers: conversions to Python numbers, which specialize, and formatting as text."""

    def __bool__(self: Any) -> bool:
        return bool(self != 0)

    def __int__(self) -> int:
        return int(self.symbols.specialize(self))

    def __float__(self) -> float:
        return float(self.symbols.specialize(self))

    def __complex__(self) -> complex:
        return complex(self.symbols.specialize(self))

    def __hash__(self) -> int:
        return hash(self.symbols.specialize(self))

    def __repr__(self) -> str:
        if self.hint is not None and self.symbols.is_foreign_thread:
            return repr(self.hint)
        return self.text() if state.frontend is None else self._as_text(repr)

    def _as_text(self: Any, write: Callable[[Any], str]) -> str:
        """Return the text of the number's value for user code; formatting specializes the number.

        Integers that the program computes become decisions: sizes repeat, other numbers differ from call to call.
        """
        if self.hint is None and self.__class__ not in (int, bool):
            raise DataDependentFormattingError(
                f"the program formats the number {self.text()} as text, which is data-dependent: computed by the "
                "program and not known while tracing. Ways out: return the number and format it outside, or put the "
                "line into a function that stays Python (thunder.disable)"
            )
        return write(self.symbols.specialize(self))

    def __str__(self) -> str:
        return repr(self)

    def __format__(self, spec: str) -> str:
        if state.frontend is None and not self.symbols.is_foreign_thread:
            return self.text()
        return self._as_text(lambda x: format(x, spec))

    def __reduce__(self) -> Any:
        return type(self.hint), (self.symbols.specialize(self),)

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __copy__(self) -> Any:
        return self

    @property
    def proxy(self) -> NumberProxy:
        """The `NumberProxy` of a leaf."""
        proxy: NumberProxy
        (proxy,) = self.leaves
        return proxy

    def __divmod__(self: Any, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self: Any, other: Any) -> Any:
        return other // self, other % self

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        import numpy

        return numpy.asarray(self.symbols.specialize(self), dtype)

    def conjugate(self) -> Any:
        return self

    real = property(conjugate)
    imag = property(lambda self: 0)


def _float_operation(kind: str, fn: Any, operands: tuple[Any, ...], symbols: SymbolTable) -> Any:
    divisor: Any = operands[1] if kind in ("/", "//", "%") else None
    if isinstance(divisor, SymbolicNumber) and divisor.hint is not None and not divisor:
        raise ZeroDivisionError("division by zero")
    if kind == "**" and numbers.is_unbacked(*operands):
        if not _is_int(operands[1]):  # for a negative base the power is complex: math.pow raises when the program runs
            kind, fn = "math.pow", math.pow
    elif kind == "**" and not operands[0] > 0:  # the power may be complex or raise an error: specialize
        return fn(*[symbols.specialize(x) if isinstance(x, SymbolicNumber) else x for x in operands])
    hints = [x.hint if isinstance(x, SymbolicNumber) else x for x in operands]
    hint = None if any(h is None for h in hints) else fn(*hints)
    return SymbolicFloat(symbols, kind, operands, hint)


def _binary(kind: str, fn: Callable[..., Any] | None, integers: Callable[..., Any] | None) -> tuple[Any, Any]:
    """Return an operator and its reflected operator: `integers` computes two integers, and `fn` a float result."""
    operation = fn or _BITWISE[kind]

    def apply(self: Any, a: Any, b: Any) -> Any:
        if _is_int(a) and _is_int(b):
            if integers is not None:
                return integers(self.symbols, a, b)
        elif fn is not None and (_is_complex(a) or _is_complex(b)):
            return APPLY["complex operation"](kind, a, b, self.symbols)
        elif fn is None or not (_is_int(a) or _is_float(a)) or not (_is_int(b) or _is_float(b)):
            return NotImplemented
        return _float_operation(kind, fn, (a, b), self.symbols)

    def forward(self: Any, other: Any) -> Any:
        if self.symbols.is_foreign_thread:
            return operation(self.hint, _hint(other))
        self, other = _same_table(self, _unwrap_symint(other))
        return apply(self, self, other) if isinstance(self, SymbolicNumber) else operation(self, other)

    def backward(self: Any, other: Any) -> Any:
        if self.symbols.is_foreign_thread:
            return operation(_hint(other), self.hint)
        self, other = _same_table(self, _unwrap_symint(other))
        return apply(self, other, self) if isinstance(self, SymbolicNumber) else operation(other, self)

    return forward, backward


def _unwrap_symint(x: Any) -> Any:
    """Return the number inside a plain SymInt or SymFloat that torch's C++ has wrapped around it."""
    if isinstance(x, Node):
        return x
    return unwrap_node(x) if type(x) in (torch.SymInt, torch.SymFloat) else x


def _same_table(a: Any, b: Any) -> tuple[Any, Any]:
    """Return two operands that belong to one trace; replace a number that leaked from another trace by its hint."""
    if isinstance(a, SymbolicNumber) and isinstance(b, SymbolicNumber):
        ours, theirs = a.symbols, b.symbols  # type: ignore[attr-defined]
        if ours is not theirs:
            return (a.hint, b) if ours.closed else (a, b.hint)
    return a, b


_BITWISE: dict[str, Callable[..., Any]] = {
    "lshift": operator.lshift, "rshift": operator.rshift, "and": operator.and_, "or": operator.or_, "xor": operator.xor,
}  # fmt: skip


def _times(symbols: SymbolTable, a: Any, b: Any) -> Any:
    return symbols.make(numbers.multiply(poly_of(a), poly_of(b)))


def _quotient(symbols: SymbolTable, a: Any, b: Any) -> Any:
    if not numbers.is_unbacked(b) and b == 0:  # for an unbacked zero, the program raises when it runs
        raise ZeroDivisionError("integer division or modulo by zero")
    q, r = numbers.divide(poly_of(a), poly_of(b))
    if not r:
        return symbols.make(q)
    rest = symbols.make(r)
    if type(rest) is int and type(b) is int:
        return symbols.make(numbers.add(q, {(): rest // b} if rest // b else {}))
    low, high = numbers.bounds(r, symbols.atoms)
    if type(b) is int and b > 0:
        least, most = None if low is None else low // b, None if high is None else high // b
    else:
        least, most = (0 if low is not None and low >= 0 and _is_positive(symbols, b) else None), None
    if least is not None and least == most:
        return symbols.make(numbers.add(q, {(): least} if least else {}))
    if type(b) is not int and (small := _small_quotient(symbols, r, poly_of(b))) is not None:
        return symbols.make(numbers.add(q, {(): small} if small else {}))
    hint = None if _hint(rest) is None or _hint(b) is None else _hint(rest) // _hint(b)
    atom = symbols.operation("//", (rest, b), hint, least, most)
    return symbols.make(numbers.add(q, atom.poly))


def _small_quotient(symbols: SymbolTable, a: Poly, b: Poly) -> int | None:
    """Return `a // b` if it is known to be 0 (0 <= a < b) or -1 (-b <= a < 0), else None."""
    low, high = numbers.bounds(a, symbols.atoms)
    if low is not None and low >= 0:
        most = numbers.bounds(numbers.add(a, b, -1), symbols.atoms)[1]
        return 0 if most is not None and most < 0 else None
    if high is not None and high < 0:
        least = numbers.bounds(numbers.add(a, b), symbols.atoms)[0]
        return -1 if least is not None and least >= 0 else None
    return None


def _is_positive(symbols: SymbolTable, b: Any) -> bool:
    """Check whether a symbolic divisor is positive: by its hint, or by its bounds if it is unbacked."""
    if not numbers.is_unbacked(b):
        return bool(b > 0)
    low = numbers.bounds(poly_of(b), symbols.atoms)[0]
    return low is not None and low > 0


def _remainder(symbols: SymbolTable, a: Any, b: Any) -> Any:
    if not numbers.is_unbacked(b) and b == 0:  # for an unbacked zero, the program raises when it runs
        raise ZeroDivisionError("integer division or modulo by zero")
    r = numbers.divide(poly_of(a), poly_of(b))[1]
    if not r:
        return 0
    rest = symbols.make(r)
    if type(b) is int:
        if type(rest) is int:
            return rest % b
        constant = r.get((), 0)
        if constant % b != constant:
            rest = symbols.make(numbers.add(r, {(): constant % b - constant}))
        low, high = numbers.bounds(poly_of(rest), symbols.atoms)
        if low is not None and high is not None and low >= 0 and high < b:
            return rest
    hint = None if _hint(rest) is None or _hint(b) is None else _hint(rest) % _hint(b)
    limits: tuple[Any, Any] = (0, b - 1) if type(b) is int and b > 0 else (None, None)
    if type(b) is not int and _is_positive(symbols, b):
        limits = 0, None
    return symbols.operation("%", (rest, b), hint, *limits)


def _power(symbols: SymbolTable, a: Any, b: Any) -> Any:
    exponent = int(b)
    if exponent < 0:
        return _float_operation("**", operator.pow, (a, exponent), symbols)
    out: Any = 1
    for _ in range(exponent):
        out = out * a
    return out


def _hint(x: Any) -> Any:
    return x.hint if isinstance(x, SymbolicNumber) else x


def _bitwise(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda symbols, a, b: fn(int(a), int(b))


_OPERATORS: dict[str, tuple[str, Callable[..., Any], Callable[..., Any] | None]] = {
    "add": ("+", operator.add, lambda s, a, b: s.make(numbers.add(poly_of(a), poly_of(b)))),
    "sub": ("-", operator.sub, lambda s, a, b: s.make(numbers.add(poly_of(a), poly_of(b), -1))),
    "mul": ("*", operator.mul, _times),
    "truediv": ("/", operator.truediv, None),
    "floordiv": ("//", operator.floordiv, _quotient),
    "mod": ("%", operator.mod, _remainder),
    "pow": ("**", operator.pow, _power),
}
_INTEGER_OPERATORS: dict[str, Callable[..., Any]] = {
    "lshift": lambda s, a, b: a * 2 ** int(b), "rshift": lambda s, a, b: a // 2 ** int(b),
    "and": _bitwise(operator.and_), "or": _bitwise(operator.or_), "xor": _bitwise(operator.xor),
}  # fmt: skip


def _comparison(relation: str) -> Callable[[Any, Any], Any]:
    fn = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
          ">=": operator.ge}[relation]  # fmt: skip

    def compare(self: Any, other: Any) -> Any:
        if self.symbols.is_foreign_thread:
            return fn(self.hint, _hint(other))
        self, other = _same_table(self, _unwrap_symint(other))
        if not isinstance(self, SymbolicNumber):
            return fn(self, other)
        symbols: SymbolTable = self.symbols  # type: ignore[attr-defined]
        if _is_int(self) and _is_int(other):
            if state.frontend is None:
                return _compare_integers(symbols, self, relation, other)
            before = getattr(state.frontend, "refusal", None)
            try:
                return _compare_integers(symbols, self, relation, other)
            except TracingError:  # an unbacked result is only an error if the program branches on it
                if hasattr(state.frontend, "refusal"):
                    state.frontend.refusal = before
                return symbols.deferred(self, relation, other)
        if not (_is_int(other) or _is_float(other)):
            return NotImplemented
        a, b = _hint(self), _hint(other)
        if a is None or b is None:
            if state.frontend is None:
                return symbols.answered(Constraint(self, relation, other))
            return symbols.deferred(self, relation, other)
        return symbols.compare(self, relation, other, fn(a, b))

    return compare


def _compare_integers(symbols: SymbolTable, a: Any, relation: str, b: Any) -> bool:
    if relation in ("==", "!="):
        return symbols.zero(numbers.add(poly_of(a), poly_of(b), -1)) is (relation == "==")
    if relation in (">", ">="):
        a, b = b, a
    d = numbers.add(poly_of(a), poly_of(b), -1)
    if relation in ("<", ">"):
        d = numbers.add(d, {(): 1})
    return symbols.at_most_zero(d)


def _extreme_of_integers(kind: str, symbols: SymbolTable, a: Any, b: Any) -> Any:
    """Return the maximum or minimum of two integers; if their order is not known, the program computes it."""
    (low, high), (low_b, high_b) = (numbers.bounds(poly_of(x), symbols.atoms) for x in (a, b))
    if symbols.never_above_zero(numbers.add(poly_of(a), poly_of(b), -1)):
        return b if kind == "max" else a
    if symbols.never_above_zero(numbers.add(poly_of(b), poly_of(a), -1)):
        return a if kind == "max" else b
    fn = max if kind == "max" else min
    lows, highs = [x for x in (low, low_b) if x is not None], [x for x in (high, high_b) if x is not None]
    known = lows if kind == "max" else highs  # a bound of one operand is a bound of the result
    both = highs if kind == "max" else lows
    one, other = fn(known) if known else None, fn(both) if len(both) == 2 else None
    hint = None if _hint(a) is None or _hint(b) is None else fn(_hint(a), _hint(b))
    return symbols.operation(kind, (a, b), hint, *((one, other) if kind == "max" else (other, one)))


def _is_negative(symbols: SymbolTable, x: Any) -> Any:
    """Return 1 if an integer is negative, else 0, without branching."""
    return -_extreme_of_integers("min", symbols, _extreme_of_integers("max", symbols, x, -1), 0)


def _clamp_bound(symbols: SymbolTable, x: Any, n: Any) -> Any:
    x = x + n * _is_negative(symbols, x)
    return _extreme_of_integers("min", symbols, _extreme_of_integers("max", symbols, x, 0), n)


class SymbolicInt(_Arithmetic, torch.SymInt):
    """A symbolic integer: a polynomial over the atoms of its symbol table."""

    __class__ = property(lambda self: int)
    hint: Any = None  # in newer versions of torch its class has a property of that name

    def __init__(self, symbols: SymbolTable, poly: Poly, hint: int | None):
        self.symbols = symbols
        self.poly = poly
        self.hint = hint

    @property
    def leaves(self) -> tuple[NumberProxy, ...]:
        found: dict[str, NumberProxy] = {}
        for monomial in self.poly:
            for i in monomial:
                self.symbols.atom_leaves(i, found)
        return tuple(found.values())

    def text(self, leaf_text: Callable[[NumberProxy], str] | None = None) -> str:
        text = numbers.render(self.poly, lambda i: self.symbols.atom_text(i, leaf_text))
        if self.__class__ is int and self.symbols.is_boolean(self.poly):
            return f"int({text})"
        return text[1:-1] if len(self.poly) == 1 and self.symbols.is_quotient(next(iter(self.poly.items()))) else text

    def substitute(self, mapping: Callable[[NumberProxy], Any]) -> Any:
        total: Any = 0
        for monomial, coefficient in self.poly.items():
            term: Any = coefficient
            for i in monomial:
                term = term * self.symbols.atom_value(i, mapping)
            total = total + term
        return total

    def same(self, other: Any) -> bool:
        if not _is_int(other):
            return False
        return self.symbols.known_zero(numbers.add(self.poly, poly_of(other), -1)) is True

    def __index__(self) -> int:
        return int(self.symbols.specialize(self))

    def __neg__(self) -> Any:
        if self.symbols.is_foreign_thread:
            return -self.hint
        return self.symbols.make({m: -c for m, c in self.poly.items()})

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        if self.hint is None:
            return _extreme_of_integers("max", self.symbols, self, -self)
        return self if self >= 0 else -self

    def __invert__(self) -> Any:
        return -self - 1

    def __round__(self, ndigits: Any = None) -> Any:
        return self if ndigits is None or ndigits >= 0 else round(int(self), ndigits)

    def __floor__(self) -> Any:
        return self

    __ceil__ = __trunc__ = __floor__

    def __sym_float__(self) -> Any:
        return SymbolicFloat(self.symbols, "float", (self,), None if self.hint is None else float(self.hint))

    def __sym_int__(self) -> Any:
        return self

    def __sym_max__(self, other: Any) -> Any:
        return self._extreme("max", _unwrap_symint(other), 1)

    def __sym_min__(self, other: Any) -> Any:
        return self._extreme("min", _unwrap_symint(other), -1)

    def _extreme(self, kind: str, other: Any, sign: int) -> Any:
        symbols = self.symbols
        d = numbers.add(poly_of(other), self.poly, -1)
        known = symbols.known_at_most_zero({m: sign * c for m, c in d.items()})
        if known is not None:
            return self if known else other
        return _extreme_of_integers(kind, symbols, self, other)

    def within(self, n: Any) -> Any:
        """Return the number as a slice bound for `n` elements: add `n` if it is negative, then clamp to 0 and `n`."""
        return _clamp_bound(self.symbols, self, n)

    def bounds_slice(self, x: int) -> Any:
        """Return `x` as a slice bound for `self` elements."""
        return _clamp_bound(self.symbols, x, self)

    poly_of = staticmethod(poly_of)

    def at_least(self, x: Any) -> Any:
        """Return the maximum of `self` and `x`."""
        return _extreme_of_integers("max", self.symbols, self, x)

    def position(self, n: Any) -> Any:
        """Return the number as an index into `n` elements: add `n` if it is negative."""
        return self + n * _is_negative(self.symbols, self)

    @property
    def numerator(self) -> Any:
        """The number itself, like `int.numerator`."""
        return self

    denominator = property(lambda self: 1)

    def bit_length(self) -> Any:
        return (
            self.symbols.operation("int.bit_length", (self,), None, 0)
            if self.hint is None
            else self.__index__().bit_length()
        )

    def is_integer(self) -> bool:
        return True


class SymbolicFloat(Expression, _Arithmetic, torch.SymFloat):
    """A symbolic float."""

    __class__ = property(lambda self: float)
    hint: Any = None  # in newer versions of torch its class has a property of that name

    imag = property(lambda self: 0.0)

    def __neg__(self) -> Any:
        if self.symbols.is_foreign_thread:
            return -self.hint
        return _float_operation("neg", operator.neg, (self,), self.symbols)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        if self.symbols.is_foreign_thread:
            return abs(self.hint)
        return _float_operation("abs", abs, (self,), self.symbols)

    def _to_integer(self, kind: str, fn: Callable[..., Any]) -> Any:
        if self.symbols.is_foreign_thread:
            return fn(self.hint)
        return self.symbols.operation(kind, (self,), None if self.hint is None else fn(self.hint))

    def __floor__(self) -> Any:
        return self._to_integer("math.floor", math.floor)

    def __ceil__(self) -> Any:
        return self._to_integer("math.ceil", math.ceil)

    def __trunc__(self) -> Any:
        return self._to_integer("math.trunc", math.trunc)

    __sym_int__ = __trunc__

    def __round__(self, ndigits: Any = None) -> Any:
        if ndigits is None or self.symbols.is_foreign_thread:
            return self._to_integer("round", round) if ndigits is None else round(self.hint, ndigits)
        hint = None if self.hint is None else round(self.hint, int(ndigits))
        return SymbolicFloat(self.symbols, "round", (self, int(ndigits)), hint)

    def __sym_float__(self) -> Any:
        return self

    def __sym_max__(self, other: Any) -> Any:
        return self if not numbers.is_unbacked(self, other) and self >= other else APPLY["max"](self, other)

    def __sym_min__(self, other: Any) -> Any:
        return self if not numbers.is_unbacked(self, other) and self <= other else APPLY["min"](self, other)

    def is_integer(self) -> Any:
        return self.symbols.boolean("float.is_integer", (self,)) if self.hint is None else float(self).is_integer()

    def as_integer_ratio(self) -> Any:
        return float(self).as_integer_ratio()

    def hex(self) -> str:
        return float(self).hex()


for _cls in (SymbolicInt, SymbolicFloat):
    for _name, (_kind, _fn, _integers) in _OPERATORS.items():
        _forward, _backward = _binary(_kind, _fn, _integers)
        setattr(_cls, f"__{_name}__", _forward)
        setattr(_cls, f"__r{_name}__", _backward)
    for _name, _relation in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
        setattr(_cls, f"__{_name}__", _comparison(_relation))
    _cls.__hash__ = _Arithmetic.__hash__  # type: ignore[method-assign]
for _name, _integers in _INTEGER_OPERATORS.items():
    _forward, _backward = _binary(_name, None, _integers)
    setattr(SymbolicInt, f"__{_name}__", _forward)
    setattr(SymbolicInt, f"__r{_name}__", _backward)
