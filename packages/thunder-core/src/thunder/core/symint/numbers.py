# SPDX-License-Identifier: Apache-2.0
"""Symbolic numbers of the IR, and the integer algebra, which determines the comparisons that need no guard.

A *leaf* is a `NumberProxy`, with a name in the trace. It is an input of the program (a size of a tensor or a Python
number), or is computed from a tensor. A `SymbolicNumber` is an expression of leaves, which user code computes while
it is traced. Symbolic numbers appear in shapes and in arguments of operations. They print as Python, e.g.
`ltorch.reshape(x, (s0 * s1, 4))`, and are evaluated when the program runs. `core/symint/symbols.py` creates them as
instances of subclasses of torch's `SymInt` and `SymFloat`.

An integer expression is a polynomial, `{monomial: coefficient}`, over *atoms*. Atoms are leaves and operations that are
not polynomials, such as inexact quotients and remainders. A monomial is the sorted tuple of the indices of its atoms.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

__all__ = [
    "OPPOSITE",
    "Atom",
    "Constraint",
    "Leaf",
    "Poly",
    "SymbolicNumber",
    "always",
    "bounds",
    "converted",
    "equal_shapes",
    "greater",
    "has_unbacked",
    "index",
    "is_unbacked",
    "same_number",
    "same_shape",
    "specialized",
    "text_of",
]

Poly = dict[tuple[int, ...], int]

#: The relation of two numbers if another one is false.
OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", "<=": ">", ">": "<="}


#: A leaf is a `NumberProxy`, which this module cannot import: proxies have shapes, which contain symbolic numbers.
Leaf = Any


class SymbolicNumber:
    """An expression of `NumberProxy` values of the trace, which is evaluated when the program runs."""

    __slots__ = ()
    hint: Any  # the number's value in the call that is being traced; None if the number is unbacked

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The leaves of the expression."""
        raise NotImplementedError

    def text(self, leaf_text: Callable[[Leaf], str] | None = None) -> str:
        """Return the expression as Python source; `leaf_text` formats a leaf (default: the leaf's name)."""
        raise NotImplementedError

    def substitute(self, mapping: Callable[[Leaf], Any]) -> Any:
        """Replace each leaf by the number, expression or `NumberProxy` that `mapping` returns for it."""
        raise NotImplementedError

    def same(self, other: Any) -> bool:
        """Check whether the number is known to equal `other` for all values of the leaves. Adds no constraint."""
        raise NotImplementedError


def in_parentheses(text: str) -> str:
    """Return Python source for use as an operand, in parentheses if necessary."""
    return f"({text})" if " " in text or text.startswith("-") else text


def text_of(x: Any, leaf_text: Callable[[Leaf], str] | None = None) -> str:
    """Return a number, symbolic or not, as Python source."""
    if isinstance(x, SymbolicNumber):
        return x.text(leaf_text)
    return f'float("{x}")' if isinstance(x, float) and not math.isfinite(x) else repr(x)


def index(n: Any) -> Any:
    """Compute `operator.index(n)`, but keep a symbolic integer symbolic."""
    return n if isinstance(n, SymbolicNumber) and isinstance(n, int) else operator.index(n)


def converted(x: Any, kind: type) -> Any:
    """Compute `kind(x)` for a Python number type, but keep a symbolic number symbolic if possible."""
    if isinstance(x, SymbolicNumber):
        if kind is x.__class__:
            return x
        if kind is float:
            return x.__sym_float__()  # type: ignore[attr-defined]
        if kind is int:
            return x.__trunc__()  # type: ignore[attr-defined]
    return kind(x)


