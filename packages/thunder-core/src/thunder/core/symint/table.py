# SPDX-License-Identifier: Apache-2.0
"""What symbolic numbers need of the table of a program's numbers that they belong to (`symbols.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from thunder.core.errors import DataDependentError
from thunder.core.proxies import NumberProxy
from thunder.core.symint.numbers import Atom, Constraint, Poly

__all__ = ["SymbolTable"]


class SymbolTable(Protocol):
    """The unknown numbers of one program, and what has been assumed of them."""

    atoms: list[Atom]

    @property
    def is_elsewhere(self) -> bool:
        """Whether another thread asks than the one that traces: it has found a number in an object that both know."""

    def operation(self, kind: str, operands: tuple[Any, ...], hint: Any, low: Any = None, high: Any = None) -> Any:
        """Return the integer that an operation gives whose value is taken as a whole."""

    def truth(self, kind: str, operands: tuple[Any, ...]) -> Any:
        """Return the truth value that an operation gives of what only running tells."""

    def is_truth(self, poly: Poly) -> bool:
        """Check whether an integer is a truth value that is computed with."""

    def make(self, poly: Poly) -> Any:
        """Return the number that a polynomial is: a symbolic one, or an int where nothing is unknown in it."""

    def is_quotient(self, term: tuple[tuple[int, ...], int]) -> bool:
        """Check whether a term is nothing but a quotient, a remainder or a comparison."""

    def known_at_most_zero(self, poly: Poly) -> bool | None:
        """Check whether `poly <= 0`, where that is known of all calls."""

    def never_above_zero(self, poly: Poly) -> bool:
        """Check whether `poly <= 0` whatever only running tells, by bounds or by what was assumed."""

    def known_zero(self, poly: Poly) -> bool | None:
        """Check whether `poly == 0`, where that is known of all calls."""

    def at_most_zero(self, poly: Poly) -> bool:
        """Compute `poly <= 0`, if need be by what it is in this call."""

    def zero(self, poly: Poly) -> bool:
        """Compute `poly == 0`, if need be by what it is in this call."""

    def compare(self, left: Any, relation: str, right: Any, found: bool) -> bool:
        """Note what was found of numbers of which one is a float; returns it."""

    def specialize(self, x: Any) -> Any:
        """Return the number that a symbolic one is in this call, which is from now on what it is."""

    def deferred(self, left: Any, relation: str, right: Any) -> Any:
        """Return the answer to a program that compares what only running tells."""

    def is_unbacked(self, constraint: Constraint | None, x: Any = None) -> DataDependentError:
        """Return the error where the program has to know what only running tells."""

    def atom_text(self, index: int, said: Callable[[NumberProxy], str] | None) -> str:
        """Return an atom as Python, in parentheses where it needs them."""

    def atom_leaves(self, index: int, found: dict[str, NumberProxy]) -> None:
        """Add the leaves below an atom."""

    def atom_value(self, index: int, mapping: Callable[[NumberProxy], Any]) -> Any:
        """Return an atom with other leaves."""
