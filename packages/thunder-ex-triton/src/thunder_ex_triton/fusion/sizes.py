# SPDX-License-Identifier: Apache-2.0
"""Symbolic sizes in generated kernels.

If a trace has symbolic numbers, its regions have symbolic sizes. A `Size` represents a symbolic number in the shapes of
a region. In a kernel a `Size` is a parameter, so one kernel supports all lengths. Arithmetic on sizes creates new
sizes, which the host computes at each call. Two sizes are equal only if they are equal in every call. A region that
would need an assumption is not fused. Choices that are correct in either case compare sizes by their hints.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thunder.extend import BoundSymbol, NumberProxy, SymbolicNumber, TensorProxy

__all__ = ["Size", "Sizes", "UnknownSize", "hint_of", "is_symbolic"]


class UnknownSize(Exception):
    """Raised for a number that cannot be computed from the inputs of a call."""


class Size:
    """A symbolic number of a trace. Its value is known at each call."""

    __slots__ = ("hint", "index", "made_of", "number", "table")

    def __init__(self, table: Sizes, index: int, number: Any, made_of: tuple[Any, ...] | None):
        self.table = table
        self.index = index
        self.number = number  # the symbolic number of the trace
        self.hint = number.hint
        self.made_of = made_of  # the operator and its operands

    def __str__(self) -> str:
        return f"size_{self.index}"

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return str(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return hash(("size", self.index))


def _arithmetic(name: str) -> None:
    fn: Callable[[Any, Any], Any] = getattr(operator, name)

    def number(x: Any) -> Any:
        return x.number if isinstance(x, Size) else x

    def forward(self: Size, other: Any) -> Any:
        return self.table.of(fn(self.number, number(other)), (fn, self, other))

    def backward(self: Size, other: Any) -> Any:
        return self.table.of(fn(other, self.number), (fn, other, self))

    setattr(Size, f"__{name}__", forward)
    setattr(Size, f"__r{name}__", backward)


def _comparison(name: str) -> None:
    fn: Callable[[Any, Any], bool] = getattr(operator, name)
    setattr(Size, f"__{name}__", lambda self, other: fn(self.hint, hint_of(other)))


for _name in ("add", "sub", "mul"):
    _arithmetic(_name)
for _name in ("lt", "le", "gt", "ge"):
    _comparison(_name)
Size.__neg__ = lambda self: 0 - self  # type: ignore[attr-defined]


def hint_of(x: Any) -> Any:
    """Return a number's value in the call that was traced."""
    return x.hint if isinstance(x, (Size, SymbolicNumber)) else x


def is_symbolic(op: BoundSymbol) -> bool:
    """Check whether an operation has a symbolic number in its arguments, or in a shape of its arguments or results."""
    if any(isinstance(p, NumberProxy) for p in op.flat_args):
        return True
    tensors = [p for p in (*op.flat_args, *op.flat_outs) if isinstance(p, TensorProxy)]
    return any(type(d) is not int for p in tensors for d in p.shape)


class Sizes:
    """The symbolic sizes of the regions of one trace, without duplicates."""

    def __init__(self) -> None:
        self.known: list[Size] = []
        self._free: dict[Any, Size] = {}
        self._lines: dict[int, tuple[int, int] | None] = {}
        self._lock = threading.RLock()  # several threads generate kernels

    def of(self, x: Any, made_of: tuple[Any, ...] | None = None) -> Any:
        """Return the `Size` of a symbolic number of the trace. Return other numbers unchanged."""
        if isinstance(x, NumberProxy):
            x = x.symbol
        if not isinstance(x, SymbolicNumber):
            return x
        if type(x.hint) is int and x.same(x.hint):
            return x.hint
        with self._lock:
            for size in self.known:
                if type(size.number) is type(x) and size.number.same(x):
                    return size
            size = Size(self, len(self.known), x, made_of)
            self.known.append(size)
        return size

    def free(self, key: Any, hint: int) -> Any:
        """Return a new `Size` for a stride that cannot be computed from sizes; the same `Size` for the same key."""
        with self._lock:
            if key not in self._free:
                if not self.known:  # if all sizes are constants, strides may be constants too
                    return hint
                symbols = self.known[0].number.symbols
                self._free[key] = self.of(symbols.size(hint, f"stride{len(self._free)}"))
            return self._free[key]

    def is_free(self, x: Any) -> bool:
        """Check whether `free` created a number."""
        return isinstance(x, Size) and any(x is size for size in self._free.values())

    def tensor(self, p: Any) -> Any:
        """Return a tensor proxy with `Size`s as its symbolic sizes. Return other values unchanged."""
        if not isinstance(p, TensorProxy) or all(type(d) is int for d in p.shape):
            return p
        return TensorProxy(p.name, like=p, shape=tuple([self.of(d) for d in p.shape]))

    def operation(self, op: BoundSymbol) -> BoundSymbol:
        """Return an operation with `Size`s as its symbolic numbers."""
        if not is_symbolic(op):
            return op
        args, kwargs, output = (self._converted(x) for x in (op.args, op.kwargs, op.output))
        return op.replace(args=args, kwargs=kwargs, output=output)

    def _converted(self, x: Any) -> Any:
        if isinstance(x, TensorProxy):
            return self.tensor(x)
        if isinstance(x, (NumberProxy, SymbolicNumber)):
            return self.of(x)
        if type(x) in (tuple, list):
            return type(x)([self._converted(y) for y in x])
        return {k: self._converted(v) for k, v in x.items()} if type(x) is dict else x

    def _line(self, size: Size) -> tuple[int, int] | None:
        """Return `factor, constant` if a size is `factor * n + constant` for one number `n` of the trace; else None."""
        if size.index not in self._lines:
            number, found = size.number, None
            if len(number.leaves) == 1:
                try:
                    constant, next_one = (number.substitute(lambda p, n=n: n) for n in (0, 1))
                except ZeroDivisionError:
                    constant = next_one = 0
                factor = next_one - constant
                if factor and number.same(number.leaves[0].symbol * factor + constant):
                    found = factor, constant
            self._lines[size.index] = found
        return self._lines[size.index]

    def values(
        self, inputs: Sequence[Any], found: Sequence[Any], more: Mapping[int, int] | None = None
    ) -> Callable[[Any], Any]:
        """Return a function that evaluates numbers in a call. `found` are the values of `inputs` (tensors and numbers).

        The function raises `UnknownSize` for a number that these values do not determine. `more` are additional known
        sizes.
        """
        leaves: dict[str, Any] = {}
        known: dict[int, Any] = dict(more or {})
        for p, x in zip(inputs, found):
            if isinstance(p, NumberProxy):
                leaves[p.name] = x
                continue
            for d, size in zip(p.shape, x):
                if isinstance(d, SymbolicNumber):
                    own = self.of(d)
                    if isinstance(own, Size):
                        known[own.index] = size
                        line = self._line(own)
                        if line is not None:
                            factor, constant = line
                            leaves[d.leaves[0].name] = (size - constant) // factor

        def value(x: Any) -> Any:
            if not isinstance(x, Size):
                return x
            if x.index not in known:
                if x.made_of is not None:
                    fn, *operands = x.made_of
                    known[x.index] = fn(*[value(y) for y in operands])
                else:
                    known[x.index] = x.number.substitute(leaf)
            return known[x.index]

        def leaf(p: NumberProxy) -> Any:
            if p.name not in leaves:
                raise UnknownSize(p.name)
            return leaves[p.name]

        return value
