# SPDX-License-Identifier: Apache-2.0
"""The interface of the table to which symbolic numbers belong; `symbols.py` implements it."""

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
        """True if the current thread is not the tracing thread; symbolic numbers then behave like their hints."""

    def operation(self, kind: str, operands: tuple[Any, ...], hint: Any, low: Any = None, high: Any = None) -> Any:
        """Return the integer result of an operation as an atom; equal operations have the same atom."""

    def boolean(self, kind: str, operands: tuple[Any, ...]) -> Any:
        """Return the unbacked boolean result of an operation."""

    def is_boolean(self, poly: Poly) -> bool:
        """Check whether an integer is a boolean used as a number."""

    def make(self, poly: Poly) -> Any:
        """Return a polynomial as a symbolic number, or as an int if it is constant."""

    def is_quotient(self, term: tuple[tuple[int, ...], int]) -> bool:
        """Check whether a term is a single infix operation: a quotient, a remainder or a comparison."""

    def known_at_most_zero(self, poly: Poly) -> bool | None:
        """Return True or False if `poly <= 0` has this result in all calls; None if that is not known."""

    def never_above_zero(self, poly: Poly) -> bool:
        """Check whether bounds or constraints prove `poly <= 0`, including unbacked numbers that are 0 or 1."""

    def known_zero(self, poly: Poly) -> bool | None:
        """Return True or False if `poly == 0` has this result in all calls; None if that is not known."""

    def at_most_zero(self, poly: Poly) -> bool:
        """Decide `poly <= 0`. If the result is not known, decide by the hint and add a constraint."""

    def zero(self, poly: Poly) -> bool:
        """Decide `poly == 0`. If the result is not known, decide by the hint and add a constraint."""

    def compare(self, left: Any, relation: str, right: Any, found: bool) -> bool:
        """Add the constraint that a comparison with a float has the result `found`; return `found`."""

    def specialize(self, x: Any) -> Any:
        """Return the hint of a symbolic number, and add the constraint that the number equals its hint."""

    def deferred(self, left: Any, relation: str, right: Any) -> Any:
        """Return the result of comparing unbacked numbers."""

    def decided(self, constraint: Constraint) -> bool:
        """Return whether a data-dependent condition is true in this call, or raise if that cannot be decided."""

    def answered(self, constraint: Constraint) -> bool:
        """Return a decision on a data-dependent condition that has been made before, or raise if there is none."""

    def data_dependent_error(self, constraint: Constraint | None, x: Any = None) -> DataDependentError:
        """Return the error for a program that needs the value of an unbacked number or condition."""

    def atom_text(self, index: int, leaf_text: Callable[[NumberProxy], str] | None) -> str:
        """Return an atom as Python source, in parentheses if necessary."""

    def atom_leaves(self, index: int, found: dict[str, NumberProxy]) -> None:
        """Add the leaves of an atom to `found`."""

    def atom_value(self, index: int, mapping: Callable[[NumberProxy], Any]) -> Any:
        """Return an atom with its leaves replaced."""
