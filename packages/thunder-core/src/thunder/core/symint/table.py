# SPDX-License-Identifier: Apache-2.0
"""The interface of the table that symbolic numbers belong to; `symbols.py` implements it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from thunder.core.errors import DataDependentError
from thunder.core.proxies import NumberProxy
from thunder.core.symint.numbers import Atom, Constraint, Poly

__all__ = ["SymbolTable"]


class SymbolTable(Protocol):
    """The symbolic numbers of one trace and the constraints on them."""

    atoms: list[Atom]

    @property
    def is_foreign_thread(self) -> bool:
        """Whether this is another thread than the one that traces, where a symbolic number acts as its hint."""

    def operation(self, kind: str, operands: tuple[Any, ...], hint: Any, low: Any = None, high: Any = None) -> Any:
        """Return the integer result of an operation, as an atom; one operation is one atom."""

    def boolean(self, kind: str, operands: tuple[Any, ...]) -> Any:
        """Return the unbacked boolean result of an operation."""

    def is_boolean(self, poly: Poly) -> bool:
        """Check whether an integer is a boolean used as a number."""

    def make(self, poly: Poly) -> Any:
        """Return a polynomial as a symbolic number, or as an int if it is constant."""

    def is_quotient(self, term: tuple[tuple[int, ...], int]) -> bool:
        """Check whether a term is a single infix operation: a quotient, a remainder or a comparison."""

    def known_at_most_zero(self, poly: Poly) -> bool | None:
        """Return whether `poly <= 0` holds, or fails, in all calls; None if that is not known."""

    def never_above_zero(self, poly: Poly) -> bool:
        """Check whether bounds or constraints prove `poly <= 0`, including unbacked numbers that are 0 or 1."""

    def known_zero(self, poly: Poly) -> bool | None:
        """Return whether `poly == 0` holds, or fails, in all calls; None if that is not known."""

    def at_most_zero(self, poly: Poly) -> bool:
        """Decide `poly <= 0`, by the hint if it is not known, which adds a constraint."""

    def zero(self, poly: Poly) -> bool:
        """Decide `poly == 0`, by the hint if it is not known, which adds a constraint."""

    def compare(self, left: Any, relation: str, right: Any, found: bool) -> bool:
        """Add the constraint that a comparison with a float has the result `found`; return it."""

    def specialize(self, x: Any) -> Any:
        """Return the hint of a symbolic number and add the constraint that it equals it."""

    def deferred(self, left: Any, relation: str, right: Any) -> Any:
        """Return the result of comparing unbacked numbers."""

    def data_dependent_error(self, constraint: Constraint | None, x: Any = None) -> DataDependentError:
        """Return the error for a program that needs the value of an unbacked number or condition."""

    def atom_text(self, index: int, leaf_text: Callable[[NumberProxy], str] | None) -> str:
        """Return an atom as Python source, in parentheses if it needs them."""

    def atom_leaves(self, index: int, found: dict[str, NumberProxy]) -> None:
        """Add the leaves of an atom to `found`."""

    def atom_value(self, index: int, mapping: Callable[[NumberProxy], Any]) -> Any:
        """Return an atom with its leaves replaced."""
