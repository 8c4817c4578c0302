# SPDX-License-Identifier: Apache-2.0
"""Symbolic numbers: what they compute, and that their constraints are all that their decisions rest on."""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder.core.proxies import NumberProxy
from thunder.core.symbol import map_proxies, proxies_in
from thunder.core.symint.numbers import bounds, converted, equal_shapes, index, same_number, same_shape
from thunder.core.symint.symbols import DataDependentError, SymbolicFloat, SymbolicInt, Symbols, symbols_of
from thunder.core.trace import Trace


def fresh() -> Symbols:
    counter = itertools.count()
    return Symbols(lambda prefix: f"{prefix}{next(counter)}")


def texts(symbols: Symbols) -> list[str]:
    return [c.text() for c in symbols.constraints]


# -- what native Python does with them --------------------------------------------------------------------------------
def test_they_are_numbers_to_python_and_torch() -> None:
    symbols = fresh()
    n, x = symbols.size(4), symbols.number(0.5)
    assert isinstance(n, int) and isinstance(n, torch.SymInt) and not isinstance(n, float)
    assert isinstance(x, float) and isinstance(x, torch.SymFloat) and not isinstance(x, int)
    assert torch.Size((n, 3))[0] is n
    assert (n == "4") is False and (n == None) is False  # noqa: E711
    assert not texts(symbols)


