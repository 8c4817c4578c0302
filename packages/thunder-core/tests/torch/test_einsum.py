# SPDX-License-Identifier: Apache-2.0
"""`einsum` on random equations, both ways to write them, against torch."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from outcomes import result_or_error

import thunder.torch as ltorch

LETTERS = "abcXy"


@st.composite
def equations(draw: Any) -> tuple[str, list[tuple[int, ...]]]:
    """An equation and the shapes of its operands: repeated letters, ones to be spread, ellipses, spaces."""
    sizes = {letter: draw(st.integers(0, 3)) for letter in LETTERS}
    ellipsis = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    sides, shapes = [], []
    for _ in range(draw(st.integers(1, 3))):
        letters = draw(st.lists(st.sampled_from(LETTERS), max_size=3))
        shape = [sizes[x] if letters.count(x) > 1 or draw(st.integers(0, 4)) else 1 for x in letters]
        at = draw(st.integers(0, len(letters)))
        if draw(st.booleans()):
            kept = ellipsis[draw(st.integers(0, len(ellipsis))) :]
            letters.insert(at, "...")
            shape[at:at] = kept
        sides.append("".join(letters))
        shapes.append(tuple(shape))
    equation = ",".join(sides)
    if draw(st.booleans()):
        known = sorted({x for side in sides for x in side.replace("...", "")})
        out = draw(st.lists(st.sampled_from(known), unique=True)) if known else []
        if draw(st.booleans()):
            out.insert(draw(st.integers(0, len(out))), "...")
        equation += draw(st.sampled_from(["->", " -> "])) + "".join(out)
    return equation, shapes


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=equations())
def test_random_equations(by_primitives: Any, case: tuple[str, list[tuple[int, ...]]]) -> None:
    """The same numbers, or the same type of error."""
    equation, shapes = case
    tensors = [torch.randn(s, dtype=torch.float64) for s in shapes]
    expected = result_or_error(torch.einsum, equation, *tensors)
    actual = result_or_error(by_primitives, ltorch.einsum, equation, *tensors)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(actual, expected)
    else:
        assert actual is expected


def test_sublists(as_eager: Any, by_primitives: Any, randn: Any) -> None:
    """Numbers for letters, `...` for an ellipsis, with and without an output."""
    a, b = randn(2, 2, 3), randn(3, 4)
    for args in (([..., 1], [1, 30], [..., 30]), ([..., 1], [1, 30])):
        first, second, *out = args
        as_eager(lambda a, b: torch.einsum(a, first, b, second, *out), a, b)
        given = (a.detach(), first, b.detach(), second, *out)
        torch.testing.assert_close(by_primitives(ltorch.einsum, *given), torch.einsum(*given))


def test_gradients(as_eager: Any, randn: Any) -> None:
    """Through diagonals, sums, spreading and several operands."""
    as_eager(lambda a: torch.einsum("iij->ji", a), randn(3, 3, 2))
    as_eager(lambda a, b, c: torch.einsum("bij,bjk,bk->bi", a, b, c), randn(2, 3, 4), randn(2, 4, 5), randn(2, 5))
    as_eager(lambda a, b: torch.einsum("ij,ij->j", a, b), randn(2, 3), randn(1, 3))
    as_eager(lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k), randn(2, 2, 3, 4), randn(2, 2, 5, 4))