def specialized(x: Any, *, hinted: type | tuple[type, ...] = ()) -> Any:
    """Specialize the symbolic numbers in an argument: replace them by their hints, and add equality constraints.

    Numbers of the types `hinted` get no constraint, because their values do not matter: 1 stands for an unbacked one.
    """
    if isinstance(x, SymbolicNumber):
        kind = float if isinstance(x, float) else int
        if isinstance(x, hinted):
            return kind(1 if x.hint is None else x.hint)
        return kind(x)  # type: ignore[arg-type, call-overload]
    if type(x) in (tuple, list):
        return type(x)([specialized(i, hinted=hinted) for i in x])
    if type(x) is dict:
        return {k: specialized(v, hinted=hinted) for k, v in x.items()}
    if type(x) is slice:
        return slice(*[specialized(i, hinted=hinted) for i in (x.start, x.stop, x.step)])
    return x


def is_unbacked(*xs: Any) -> bool:
    """Check whether any of the numbers is unbacked: symbolic and without a hint, because it is data-dependent."""
    return any(isinstance(x, SymbolicNumber) and x.hint is None for x in xs)


def has_unbacked(x: Any) -> bool:
    """Check whether an argument contains an unbacked number."""
    if type(x) in (tuple, list):
        return any(map(has_unbacked, x))
    if type(x) is dict:
        return any(map(has_unbacked, x.values()))
    if type(x) is slice:
        return is_unbacked(x.start, x.stop, x.step)
    return is_unbacked(x)


def always(left: Any, relation: str, right: Any) -> bool | None:
    """Return True or False if `left <relation> right` has this result for all inputs; None if that is not known."""
    known: Any = left if isinstance(left, SymbolicNumber) else right
    difference = add(known.poly_of(left), known.poly_of(right), -1)
    low, high = bounds(difference, known.symbols.atoms)
    if relation == "==":
        if low is not None and low == high == 0:
            return True
        return False if (low or 0) > 0 or (high or 0) < 0 else None
    if relation in (">", ">="):
        low, high = None if high is None else -high, None if low is None else -low
    limit = -1 if relation in ("<", ">") else 0
    if high is not None and high <= limit:
        return True
    return False if low is not None and low > limit else None


def greater(a: Any, b: Any) -> Any:
    """Return the maximum of two integers, which may be unbacked."""
    if isinstance(a, SymbolicNumber):
        return a.at_least(b)  # type: ignore[attr-defined]
    return b.at_least(a) if isinstance(b, SymbolicNumber) else max(a, b)  # type: ignore[attr-defined]


def same_number(a: Any, b: Any) -> bool:
    """Check whether two sizes are known to be equal. Unlike `==` of symbolic numbers, this adds no constraint."""
    if a is b:
        return True
    if isinstance(a, SymbolicNumber):
        return a.same(b)
    return b.same(a) if isinstance(b, SymbolicNumber) else bool(a == b)


