# SPDX-License-Identifier: Apache-2.0
"""Scans in fusions: linear recurrences, cumulative sums and the like, and functions of users, compared with torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch._higher_order_ops.associative_scan import associative_scan

import thunder
from thunder import prims
from thunder_ex_triton.fusion import scans, tiles
from thunder_ex_triton.fusion.region import FusedRegion

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fuse scans of few rows, in short blocks."""
    monkeypatch.setattr(scans, "FEWEST_ROWS", 1)
    original = tiles._of_scans

    def short(rows: int, wide: int, along: bool) -> Any:
        return [t._replace(numbers=(t.numbers[0], min(t.numbers[1], 8))) for t in original(rows, wide, along)]

    monkeypatch.setattr(tiles, "_of_scans", short)


def make(*shape: int, dtype: torch.dtype = torch.float32, low: float = -2.0, high: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.rand(shape, generator=generator) * (high - low) + low).to(DEVICE, dtype)


def templates(jitted: Any) -> list[str]:
    traces = [*thunder.last_traces(jitted)[-1:], *thunder.last_backward_traces(jitted)[-1:]]
    found = [op.sym.fn for trace in traces for op in trace.bound_symbols]
    return [fn.template for fn in found if isinstance(fn, FusedRegion)]


def affine(left: Any, right: Any) -> Any:
    return left[0] * right[0], right[0] * left[1] + right[1]


def states(a: torch.Tensor, b: torch.Tensor, dim: int, reverse: bool = False) -> torch.Tensor:
    return associative_scan(affine, (a, b), dim, reverse, "generic")[1]


def loop(a: torch.Tensor, b: torch.Tensor, dim: int, reverse: bool = False) -> torch.Tensor:
    steps = [*zip(a.unbind(dim), b.unbind(dim))]
    found: list[torch.Tensor] = []
    for x, y in reversed(steps) if reverse else steps:
        found.append(x * found[-1] + y if found else y)
    return torch.stack(found[::-1] if reverse else found, dim)


# -- linear recurrences ------------------------------------------------------------------------------------------------
@settings(max_examples=8, phases=(Phase.generate,))  # each example compiles programs
@given(
    shape=st.lists(st.integers(1, 5), min_size=0, max_size=2),
    count=st.integers(2, 29),
    dim=st.integers(0, 2),
    reverse=st.booleans(),
    dtype=st.sampled_from([torch.float16, torch.float32, torch.float64]),
    swapped=st.booleans(),
)
def test_recurrences_and_their_gradients(
    shape: list[int], count: int, dim: int, reverse: bool, dtype: torch.dtype, swapped: bool
) -> None:
    dim = min(dim, len(shape))
    whole = [*shape[:dim], count, *shape[dim:]]
    given = [make(*whole, dtype=dtype, low=-1, high=1.2), make(*whole, dtype=dtype)]
    if swapped and len(whole) > 1:
        given[1] = given[1].transpose(0, -1).contiguous().transpose(0, -1)
    jitted = thunder.jit(lambda a, b: prims.linear_recurrence(a * 0.5, b, dim, reverse).sin(), executors=["triton"])
    inputs = [x.clone().requires_grad_() for x in given]
    exact = [x.double().requires_grad_() for x in given]
    found, expected = jitted(*inputs), loop(exact[0] * 0.5, exact[1], dim, reverse).sin()
    tolerance = {torch.float16: 4e-3, torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
    gradients = torch.autograd.grad(found.sum(), inputs), torch.autograd.grad(expected.sum(), exact)
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=4 * tolerance, atol=4 * tolerance)
    assert templates(jitted) == ["scan", "scan"]


