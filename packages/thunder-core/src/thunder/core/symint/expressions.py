# SPDX-License-Identifier: Apache-2.0
"""Symbolic expressions that keep the program's operations unchanged: operators and Python's functions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from thunder.core.errors import TracingError
from thunder.core.proxies import NumberProxy
from thunder.core.symint import numbers
from thunder.core.symint.numbers import SymbolicNumber
from thunder.core.symint.table import SymbolTable

__all__ = ["APPLY", "INFIX", "Expression", "number_of", "operation_text"]

# Operators that print between their two operands.
INFIX = frozenset({"+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "&", "|", "^"})
# The function that evaluates each kind of expression; its operands may be symbolic. `functions.py` adds more functions.
APPLY: dict[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "**": operator.pow, "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge, "&": operator.and_, "|": operator.or_, "^": operator.xor,
    "neg": operator.neg, "abs": abs, "round": round, "float": torch.sym_float,
    ".real": lambda x: x.real, ".imag": lambda x: x.imag, ".conjugate()": lambda x: x.conjugate(),
}  # fmt: skip


def number_of(x: Any) -> Any:
    """Return the symbolic number of a `NumberProxy`; return any other object unchanged."""
    if isinstance(x, NumberProxy):
        if x.symbol is None:
            raise TracingError(f"the number {x.name} is not a symbolic number of its trace")
        return x.symbol
    return x


def operation_text(kind: str, operands: list[str]) -> str:
    """Return an operation as Python source."""
    if kind in INFIX:
        left, right = map(numbers.in_parentheses, operands)
        return f"{left} {kind} {right}"
    if kind == "neg":
        return f"-{numbers.in_parentheses(operands[0])}"
    if kind.startswith("."):
        return f"{numbers.in_parentheses(operands[0])}{kind}"
    return f"{kind}({', '.join(operands)})"


class Expression(SymbolicNumber):
    """A symbolic float or complex number: a tree of the program's operations, without algebraic simplification."""

    symbols: SymbolTable
    kind: str  # "leaf", or a key of `APPLY`
    operands: tuple[Any, ...]

    def __init__(self, symbols: SymbolTable, kind: str, operands: tuple[Any, ...], hint: Any):
        self.symbols = symbols
        self.kind = kind
        self.operands = operands
        self.hint = hint

    @property
    def leaves(self) -> tuple[NumberProxy, ...]:
        found: dict[str, NumberProxy] = {}
        for x in self.operands:
            if isinstance(x, NumberProxy):
                found[x.name] = x
            elif isinstance(x, SymbolicNumber):
                found.update((p.name, p) for p in x.leaves)
        return tuple(found.values())

    def text(self, leaf_text: Callable[[NumberProxy], str] | None = None) -> str:
        if self.kind == "leaf":
            return leaf_text(self.operands[0]) if leaf_text is not None else self.operands[0].name
        return operation_text(self.kind, [numbers.text_of(x, leaf_text) for x in self.operands])

    def substitute(self, mapping: Callable[[NumberProxy], Any]) -> Any:
        if self.kind == "leaf":
            return number_of(mapping(self.operands[0]))
        return APPLY[self.kind](*[x.substitute(mapping) if isinstance(x, SymbolicNumber) else x for x in self.operands])

    def same(self, other: Any) -> bool:
        return isinstance(other, Expression) and type(other) is type(self) and self.text() == other.text()