def same_shape(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Check whether two shapes are known to be equal. Adds no constraint."""
    if a is b:
        return True
    if len(a) != len(b):
        return False
    for m, n in zip(a, b):  # noqa: SIM110  a generator is slower, and this runs for each operation
        if m is not n and not same_number(m, n):
            return False
    return True


def equal_shapes(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Check whether two shapes are equal; sizes may be compared by their hints, which adds constraints.

    If the lengths differ, no sizes are compared, unlike with `==` of tuples.
    """
    return a is b or (len(a) == len(b) and a == b)


class Constraint(NamedTuple):
    """A condition that the program relies on, `left <relation> right`; either side may be symbolic."""

    left: Any
    relation: str
    right: Any

    def text(self, leaf_text: Callable[[Leaf], str] | None = None) -> str:
        """Return the condition as Python source."""
        left, right = text_of(self.left, leaf_text), text_of(self.right, leaf_text)
        return f"{left} {self.relation} {right}"

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The leaves of both sides."""
        found: dict[str, Leaf] = {}
        for x in (self.left, self.right):
            if isinstance(x, SymbolicNumber):
                found.update((p.name, p) for p in x.leaves)
        return tuple(found.values())


class Atom:
    """An indeterminate of the polynomials: a leaf, or an operation that the algebra treats as opaque."""

    __slots__ = ("high", "hint", "index", "kind", "low", "operands", "proxy")

    def __init__(
        self, index: int, kind: str, operands: tuple[Any, ...], hint: Any, low: int | None, high: int | None,
        proxy: Leaf | None = None,
    ):  # fmt: skip
        self.index = index
        self.kind = kind  # "leaf", or the Python operator or function that is called with `operands`
        self.operands = operands
        self.hint = hint
        self.low = low
        self.high = high
        self.proxy = proxy


# -- polynomials ------------------------------------------------------------------------------------------------------
def add(a: Poly, b: Poly, factor: int = 1) -> Poly:
    """Compute a + factor * b."""
    out = dict(a)
    for monomial, coefficient in b.items():
        total = out.get(monomial, 0) + factor * coefficient
        if total:
            out[monomial] = total
        else:
            out.pop(monomial, None)
    return out


def multiply(a: Poly, b: Poly) -> Poly:
    """Compute a * b."""
    out: Poly = {}
    for m, c in a.items():
        for n, d in b.items():
            product = tuple(sorted(m + n)) if m and n else m or n
            total = out.get(product, 0) + c * d
            if total:
                out[product] = total
            else:
                out.pop(product, None)
    return out


def constant(poly: Poly) -> int | None:
    """Return the value of a constant polynomial, or None if the polynomial is not constant."""
    if not poly:
        return 0
    return poly.get(()) if len(poly) == 1 else None


def divide(a: Poly, b: Poly) -> tuple[Poly, Poly]:
    """Return `q, r` with `a == q * b + r`, by polynomial division by the leading term of `b`."""
    lead = max(b, key=_order)
    factor = b[lead]
    q: Poly = {}
    r: Poly = {}
    left = dict(a)
    while left:
        monomial = max(left, key=_order)
        rest, coefficient = _without(monomial, lead), left[monomial]
        if rest is None or coefficient % factor:
            r[monomial] = left.pop(monomial)
            continue
        q[rest] = coefficient // factor
        left = add(left, multiply({rest: q[rest]}, b), -1)  # cancels the leading term, so the loop ends
    return q, r


def _order(monomial: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """Return the key of the graded order. Multiplication preserves this order, as polynomial division requires."""
    return len(monomial), monomial


def _without(monomial: tuple[int, ...], divisor: tuple[int, ...]) -> tuple[int, ...] | None:
    rest = list(monomial)
    for atom in divisor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def replace(poly: Poly, known: Mapping[int, Poly]) -> Poly:
    """Replace atoms by the polynomials in `known`, until no atom of `known` remains."""
    while any(atom in known for monomial in poly for atom in monomial):
        poly = replace_each(poly, known)
    return poly


def replace_each(poly: Poly, by: Mapping[int, Poly]) -> Poly:
    """Replace each atom by its polynomial in `by`, once."""
    out: Poly = {}
    for monomial, coefficient in poly.items():
        term: Poly = {tuple(a for a in monomial if a not in by): coefficient}
        for atom in monomial:
            if atom in by:
                term = multiply(term, by[atom])
        out = add(out, term)
    return out


Interval = tuple["int | None", "int | None"]  # None: no bound is known


def _sum(a: Interval, b: Interval) -> Interval:
    low, high = (None if x is None or y is None else x + y for x, y in zip(a, b))
    return low, high


def _product(a: Interval, b: Interval) -> Interval:
    corners = [0 if 0 in (x, y) else x * y for x in _ends(a) for y in _ends(b)]
    low, high = min(corners), max(corners)
    return None if low == -math.inf else int(low), None if high == math.inf else int(high)


def _ends(a: Interval) -> tuple[float, float]:
    low, high = a
    return -math.inf if low is None else low, math.inf if high is None else high


def bounds(poly: Poly, atoms: list[Atom]) -> Interval:
    """Return a lower and an upper bound of a polynomial; an unknown bound is None."""
    low, high = _interval(poly, atoms)
    if (low is None or high is None) and any(len(m) > 1 for m in poly):
        least, most = _interval_above(poly, atoms)
        low, high = least if low is None else low, most if high is None else high
    if low is None:
        relaxed, scale = _without_quotients(poly, atoms, upper=False)
        found = _interval(relaxed, atoms)[0] if scale else None
        low = None if found is None else -(-found // scale)
    if high is None:
        relaxed, scale = _without_quotients(poly, atoms, upper=True)
        found = _interval(relaxed, atoms)[1] if scale else None
        high = None if found is None else found // scale
    return low, high


def _without_quotients(poly: Poly, atoms: list[Atom], *, upper: bool) -> tuple[Poly, int]:
    """Return a polynomial without quotients that bounds `scale * poly` from above (`upper`) or below, and the scale.

    The bounds follow from `r - c < c * (r // c) <= r`. The scale is 0 if there are no quotients.
    """
    quotients: list[tuple[tuple[int, ...], Poly, int]] = []
    for monomial in poly:
        atom = atoms[monomial[0]] if len(monomial) == 1 else None
        if atom is not None and atom.kind == "//" and type(atom.operands[1]) is int and atom.operands[1] > 0:
            quotients.append((monomial, atom.operands[0].poly, atom.operands[1]))
    scale = math.lcm(*[divisor for _, _, divisor in quotients]) if quotients else 0
    out = {monomial: scale * coefficient for monomial, coefficient in poly.items()}
    # All factors are removed before any substitution, because the operand of a quotient may contain another quotient.
    factors = [out.pop(monomial) // divisor for monomial, _, divisor in quotients]
    for (_, of, divisor), factor in zip(quotients, factors):
        out = add(out, of, factor)
        if (factor > 0) is not upper and divisor > 1:
            out = add(out, {(): 1 - divisor}, factor)
    return out, scale


def _interval(poly: Poly, atoms: list[Atom]) -> Interval:
    constant_term = poly.get((), 0)
    unknown = {m: c for m, c in poly.items() if m}
    shared = _shared_atoms(list(unknown)) if len(unknown) > 1 else ()
    total: Interval = (0, 0)
    for monomial, coefficient in unknown.items():
        term: Interval = (coefficient, coefficient)
        for i in _without(monomial, shared) or ():
            term = _product(term, (atoms[i].low, atoms[i].high))
        total = _sum(total, term)
    for i in shared:
        total = _product((atoms[i].low, atoms[i].high), total)
    return _sum(total, (constant_term, constant_term))


def _interval_above(poly: Poly, atoms: list[Atom]) -> Interval:
    """Bound a polynomial after shifting each atom by its lower bound, so that all atoms are nonnegative.

    If all terms then have the same sign, the constant term is a bound. An example is `n - m * n` for n, m >= 1.
    """
    least = {i: atoms[i].low for monomial in poly for i in monomial}
    if None in least.values():
        return None, None
    above = replace_each(poly, {i: {(i,): 1, (): low} if low else {(i,): 1} for i, low in least.items() if low})
    signs = {c > 0 for monomial, c in above.items() if monomial}
    here = above.get((), 0)
    return here if signs <= {True} else None, here if signs <= {False} else None


def _shared_atoms(monomials: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the atoms that are common factors of all monomials."""
    shared: list[int] = []
    rest = [list(m) for m in monomials]
    for atom in monomials[0]:
        if all(atom in m for m in rest):
            shared.append(atom)
            for m in rest:
                m.remove(atom)
    return tuple(shared)


def common_factor(poly: Poly) -> int:
    """Return the greatest common divisor of the coefficients, without the constant term."""
    return math.gcd(*[c for monomial, c in poly.items() if monomial])


def render(poly: Poly, atom_text: Callable[[int], str]) -> str:
    """Return a polynomial as Python source."""
    parts: list[str] = []
    for monomial, coefficient in sorted(poly.items(), key=lambda item: (-len(item[0]), item[0])):
        factors = [atom_text(i) for i in monomial]
        if abs(coefficient) != 1 or not factors:
            factors.append(str(abs(coefficient)))
        term = " * ".join(factors)
        if not parts:
            parts.append(f"-{term}" if coefficient < 0 else term)
        else:
            parts.append(f"- {term}" if coefficient < 0 else f"+ {term}")
    return " ".join(parts) or "0"
