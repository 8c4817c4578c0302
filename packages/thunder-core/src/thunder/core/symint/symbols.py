# SPDX-License-Identifier: Apache-2.0
"""The table of a trace's symbolic numbers: sizes and Python numbers that user code computes with while it is traced.

`SymbolicInt` and `SymbolicFloat` are subclasses of `torch.SymInt` and `torch.SymFloat`, which all of torch accepts.
They have their own algebra (`core/symint/numbers.py`). torch's `ShapeEnv` is not used, because it needs sympy, which
takes 0.6 s to import and 20 to 70 µs for each comparison. The Python part of `ShapeEnv` is also private to torch.
`isinstance` reports symbolic numbers as `int` and `float`, so programs and meta functions treat them as numbers.

The uses of a symbolic number have these results:

- Arithmetic returns another expression.
- A comparison that the algebra cannot decide is decided by the number's *hint*, its value in this call. The result is
  recorded as a constraint (`Symbols.constraints`), which the prologue checks.
- A use that needs the value (`range`, `int()`, a dict key, `f"{n}"`, a C function) specializes the number: it gets the
  hint, and the constraint that the number equals the hint is recorded.
- An argument of an operation stays an expression of `NumberProxy` leaves, which the program evaluates when it runs.

`symbols_of(trace)` returns the table of a trace and creates it at the first use. These methods add a leaf:

- `symbols.size(hint)` and `symbols.number(value)` add a backed leaf, whose value comes from the prologue.
- `symbols.unbacked(int, low=0)` adds a data-dependent leaf, whose value is known only when the program runs. Its
  `.proxy` is the `NumberProxy` that an operation returns as its output, e.g. `prims.size`. The leaf has no hint.
  Therefore, a comparison that its bounds do not decide raises `DataDependentError`, which names the line and the
  workarounds. `symbols.assume(a, "<=", b)` adds a fact.

The only private part of torch that is used here is the interface of a SymInt's `node` (`core/symint/node.py`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from thunder.core.errors import DataDependentError, TracingError
from thunder.core.proxies import NumberProxy
from thunder.core.state import ActiveTrace, state
from thunder.core.symint import numbers
from thunder.core.symint.expressions import APPLY, INFIX, number_of, operation_text
from thunder.core.symint.functions import DeferredBool, SymbolicBool, SymbolicComplex
from thunder.core.symint.numbers import OPPOSITE, Atom, Constraint, Poly, SymbolicNumber
from thunder.core.symint.scalars import SymbolicFloat, SymbolicInt, key_of, key_of_poly, poly_of

__all__ = ["Constraint", "DataDependentError", "DeferredBool", "SymbolicFloat", "SymbolicInt", "Symbols", "symbols_of"]


class Symbols:
    """The symbolic numbers of one trace and the constraints on them."""

    def __init__(self, make_name: Callable[[str], str]):
        self._make_name = make_name
        self.atoms: list[Atom] = []
        self.leaves: dict[str, Any] = {}  # the leaves by the names of their proxies
        self._constraints: dict[Any, Constraint] = {}
        self._operations: dict[Any, Atom] = {}
        self._booleans: set[int] = set()  # the atoms that are booleans
        self._summands: set[int] = set()  # the atoms that are summands of an equality, such as sizes of a split
        # Known equalities of atoms and of products of atoms, which `_reduced` applies as rewrite rules.
        self._known: dict[int, Poly] = {}
        self._products: dict[tuple[int, ...], Poly] = {}
        self._thread = threading.get_ident()
        self._closed_on: int | None = None  # the thread on which new constraints are errors
        self.decisions: Any = None  # answers what is not known while tracing (`capture/guards/decisions.py`), or None
        self.closed = False  # True after the guards are generated: comparisons then add no constraints

    @property
    def is_foreign_thread(self) -> bool:
        """True if the current thread is not the tracing thread, e.g. if it read the number from a shared object.

        On other threads a symbolic number behaves like its hint, without constraints.
        """
        return not self.closed and threading.get_ident() != self._thread

    @property
    def constraints(self) -> list[Constraint]:
        """The constraints that the prologue must check, in order."""
        return list(self._constraints.values())

    # -- leaves -------------------------------------------------------------------------------------------------------
    def size(self, hint: int, name: str | None = None) -> Any:
        """Add a backed leaf for a size of an input, at least 2: sizes 0 and 1 specialize because they may broadcast."""
        return self._leaf(int, hint, name or self._make_name("s"), 2)

    def number(self, value: float, name: str | None = None) -> Any:
        """Add a backed leaf for an int or float that is an input."""
        return self._leaf(type(value), value, name or self._make_name("n"), None)

    def unbacked(self, python_type: type = int, *, low: int | None = None, high: int | None = None) -> Any:
        """Add an unbacked leaf, a data-dependent number; an int is between `low` and `high`."""
        return self._leaf(python_type, None, self._make_name("u"), low, high)

    def renewed(self, leaf: NumberProxy) -> NumberProxy:
        """Add an unbacked leaf of the same type and with the same bounds."""
        atom = next(atom for atom in self.atoms if atom.proxy is not None and atom.proxy.name == leaf.name)
        found: NumberProxy = self.unbacked(leaf.python_type, low=atom.low, high=atom.high).leaves[0]
        return found

    def _leaf(self, python_type: type, hint: Any, name: str, low: int | None, high: int | None = None) -> Any:
        proxy = NumberProxy(hint, python_type, name)
        atom = Atom(len(self.atoms), "leaf", (), hint, low, high, proxy)
        self.atoms.append(atom)
        out: Any
        if python_type is float:
            out = SymbolicFloat(self, "leaf", (proxy,), hint)
        elif python_type is bool:
            out = SymbolicBool(self, {(atom.index,): 1}, hint)
            self._booleans.add(atom.index)
        elif python_type is complex:
            out = SymbolicComplex(self, "leaf", (proxy,), hint)
        else:
            out = SymbolicInt(self, {(atom.index,): 1}, hint)
        proxy.symbol = out
        self.leaves[name] = out
        return out

    def operation(self, kind: str, operands: tuple[Any, ...], hint: Any, low: Any = None, high: Any = None) -> Any:
        """Return the integer result of an operation as an atom; equal operations have the same atom."""
        key = (kind, *[key_of(x) for x in operands])
        atom = self._operations.get(key)
        if atom is None:
            atom = self._operations[key] = Atom(len(self.atoms), kind, operands, hint, low, high)
            self.atoms.append(atom)
        return SymbolicInt(self, {(atom.index,): 1}, hint)

    def boolean(self, kind: str, operands: tuple[Any, ...]) -> Any:
        """Return the unbacked boolean result of an operation."""
        (monomial,) = self.operation(kind, operands, None, 0, 1).poly
        self._booleans.update(monomial)
        return SymbolicBool(self, {monomial: 1}, None)

    def is_boolean(self, poly: Poly) -> bool:
        """Check whether an integer is a boolean used as a number."""
        ((monomial, coefficient),) = poly.items() if len(poly) == 1 else (((), 0),)
        return coefficient == 1 and len(monomial) == 1 and monomial[0] in self._booleans

    def make(self, poly: Poly) -> Any:
        """Return a polynomial as a symbolic number, or as an int if it is constant."""
        known = numbers.constant(poly)
        return SymbolicInt(self, poly, self.hint_of(poly)) if known is None else known

    def hint_of(self, poly: Poly) -> int | None:
        """Return the value of a polynomial in this call; None if it is unbacked."""
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
        """Return a lower and an upper bound of a polynomial.

        Meta functions assume that unbacked numbers are at least 2, like backed sizes. The operations that they record
        are also correct for 0 and 1, or fail (for sizes that would broadcast). User code gets the proven bounds. Meta
        functions also get the proven bounds for numbers that are often 0 or 1: summands of an equality, and numbers
        with an upper bound of 2 or less.
        """
        low, high = numbers.bounds(poly, self.atoms)
        if state.frontend is not None or all(self.atoms[i].hint is not None for m in poly for i in m):
            return low, high
        assumed = [
            Atom(a.index, a.kind, a.operands, None, max(2, a.low or 2), a.high, a.proxy)
            if self._is_assumed_above_one(a)
            else a
            for a in self.atoms
        ]
        return numbers.bounds(poly, assumed)

    def _is_assumed_above_one(self, atom: Atom) -> bool:
        """Check whether a number is unbacked, and meta functions may assume that it is at least 2."""
        if atom.hint is not None or atom.index in self._summands or (atom.high is not None and atom.high <= 2):
            return False
        return atom.kind == "leaf" or (atom.kind in ("max", "min") and (atom.low or 0) >= 0)

    def is_quotient(self, term: tuple[tuple[int, ...], int]) -> bool:
        """Check whether a term is a single infix operation: a quotient, a remainder or a comparison."""
        monomial, coefficient = term
        return coefficient == 1 and len(monomial) == 1 and self.atoms[monomial[0]].kind in INFIX

    def known_at_most_zero(self, poly: Poly) -> bool | None:
        """Return True or False if `poly <= 0` has this result in all calls; None if that is not known."""
        low, high = self._bounds(poly)
        if (high is not None and high <= 0) or self.never_above_zero(poly):
            return True
        return False if low is not None and low > 0 else None

    def never_above_zero(self, poly: Poly) -> bool:
        """Check whether bounds or constraints prove `poly <= 0`, including unbacked numbers that are 0 or 1."""
        high = numbers.bounds(poly, self.atoms)[1]
        return (high is not None and high <= 0) or ("<=", key_of_poly(poly)) in self._constraints

    def known_zero(self, poly: Poly) -> bool | None:
        """Return True or False if `poly == 0` has this result in all calls; None if that is not known."""
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
        """Decide `poly <= 0`. If the result is not known, decide by the hint and add a constraint."""
        poly = self._reduced(poly)
        found = self.known_at_most_zero(poly)
        if found is None:
            hint = self.hint_of(poly)
            if hint is None:
                return self.answered(self._relation(poly, "<="))
            found = hint <= 0
            self._assume_at_most_zero(poly if found else numbers.add({(): 1}, poly, -1))
        return found

    def zero(self, poly: Poly) -> bool:
        """Decide `poly == 0`. If the result is not known, decide by the hint and add a constraint."""
        found = self.known_zero(poly)
        if found is None:
            poly = _signed(self._reduced(poly))
            for relation in ("==", "!="):
                if (relation, key_of_poly(poly)) in self._constraints:
                    return relation == "=="
            hint = self.hint_of(poly)
            if hint is None:
                if state.frontend is None and -poly.get((), 0) in (0, 1) and all(c > 0 for m, c in poly.items() if m):
                    return False  # a meta function compares a size with 0 or 1: see `_bounds`
                return self.answered(self._relation(poly, "=="))
            found = hint == 0
            if found:
                self.assume_zero(poly)
            else:
                self._add_constraint(("!=", key_of_poly(poly)), self._relation(poly, "!="))
        return found

    def assume_zero(self, poly: Poly) -> None:
        """Add the constraint `poly == 0`, and solve it for an atom; if that is not possible, solve it for a product."""
        poly = _signed(self._reduced(poly))
        if numbers.constant(poly) is not None:
            return
        self._add_constraint(("==", key_of_poly(poly)), self._relation(poly, "=="))
        for sign in (1, -1):
            parts = {i for m, c in poly.items() if c * sign > 0 for i in m}
            self._summands.update(parts if len(parts) > 1 else ())

        def others(term: tuple[tuple[int, ...], int]) -> int:
            """Count the other terms with the sign of `term`, to solve for the total of a sum instead of a summand."""
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
        # The largest monomial is replaced by smaller monomials, so that rewriting terminates.
        product = max((m for m in poly if len(m) > 1), key=lambda m: (len(m), m), default=())
        if abs(poly.get(product, 0)) == 1 and product:
            self._products[product] = {m: -poly[product] * c for m, c in poly.items() if m != product}

    def _reduced(self, poly: Poly) -> Poly:
        """Apply the known equalities to a polynomial."""
        poly = numbers.replace(poly, self._known)
        for _ in range(16):  # rewriting one product may produce another
            found = next((p for p in self._products if p in poly), None)
            if found is None:
                break
            factor = poly[found]
            poly = numbers.add({m: c for m, c in poly.items() if m != found}, self._products[found], factor)
            poly = numbers.replace(poly, self._known)
        return poly

    def _assume_at_most_zero(self, poly: Poly) -> None:
        self._add_constraint(("<=", key_of_poly(poly)), self._relation(poly, "<="))
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
        """Assume `left <relation> right` without a constraint. The caller or the running program must check it."""
        d = self._reduced(numbers.add(poly_of(left), poly_of(right), -1))
        if relation in (">", ">="):
            d = {m: -c for m, c in d.items()}
        if relation in ("<", ">"):
            d = numbers.add(d, {(): 1})
        constraints, self._constraints = self._constraints, _DiscardedConstraints()
        try:
            if relation == "==":
                self.assume_zero(d)
            else:
                self._assume_at_most_zero(d)
        finally:
            self._constraints = constraints

    def compare(self, left: Any, relation: str, right: Any, found: bool) -> bool:
        """Add the constraint that a comparison with a float has the result `found`; return `found`."""
        constraint = Constraint(left, relation if found else OPPOSITE[relation], right)
        self._add_constraint((constraint.relation, key_of(left), key_of(right)), constraint)
        return found

    def specialize(self, x: Any) -> Any:
        """Return the hint of a symbolic number, and add the constraint that the number equals its hint."""
        if isinstance(x, SymbolicInt):
            known = numbers.constant(self._reduced(x.poly))
            if known is not None:
                return known
            if x.hint is None:
                return self.decided_value(x)
            self.assume_zero(numbers.add(x.poly, {(): x.hint}, -1))
        else:
            if x.hint is None:
                return self.decided_value(x)
            self._add_constraint(("is", key_of(x)), Constraint(x, "==", x.hint))
            if type(x.hint) is float and x.hint == 0.0:  # 0.0 and -0.0 are equal, but not the same number
                sign = SymbolicFloat(self, "math.copysign", (1.0, x), None)
                self._add_constraint(("sign", key_of(x)), Constraint(sign, "==", math.copysign(1.0, x.hint)))
        return x.hint

    def constant_of(self, x: Any) -> int | None:
        """Return the value of a symbolic integer if the constraints allow one value only, else None."""
        poly = self._reduced(x.poly)
        low, high = self._bounds(poly)
        return numbers.constant(poly) if low is None or low != high else low

    def _add_constraint(self, key: Any, constraint: Constraint) -> None:
        thread = threading.get_ident()
        if self._closed_on == thread and key not in self._constraints:
            raise TracingError(
                f"a backward program that was compiled after its guards were written needs the constraint "
                f"{constraint.text()}, which no guard checks. Call thunder.reset(): new programs then treat sizes and "
                "numbers as static until they change"
            )
        if not self.closed and thread == self._thread:
            self._constraints.setdefault(key, constraint)

    @contextmanager
    def no_new_constraints(self) -> Iterator[None]:
        """Raise an error for new constraints on this thread, while a program with finished guards is compiled."""
        before, self._closed_on = self._closed_on, threading.get_ident()
        try:
            yield
        finally:
            self._closed_on = before

    def _relation(self, poly: Poly, relation: str) -> Constraint:
        """Return `poly <relation> 0` in readable form, e.g. `a < b` for `a - b + 1 <= 0`."""
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
        """Return the result of comparing unbacked numbers."""
        return DeferredBool(self, self.boolean(relation, (left, right)).poly, Constraint(left, relation, right))

    def decided(self, constraint: Constraint) -> bool:
        """Return whether a data-dependent condition is true in this call, or raise if that cannot be decided."""
        if self.decisions is None:
            raise self.data_dependent_error(constraint)
        return bool(self.decisions.condition(constraint))

    def answered(self, constraint: Constraint) -> bool:
        """Return a decision on a data-dependent condition that has been made before, or raise if there is none."""
        found = None if self.decisions is None else self.decisions.known(constraint)
        if found is None:
            raise self.data_dependent_error(constraint)
        return bool(found)

    def decided_value(self, x: Any) -> Any:
        """Return the value of a data-dependent number in this call, or raise if that cannot be decided."""
        if self.decisions is None:
            raise self.data_dependent_error(None, x)
        return self.decisions.value(x)

    def data_dependent_error(self, constraint: Constraint | None, x: Any = None) -> DataDependentError:
        """Return the error for a program that needs the value of an unbacked number or condition."""
        asked = f"whether {constraint.text()}" if constraint is not None else f"the number {x.text()}"
        return DataDependentError(
            f"the program needs to know {asked}, which is data-dependent: computed by the program and not known while "
            "tracing. Ways out: compute with tensors (torch.where, masks), branch with torch.cond, state what always "
            "holds with torch._check(...), pass the number as an argument, call thunder.jit on the parts before and "
            "after, or put the line into a function that stays Python (thunder.disable)",
            asked=tuple([p.name for p in (x if constraint is None else constraint).leaves if p.value is None]),
            condition=constraint,
        )

    # -- text ---------------------------------------------------------------------------------------------------------
    def atom_text(self, index: int, leaf_text: Callable[[NumberProxy], str] | None) -> str:
        """Return an atom as Python source, in parentheses if necessary."""
        atom = self.atoms[index]
        if atom.proxy is not None:
            return leaf_text(atom.proxy) if leaf_text is not None else atom.proxy.name
        text = operation_text(atom.kind, [numbers.text_of(x, leaf_text) for x in atom.operands])
        return f"({text})" if atom.kind in INFIX else text

    def atom_leaves(self, index: int, found: dict[str, NumberProxy]) -> None:
        """Add the leaves of an atom to `found`."""
        atom = self.atoms[index]
        if atom.proxy is not None:
            found[atom.proxy.name] = atom.proxy
        for x in atom.operands:
            if isinstance(x, SymbolicNumber):
                found.update((p.name, p) for p in x.leaves)

    def atom_value(self, index: int, mapping: Callable[[NumberProxy], Any]) -> Any:
        """Return an atom with its leaves replaced."""
        atom = self.atoms[index]
        if atom.proxy is not None:
            return number_of(mapping(atom.proxy))
        operands = [x.substitute(mapping) if isinstance(x, SymbolicNumber) else x for x in atom.operands]
        return APPLY[atom.kind](*operands)


_MIRRORED = {"==": "==", "!=": "!=", "<=": ">=", ">=": "<=", "<": ">", ">": "<"}


class _DiscardedConstraints(dict[Any, Any]):
    """A dictionary that discards constraints; it replaces `Symbols._constraints` during `Symbols.assume`."""

    def __contains__(self, key: object) -> bool:
        return True


def _signed(poly: Poly) -> Poly:
    """Return the polynomial or its negation, so that the leading coefficient is positive."""
    return {m: -c for m, c in poly.items()} if poly and poly[max(poly)] < 0 else poly


def symbols_of(trace: ActiveTrace) -> Symbols:
    """Return the table of a trace's symbolic numbers; derived traces share the table."""
    found = trace.info.get("symbols")
    if found is None:
        found = trace.info["symbols"] = Symbols(trace.make_name)
    return found