def test_a_selective_scan_is_one_kernel_forward() -> None:
    """With what its operands are computed from, and conversions of its results."""

    def mixer(dt: Any, a: Any, b: Any, x: Any) -> Any:
        factors = torch.exp(dt[..., None] * a[None, :, None])
        return states(factors, dt[..., None] * b[:, None] * x[..., None], 2).transpose(1, 2).to(torch.float16)

    args = make(2, 3, 19, low=0, high=1), -make(3, 4, low=0, high=1), make(2, 19, 4), make(2, 3, 19)
    inputs = [x.requires_grad_() for x in args]
    jitted = thunder.jit(mixer, executors=["triton"])
    found = jitted(*inputs)
    expected = loop(
        torch.exp(args[0][..., None] * args[1][None, :, None]),
        args[0][..., None] * args[2][:, None] * args[3][..., None],
        2,
    )
    torch.testing.assert_close(found, expected.transpose(1, 2).to(torch.float16))
    assert templates(jitted)[0] == "scan" and templates(jitted).count("scan") == 2
    gradients = [torch.autograd.grad(x.float().square().sum(), inputs) for x in (found, expected.half())]
    torch.testing.assert_close(*gradients, rtol=1e-2, atol=1e-2)
    stored = [op for op in thunder.last_backward_traces(jitted)[-1].bound_symbols if op.sym.name == "Triton0"]
    assert len(stored[0].out_names) <= 5


def test_infinite_factors_before_the_first_element_do_not_matter() -> None:
    a, b = make(3, 20), make(3, 20)
    a[:, 0], a[1, 9] = math.inf, math.nan
    found = thunder.jit(lambda a, b: prims.linear_recurrence(a, b, 1), executors=["triton"])(a, b)
    torch.testing.assert_close(found, loop(a, b, 1), equal_nan=True)


def test_results_that_other_elements_need_are_in_another_kernel() -> None:
    """The states before each state, and a scan in the other direction."""

    def f(a: Any, b: Any) -> Any:
        h = states(a, b, 1)
        return states(a, torch.nn.functional.pad(h[:, :-1], (1, 0)), 1) * 2, states(a, h, 1, reverse=True)

    a, b = make(3, 20, low=-1, high=1), make(3, 20)
    jitted = thunder.jit(f, executors=["triton"])
    h = loop(a, b, 1)
    before = torch.nn.functional.pad(h[:, :-1], (1, 0))
    torch.testing.assert_close(jitted(a, b), (loop(a, before, 1) * 2, loop(a, h, 1, reverse=True)))
    assert len(templates(jitted)) >= 2


@pytest.mark.parametrize("count", [1, 2])
def test_short_rows(count: int) -> None:
    a, b = make(3, count), make(3, count)
    jitted = thunder.jit(lambda a, b: states(a, b, 1) * 2, executors=["triton"])
    torch.testing.assert_close(jitted(a, b), loop(a, b, 1) * 2)


def test_lengths_that_change() -> None:
    jitted = thunder.jit(lambda a, b: states(a, b * 2, 1), executors=["triton"], cache="symbolic values")
    for n in (7, 16, 33):
        a, b = make(3, n, 5, low=-1, high=1), make(3, n, 5)
        torch.testing.assert_close(jitted(a, b), loop(a, b * 2, 1))
    assert thunder.cache_misses(jitted) == 1