def test_arithmetic_simplifies() -> None:
    symbols = fresh()
    a, b = symbols.size(4), symbols.size(6)
    assert ((a * b) // b).text() == "s0"
    assert ((4 * a + 3) // 2).text() == "s0 * 2 + 1"
    assert (a * 12) % 4 == 0 and (a * 12 + 7) % 4 == 3
    assert a - a == 0 and type(a - a) is int
    assert ((a + 1) * (a - 1)).text() == "s0 * s0 - 1"
    assert (-(-a // 2)).text() == "-((-s0) // 2)"
    assert (2**3 * a).text() == "s0 * 8" and (a**2).text() == "s0 * s0"
    assert (a / 2).text() == "s0 / 2" and isinstance(a / 2, SymbolicFloat)
    assert a * b == b * a and a + b - a == b
    assert (-(-(a * b + a - b) // (b + 1))).text() == "s0"
    assert ((a * b + a - 1) // (b + 1)).text() == "s0 - 1" and ((a * b + a) % (b + 1)) == 0
    assert not texts(symbols)


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 2), st.integers(0, 2)), max_size=4), st.integers(-3, 3),
       st.integers(-2, 2), st.integers(1, 3))  # fmt: skip
def test_division_is_that_of_numbers(terms: list[tuple[int, int, int]], of_a: int, of_b: int, rest: int) -> None:
    """Quotients, remainders and what bounds say of polynomials, for whatever they may be."""

    def made(a: Any, b: Any) -> tuple[Any, Any]:
        divisor = of_a * a + of_b * b + rest
        return sum((c * a**i * b**j for c, i, j in terms), 0), divisor

    symbols = fresh()
    a, b = symbols.size(4), symbols.size(6)
    x, divisor = made(a, b)
    if not isinstance(x, SymbolicInt) or not isinstance(divisor, SymbolicInt) or not divisor.hint:
        return
    quotient, remainder = x // divisor, x % divisor
    low, high = bounds(x.poly, symbols.atoms)
    for n, m in itertools.product((2, 3, 4, 7), (2, 5, 6)):
        numbers = {a.proxy.name: n, b.proxy.name: m}
        value, by = made(n, m)
        assert (low is None or low <= value) and (high is None or value <= high)
        if by:
            for found, expected in ((quotient, value // by), (remainder, value % by)):
                got = found.substitute(lambda p: numbers[p.name]) if isinstance(found, SymbolicInt) else found
                assert got == expected


def test_what_bounds_decide_needs_no_constraint() -> None:
    symbols = fresh()
    a, b = symbols.size(4), symbols.size(6)
    assert a != 1 and a > 0 and a * b > 3 and a <= a * b and a * b != a and a * (b - 1) != 1 and -a < 0
    assert 2 * a != 2 * b + 1
    assert b < a * b + a and a * b - a - b > -1 and a * b >= a + b
    assert not texts(symbols)


def test_what_is_known_is_not_noted_again() -> None:
    symbols = fresh()
    a, b, c = symbols.size(4), symbols.size(4), symbols.size(16)
    assert a == b and b == a and a * 3 == b * 3 and not a < b
    assert a * b == c and c == a * a
    assert a < 9 and a < 10 and a != 12
    assert texts(symbols) == ["s1 == s0", "s2 == s0 * s0", "s0 <= 8"]


def test_whatever_needs_the_number_makes_it_constant() -> None:
    for ask in (int, list_of, hash, float, lambda n: {4: 1}[n], lambda n: [0] * n, lambda n: "abcdefg"[n]):
        symbols = fresh()
        ask(symbols.size(4))
        assert texts(symbols) == ["s0 == 4"], ask
    symbols = fresh()
    n = symbols.size(4)
    assert n + 1 == 5 and int(n) == 4 and texts(symbols) == ["s0 == 4"]


def list_of(n: Any) -> list[int]:
    return list(range(n))


def test_floats_are_computed_as_they_were_written() -> None:
    symbols = fresh()
    x = symbols.number(0.1, "x")
    y = (x * 3) * 0.1 + 2 / x
    assert y.text() == "((x * 3) * 0.1) + (2 / x)"
    assert eval(y.text(), {"x": 0.7}) == (0.7 * 3) * 0.1 + 2 / 0.7
    assert math.floor(x * 25).text() == "math.floor(x * 25)"
    assert round(x * 25).text() == "round(x * 25)" and abs(-x).text() == "abs(-x)"
    assert x < 0.5 and not x >= 0.5
    assert texts(symbols) == ["x != 0", "x < 0.5"]
    assert torch.sym_float(symbols.size(3)).text().startswith("float(")


def test_text_is_python() -> None:
    symbols = fresh()
    x = symbols.number(0.5, "x")
    assert x < float("inf") and x > -math.inf and math.ceil(x * 4) > 1
    assert all(eval(text, {"x": 0.75, "math": math}) for text in texts(symbols)), texts(symbols)


def test_minimum_and_maximum() -> None:
    symbols = fresh()
    a, b = symbols.size(4), symbols.size(6)
    assert torch.sym_max(a, b).text() == "max(s0, s1)" and torch.sym_min(a, 1) == 1
    assert not texts(symbols)
    assert max(a, b) is b and texts(symbols) == ["s0 < s1"]


def test_closed_symbols_only_answer() -> None:
    symbols = fresh()
    n = symbols.size(4)
    symbols.closed = True
    assert n == 4 and int(n) == 4 and not texts(symbols)


# -- data-dependent numbers ----------------------------------------------------------------------------------
def test_unbacked_numbers() -> None:
    symbols = fresh()
    n = symbols.unbacked(int, low=0)
    assert n >= 0 and n + 1 > 0 and n == n and n * 2 - n == n
    for ask in (lambda: n == 3, lambda: int(n), lambda: list(range(n)), lambda: n > 2):
        with pytest.raises(DataDependentError, match=r"torch\.where"):
            ask()
    symbols.assume(n, ">=", 3)
    assert n > 2
    symbols.assume(n, "==", 5)
    assert n == 5 and int(n) == 5
    assert not texts(symbols)


def test_they_belong_to_a_trace() -> None:
    trace = Trace()
    symbols = symbols_of(trace)
    assert symbols_of(trace.derive()) is symbols
    n = symbols.size(4)
    assert isinstance(n.proxy, NumberProxy) and n.proxy.symbol is n
    e = n * 2 + 1
    assert proxies_in(((e,), {"k": slice(None, n)})) == [n.proxy, n.proxy]
    m = symbols.size(7)
    assert map_proxies((e, 3), lambda p: m.proxy)[0].text() == "s1 * 2 + 1"
    assert map_proxies((e, 3), lambda p: 5) == (11, 3)
    assert map_proxies(e, lambda p: p) is e


def test_comparing_shapes() -> None:
    symbols = fresh()
    a, b = symbols.size(4), symbols.size(4)
    assert same_shape((a, 3), (a, 3)) and not same_shape((a, 3), (b, 3)) and not same_number(a, 4)
    assert not equal_shapes((a,), (b, 3)) and not texts(symbols)
    assert equal_shapes((a,), (b,)) and texts(symbols) == ["s1 == s0"]
    assert index(a) is a and converted(a, int) is a and converted(a, float).text() == "float(s0)"


def test_what_other_threads_ask_is_no_constraint() -> None:
    import threading

    symbols = fresh()
    n = symbols.size(4)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(int(n)))
    thread.start()
    thread.join()
    assert found == [4] and not texts(symbols)


# -- soundness --------------------------------------------------------------------------------------------------------
def _power(a: Any, b: Any) -> Any:
    return a ** (b if abs(b) < 4 else 0.5)


_OPERATORS = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.floordiv,
    operator.mod,
    max,
    min,
    operator.truediv,
    _power,
]
_COMPARISONS = [operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge]

steps = st.lists(
    st.tuples(st.integers(0, 14), st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=8
)  # fmt: skip


def run(program: list[tuple[int, int, int]], inputs: list[Any]) -> tuple[list[Any], list[bool]]:
    """Runs a program of operations on earlier values and small numbers; its values, and what its comparisons gave."""
    values = [*inputs, 1, 2, 3, -1]
    decisions: list[bool] = []
    for kind, i, j in program:
        a, b = values[i % len(values)], values[j % len(values)]
        if kind >= len(_OPERATORS):
            decisions.append(bool(_COMPARISONS[kind - len(_OPERATORS)](a, b)))
            continue
        try:
            result = _OPERATORS[kind](a, b)
        except (ZeroDivisionError, OverflowError):
            decisions.append(False)
            continue
        values.append(0 if isinstance(result, complex) else result)
    return values, decisions


@settings(max_examples=300)
@given(steps, st.lists(st.integers(2, 7), min_size=3, max_size=3), st.lists(st.integers(2, 7), min_size=3, max_size=3))
def test_constraints_are_all_that_a_program_rests_on(
    program: list[tuple[int, int, int]], traced: list[int], called: list[int]
) -> None:
    """Where the constraints hold of other inputs, the program decides alike and its expressions give its values."""
    symbols = fresh()
    values, decisions = run(program, [symbols.size(n) for n in traced])
    native, native_decisions = run(program, traced)
    assert decisions == native_decisions
    assert [getattr(v, "hint", v) for v in values] == native
    scope = {f"s{i}": n for i, n in enumerate(called)} | {"math": math}
    if not all(eval(text, scope) for text in texts(symbols)):
        return
    wanted, wanted_decisions = run(program, called)
    assert decisions == wanted_decisions, texts(symbols)
    found = [eval(v.text(), scope) if isinstance(v, (SymbolicInt, SymbolicFloat)) else v for v in values]
    assert found == wanted, texts(symbols)
