# SPDX-License-Identifier: Apache-2.0
"""Symbolic numbers: sizes and Python numbers that native Python and torch compute with though they are not known.

`SymbolicInt` and `SymbolicFloat` are `torch.SymInt` and `torch.SymFloat`, which all of torch takes, with an algebra of
their own below (`core/symint/numbers.py`). torch's `ShapeEnv` would be another: it needs sympy, 0.6 s to import and 20
to 70 µs for each comparison, and its Python part is private to torch. They also say that they are an `int` and a
`float` (`isinstance`), so programs and meta functions that ask take the way that they take for numbers.

What becomes of one:

- arithmetic gives another expression;
- a comparison is answered by what the number is in this call, its *hint*, unless the algebra knows; what was answered
  so is noted as a constraint (`Symbols.constraints`), which the prologue checks;
- whatever needs the number itself (`range`, `int()`, a dict's key, `f"{n}"`, a C function) gets the hint, and the
  constraint is that it is this number;
- in arguments of operations it stays an expression of `NumberProxy` leaves, which the program computes when it runs.

`symbols_of(trace)` are the symbols of a trace, made when first asked for. To add a leaf:

- `symbols.size(hint)`, `symbols.number(value)`: known in this call, given by the prologue;
- `symbols.unbacked(int, low=0)`: known only when the program runs. Its `.proxy` is the `NumberProxy` for an operation
  to give as its output; `prims.size` reads one off the shape of a tensor. It has no hint: comparisons are answered
  where its bounds allow, elsewhere they raise `DataDependentError`, which says where and what to do;
  `symbols.assume(a, "<=", b)` adds knowledge.

Nothing here is private to torch but what a `node` of a SymInt has to answer (`core/symint/node.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from thunder.core.errors import DataDependentError, TracingError
from thunder.core.proxies import NumberProxy
from thunder.core.state import ActiveTrace, state
from thunder.core.symint import numbers
from thunder.core.symint.expressions import APPLY, INFIX, number_of, written
from thunder.core.symint.functions import DeferredBool, SymbolicBool, SymbolicComplex
from thunder.core.symint.numbers import Atom, Constraint, Poly, SymbolicNumber
from thunder.core.symint.scalars import SymbolicFloat, SymbolicInt, key_of, key_of_poly, poly_of

__all__ = ["Constraint", "DataDependentError", "DeferredBool", "SymbolicFloat", "SymbolicInt", "Symbols", "symbols_of"]


class Symbols:
    """The unknown numbers of one program, and what has been assumed of them."""

    def __init__(self, make_name: Callable[[str], str]):
        self._make_name = make_name
        self.atoms: list[Atom] = []
        self.leaves: dict[str, Any] = {}  # by the names of their proxies
        self._constraints: dict[Any, Constraint] = {}
        self._operations: dict[Any, Atom] = {}
        self._truths: set[int] = set()  # the atoms that are truth values
        self._parts: set[int] = set()  # the atoms that are parts of a total
        # Atoms, and products of atoms, that have been found to be equal to something else.
        self._known: dict[int, Poly] = {}
        self._products: dict[tuple[int, ...], Poly] = {}
        self._thread = threading.get_ident()
        self._closed_on: int | None = None  # the thread on which nothing new may be assumed
        self.closed = False  # the program is done: what is asked now is answered, and assumed by nobody

    @property
    def is_elsewhere(self) -> bool:
        """Whether another thread asks than the one that traces: it has found a number in an object that both know.

        There it computes as the plain number that it is in this call.
        """
        return not self.closed and threading.get_ident() != self._thread

    @property
    def constraints(self) -> list[Constraint]:
        """What was assumed, in order."""
        return list(self._constraints.values())

    # -- leaves -------------------------------------------------------------------------------------------------------
    def size(self, hint: int, name: str | None = None) -> Any:
        """Return a size of an input. It is not 0 or 1: those are different programs (they broadcast)."""
        return self._leaf(int, hint, name or self._make_name("s"), 2)

    def number(self, value: float, name: str | None = None) -> Any:
        """Return a Python number, an int or a float, that is an input."""
        return self._leaf(type(value), value, name or self._make_name("n"), None)

    def unbacked(self, python_type: type = int, *, low: int | None = None, high: int | None = None) -> Any:
        """Return a number that only running the program tells; an int is between `low` and `high`."""
        return self._leaf(python_type, None, self._make_name("u"), low, high)

    def _leaf(self, python_type: type, hint: Any, name: str, low: int | None, high: int | None = None) -> Any:
        proxy = NumberProxy(hint, python_type, name)
        atom = Atom(len(self.atoms), "leaf", (), hint, low, high, proxy)
        self.atoms.append(atom)
        out: Any
        if python_type is float:
            out = SymbolicFloat(self, "leaf", (proxy,), hint)
        elif python_type is bool:
            out = SymbolicBool(self, {(atom.index,): 1}, hint)
            self._truths.add(atom.index)
        elif python_type is complex:
            out = SymbolicComplex(self, "leaf", (proxy,), hint)
        else:
            out = SymbolicInt(self, {(atom.index,): 1}, hint)
        proxy.symbol = out
        self.leaves[name] = out
        return out

    def operation(self, kind: str, operands: tuple[Any, ...], hint: Any, low: Any = None, high: Any = None) -> Any:
        """Return the integer that an operation gives whose value is taken as a whole."""
        key = (kind, *[key_of(x) for x in operands])
        atom = self._operations.get(key)
        if atom is None:
            atom = self._operations[key] = Atom(len(self.atoms), kind, operands, hint, low, high)
            self.atoms.append(atom)
        return SymbolicInt(self, {(atom.index,): 1}, hint)

    def truth(self, kind: str, operands: tuple[Any, ...]) -> Any:
        """Return the truth value that an operation gives of what only running tells."""
        (monomial,) = self.operation(kind, operands, None, 0, 1).poly
        self._truths.update(monomial)
        return SymbolicBool(self, {monomial: 1}, None)

    def is_truth(self, poly: Poly) -> bool:
        """Check whether an integer is a truth value that is computed with."""
        ((monomial, coefficient),) = poly.items() if len(poly) == 1 else (((), 0),)
        return coefficient == 1 and len(monomial) == 1 and monomial[0] in self._truths

    def make(self, poly: Poly) -> Any:
        """Return the number that a polynomial is: a symbolic one, or an int where nothing is unknown in it."""
        known = numbers.constant(poly)
        return SymbolicInt(self, poly, self.hint_of(poly)) if known is None else known

    def hint_of(self, poly: Poly) -> int | None:
        """Return what a polynomial is in this call."""
        total = 0
        for monomial, coefficient in poly.items():
            for i in monomial:
                hint = self.atoms[i].hint
                if hint is None:
                    return None
                coefficient *= hint
            total += coefficient
        return total

    # -- comparisons --------------------------------------------------------------------------------------------------
    def _bounds(self, poly: Poly) -> tuple[int | None, int | None]:
        """Between what a polynomial is.

        To thunder itself, which asks because it has to say what an operation gives, a number that only running tells
        is neither 0 nor 1: what it emits is right for these too, or fails (sizes that broadcast). A program that asks
        is told what is known, and so is thunder of numbers that are parts of a total or at most 2: these may be small.
        """
        low, high = numbers.bounds(poly, self.atoms)
        if state.frontend is not None or all(self.atoms[i].hint is not None for m in poly for i in m):
            return low, high
        usual = [
            Atom(a.index, a.kind, a.operands, None, max(2, a.low or 2), a.high, a.proxy) if self._is_usual(a) else a
            for a in self.atoms
        ]
        return numbers.bounds(poly, usual)

    def _is_usual(self, atom: Atom) -> bool:
        """Check whether a number that only running tells is taken not to be 0 or 1."""
        if atom.hint is not None or atom.index in self._parts or (atom.high is not None and atom.high <= 2):
            return False
        return atom.kind == "leaf" or (atom.kind in ("max", "min") and (atom.low or 0) >= 0)

    def is_quotient(self, term: tuple[tuple[int, ...], int]) -> bool:
        """Check whether a term is nothing but a quotient, a remainder or a comparison."""
        monomial, coefficient = term
        return coefficient == 1 and len(monomial) == 1 and self.atoms[monomial[0]].kind in INFIX

    def known_at_most_zero(self, poly: Poly) -> bool | None:
        """Check whether `poly <= 0`, where that is known of all calls."""
        low, high = self._bounds(poly)
        if (high is not None and high <= 0) or self.never_above_zero(poly):
            return True
        return False if low is not None and low > 0 else None

    def never_above_zero(self, poly: Poly) -> bool:
        """Check whether `poly <= 0` whatever only running tells, by bounds or by what was assumed."""
        high = numbers.bounds(poly, self.atoms)[1]
        return (high is not None and high <= 0) or ("<=", key_of_poly(poly)) in self._constraints

    def known_zero(self, poly: Poly) -> bool | None:
        """Check whether `poly == 0`, where that is known of all calls."""
        poly = self._reduced(poly)
        known = numbers.constant(poly)
        if known is not None:
            return known == 0
        low, high = self._bounds(poly)
        if (low is not None and low > 0) or (high is not None and high < 0):
            return False
        if low is not None and low == high:
            return low == 0
        return False if poly.get((), 0) % numbers.common_factor(poly) else None

    def at_most_zero(self, poly: Poly) -> bool:
        """Compute `poly <= 0`, if need be by what it is in this call."""
        poly = self._reduced(poly)
        found = self.known_at_most_zero(poly)
        if found is None:
            hint = self.hint_of(poly)
            if hint is None:
                raise self.is_unbacked(self._relation(poly, "<="))
            found = hint <= 0
            self._assume_at_most_zero(poly if found else numbers.add({(): 1}, poly, -1))
        return found

    def zero(self, poly: Poly) -> bool:
        """Compute `poly == 0`, if need be by what it is in this call."""
        found = self.known_zero(poly)
        if found is None:
            poly = _signed(self._reduced(poly))
            for relation in ("==", "!="):
                if (relation, key_of_poly(poly)) in self._constraints:
                    return relation == "=="
            hint = self.hint_of(poly)
            if hint is None:
                if state.frontend is None and -poly.get((), 0) in (0, 1) and all(c > 0 for m, c in poly.items() if m):
                    return False  # a size, as thunder itself asks of it: see `_bounds`
                raise self.is_unbacked(self._relation(poly, "=="))
            found = hint == 0
            if found:
                self.assume_zero(poly)
            else:
                self._note(("!=", key_of_poly(poly)), self._relation(poly, "!="))
        return found

    def assume_zero(self, poly: Poly) -> None:
        """From now on `poly == 0`."""
        poly = _signed(self._reduced(poly))
        if numbers.constant(poly) is not None:
            return
        self._note(("==", key_of_poly(poly)), self._relation(poly, "=="))
        for sign in (1, -1):
            parts = {i for m, c in poly.items() if c * sign > 0 for i in m}
            self._parts.update(parts if len(parts) > 1 else ())

        def others(term: tuple[tuple[int, ...], int]) -> int:
            """Return how many of the rest have its sign: a total stands for its parts rather than a part for a
            difference.
            """
            return sum(c * term[1] > 0 for m, c in poly.items() if m and m != term[0])

        for monomial, coefficient in sorted(sorted(poly.items(), reverse=True), key=others):
            atom = monomial[0] if len(monomial) == 1 else None
            if atom is None or abs(coefficient) != 1 or sum(atom in m for m in poly) > 1:
                continue
            rest = {m: -coefficient * c for m, c in poly.items() if m != monomial}
            low, high = numbers.bounds(rest, self.atoms)
            self._narrow(self.atoms[atom], low, high)
            self._known[atom] = rest
            return
        # What stands for a product is less than it in the order of monomials.
        product = max((m for m in poly if len(m) > 1), key=lambda m: (len(m), m), default=())
        if abs(poly.get(product, 0)) == 1 and product:
            self._products[product] = {m: -poly[product] * c for m, c in poly.items() if m != product}

    def _reduced(self, poly: Poly) -> Poly:
        """Return a polynomial without what is known to be equal to something else."""
        poly = numbers.replace(poly, self._known)
        for _ in range(16):  # one may make room for the next
            found = next((p for p in self._products if p in poly), None)
            if found is None:
                break
            factor = poly[found]
            poly = numbers.add({m: c for m, c in poly.items() if m != found}, self._products[found], factor)
            poly = numbers.replace(poly, self._known)
        return poly

    def _assume_at_most_zero(self, poly: Poly) -> None:
        self._note(("<=", key_of_poly(poly)), self._relation(poly, "<="))
        unknown = [m for m in poly if m]
        if len(unknown) == 1 and len(unknown[0]) == 1:
            coefficient, limit = poly[unknown[0]], -poly.get((), 0)
            atom = self.atoms[unknown[0][0]]
            if coefficient > 0:
                self._narrow(atom, None, limit // coefficient)
            else:
                self._narrow(atom, -(limit // -coefficient), None)

    def _narrow(self, atom: Atom, low: int | None, high: int | None) -> None:
        if low is not None and (atom.low is None or low > atom.low):
            atom.low = low
        if high is not None and (atom.high is None or high < atom.high):
            atom.high = high

    def assume(self, left: Any, relation: str, right: Any) -> None:
        """From now on `left <relation> right`, which the caller has checked or checks when the program runs."""
        d = self._reduced(numbers.add(poly_of(left), poly_of(right), -1))
        if relation in (">", ">="):
            d = {m: -c for m, c in d.items()}
        if relation in ("<", ">"):
            d = numbers.add(d, {(): 1})
        constraints, self._constraints = self._constraints, _Unnoted()
        try:
            if relation == "==":
                self.assume_zero(d)
            else:
                self._assume_at_most_zero(d)
        finally:
            self._constraints = constraints

    def compare(self, left: Any, relation: str, right: Any, found: bool) -> bool:
        """Note what was found of numbers of which one is a float; returns it."""
        constraint = Constraint(left, relation if found else _OPPOSITE[relation], right)
        self._note((constraint.relation, key_of(left), key_of(right)), constraint)
        return found

    def specialize(self, x: Any) -> Any:
        """Return the number that a symbolic one is in this call, which is from now on what it is."""
        if isinstance(x, SymbolicInt):
            known = numbers.constant(self._reduced(x.poly))
            if known is not None:
                return known
            if x.hint is None:
                raise self.is_unbacked(None, x)
            self.assume_zero(numbers.add(x.poly, {(): x.hint}, -1))
        else:
            if x.hint is None:
                raise self.is_unbacked(None, x)
            self._note(("is", key_of(x)), Constraint(x, "==", x.hint))
        return x.hint

    def _note(self, key: Any, constraint: Constraint) -> None:
        thread = threading.get_ident()
        if self._closed_on == thread and key not in self._constraints:
            raise TracingError(
                f"a further program, compiled when it was first needed, is only right where {constraint.text()}, which "
                "nobody checks. Call thunder.reset(), after which sizes and numbers are constants until they change"
            )
        if not self.closed and thread == self._thread:
            self._constraints.setdefault(key, constraint)

    @contextmanager
    def no_new_constraints(self) -> Iterator[None]:
        """Forbid new assumptions on this thread: a program is compiled whose guards are written already."""
        before, self._closed_on = self._closed_on, threading.get_ident()
        try:
            yield
        finally:
            self._closed_on = before

    def _relation(self, poly: Poly, relation: str) -> Constraint:
        """Compute `poly <relation> 0` as a person would write it."""
        left = {m: c for m, c in poly.items() if c > 0 and m}
        right = {m: -c for m, c in poly.items() if c < 0 and m}
        rest = poly.get((), 0)
        if not left:
            left, right, rest, relation = right, left, -rest, _MIRRORED[relation]
        strict = {"<=": (1, "<"), ">=": (-1, ">")}.get(relation)
        if right and strict is not None and rest == strict[0]:
            rest, relation = 0, strict[1]
        right = numbers.add(right, {(): -rest}) if rest else right
        return Constraint(self.make(left), relation, self.make(right))

    def deferred(self, left: Any, relation: str, right: Any) -> DeferredBool:
        """Return the answer to a comparison of data-dependent numbers."""
        return DeferredBool(self, self.truth(relation, (left, right)).poly, Constraint(left, relation, right))

    def is_unbacked(self, constraint: Constraint | None, x: Any = None) -> DataDependentError:
        asked = f"whether {constraint.text()}" if constraint is not None else f"the number {x.text()}"
        return DataDependentError(
            f"the program needs to know {asked}, which is computed by the program and not known while tracing. Ways "
            "out: compute with tensors (torch.where, masks), choose with torch.cond, say what always holds with "
            "torch._check(...), pass the number as an argument, call thunder.jit on the parts before and after, or put "
            "the line into a function that stays Python (thunder.disable)",
            asked=tuple([p.name for p in (x if constraint is None else constraint).leaves if p.value is None]),
        )

    # -- text ---------------------------------------------------------------------------------------------------------
    def atom_text(self, index: int, said: Callable[[NumberProxy], str] | None) -> str:
        """Return an atom as Python, in parentheses where it needs them."""
        atom = self.atoms[index]
        if atom.proxy is not None:
            return said(atom.proxy) if said is not None else atom.proxy.name
        text = written(atom.kind, [numbers.text_of(x, said) for x in atom.operands])
        return f"({text})" if atom.kind in INFIX else text

    def atom_leaves(self, index: int, found: dict[str, NumberProxy]) -> None:
        """Add the leaves below an atom."""
        atom = self.atoms[index]
        if atom.proxy is not None:
            found[atom.proxy.name] = atom.proxy
        for x in atom.operands:
            if isinstance(x, SymbolicNumber):
                found.update((p.name, p) for p in x.leaves)

    def atom_value(self, index: int, mapping: Callable[[NumberProxy], Any]) -> Any:
        """Return an atom with other leaves."""
        atom = self.atoms[index]
        if atom.proxy is not None:
            return number_of(mapping(atom.proxy))
        operands = [x.substitute(mapping) if isinstance(x, SymbolicNumber) else x for x in atom.operands]
        return APPLY[atom.kind](*operands)


_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", "<=": ">", ">": "<="}
_MIRRORED = {"==": "==", "!=": "!=", "<=": ">=", ">=": "<=", "<": ">", ">": "<"}


class _Unnoted(dict[Any, Any]):
    """Takes constraints that nobody has to check."""

    def __contains__(self, key: object) -> bool:
        return True


def _signed(poly: Poly) -> Poly:
    """Return a polynomial or its negation: the same for both."""
    return {m: -c for m, c in poly.items()} if poly and poly[max(poly)] < 0 else poly


def symbols_of(trace: ActiveTrace) -> Symbols:
    """Return the symbolic numbers of a trace, and of all that are derived from it."""
    found = trace.info.get("symbols")
    if found is None:
        found = trace.info["symbols"] = Symbols(trace.make_name)
    return found