# -- torch's scans -----------------------------------------------------------------------------------------------------
SCANS: dict[str, Callable[..., Any]] = {
    "cumsum": torch.cumsum, "cumprod": torch.cumprod, "cummax": torch.cummax, "cummin": torch.cummin,
    "logcumsumexp": torch.logcumsumexp,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("name", SCANS)
def test_scans_of_torch(name: str, dtype: torch.dtype) -> None:
    if name == "logcumsumexp" and dtype is torch.int64:
        pytest.skip("torch does not support it")
    scan = SCANS[name]
    for shape, dim in (((5, 21), 1), ((21, 5), 0), ((2, 21, 3), 1)):
        x = make(*shape, dtype=dtype, low=-3 if name != "cumprod" else 0.5, high=3 if name != "cumprod" else 2)
        jitted = thunder.jit(lambda x, dim=dim: scan(x + 1, dim), executors=["triton"])
        found, expected = jitted(x), scan(x + 1, dim)
        pairs = zip(found, expected) if isinstance(expected, tuple) else [(found, expected)]
        for ours, theirs in pairs:
            tolerance = {torch.float16: 2e-2, torch.float32: 1e-5}.get(dtype, 1e-12)
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
            assert ours.stride() == theirs.stride()
        assert templates(jitted) == ["scan"]


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_equal_elements_and_nan(name: str) -> None:
    x = torch.randint(-2, 3, (6, 40), generator=torch.Generator().manual_seed(0)).float()
    x[0, 11], x[1, 3], x[1, 20], x[2, 7], x[3, 5] = math.nan, math.nan, math.nan, math.inf, -math.inf
    x = x.to(DEVICE)
    found = thunder.jit(lambda x: SCANS[name](x, 1), executors=["triton"])(x)
    expected = SCANS[name](x, 1)
    assert torch.equal(found.indices, expected.indices)
    torch.testing.assert_close(found.values, expected.values, equal_nan=True)


def test_logarithms_of_infinities() -> None:
    x = make(4, 20)
    x[0, :], x[1, 5], x[2, 5], x[3, :4] = -math.inf, math.inf, math.nan, -math.inf
    found = thunder.jit(lambda x: torch.logcumsumexp(x, 1), executors=["triton"])(x)
    torch.testing.assert_close(found, torch.logcumsumexp(x, 1), equal_nan=True)


def test_few_rows_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "FEWEST_ROWS", 8)
    for rows, fused in ((7, []), (8, ["scan"])):
        jitted = thunder.jit(lambda x: x.cumsum(1), executors=["triton"])
        jitted(make(rows, 4))
        assert templates(jitted) == fused


def test_booleans_are_left_to_torch() -> None:
    jitted = thunder.jit(lambda x: associative_scan(torch.logical_or, x, 1, False, "generic"), executors=["triton"])
    x = make(3, 9) > 1
    assert torch.equal(jitted(x), x.cumsum(1) > 0)


# -- functions of users ------------------------------------------------------------------------------------------------
def turned(left: Any, right: Any) -> Any:
    """Multiply complex numbers, as pairs."""
    (a, b), (c, d) = left, right
    return a * c - b * d, a * d + b * c


def largest(left: Any, right: Any) -> Any:
    """Keep what belongs to the largest key."""
    later = right["key"] >= left["key"]
    return {name: torch.where(later, right[name], left[name]) for name in left}


@settings(max_examples=4, phases=(Phase.generate,))
@given(count=st.integers(2, 29), dim=st.integers(0, 1), reverse=st.booleans())
def test_functions_of_users(count: int, dim: int, reverse: bool) -> None:
    shape = (3, count) if dim else (count, 3)
    x, y = make(*shape, low=-1, high=1), make(*shape, low=0.5, high=1)

    def pairs(x: Any, y: Any) -> Any:
        return associative_scan(turned, (x.cos() * y, x.sin() * y), dim, reverse, "generic")

    def keyed(x: Any, y: Any) -> Any:
        found = associative_scan(largest, {"key": x, "value": y}, dim, reverse, "generic")
        return found["key"], found["value"]

    for f in (pairs, keyed):
        jitted = thunder.jit(f, executors=["triton"])
        found, expected = jitted(x, y), f(x, y)
        torch.testing.assert_close(found, expected)
        assert [t.stride() for t in found] == [t.stride() for t in expected]
        assert "scan" in templates(jitted)


def test_gradients_of_functions_of_users() -> None:
    x = make(3, 11, low=0.5, high=1.5).requires_grad_()
    jitted = thunder.jit(lambda x: associative_scan(torch.logaddexp, x, 1, False, "generic"), executors=["triton"])
    torch.testing.assert_close(jitted(x), torch.logcumsumexp(x, 1))
    gradients = [torch.autograd.grad(f(x).sin().sum(), x) for f in (jitted, lambda x: torch.logcumsumexp(x, 1))]
    torch.testing.assert_close(*gradients)


def test_functions_that_are_not_elementwise_are_traced_in_steps() -> None:
    x = make(7, 3, 3)
    jitted = thunder.jit(lambda x: associative_scan(torch.matmul, x, 0, False, "generic"), executors=["triton"])
    found = [x[0]]
    for i in range(1, 7):
        found.append(found[-1] @ x[i])
    torch.testing.assert_close(jitted(x), torch.stack(found))
    assert "scan" not in templates(jitted)
