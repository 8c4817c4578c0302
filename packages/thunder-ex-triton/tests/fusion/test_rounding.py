# SPDX-License-Identifier: Apache-2.0
"""Fusions round the results of torch's operations in half precision, as eager mode does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import thunder

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.float16


def halves(*shape: int, seed: int = 0, dtype: torch.dtype = HALF) -> torch.Tensor:
    """Return numbers whose sums are seldom numbers of half precision."""
    draw = torch.Generator().manual_seed(seed)
    return (torch.rand(shape, generator=draw) * 3 + 1).to(DEVICE, dtype)


# Functions whose results are a value in half precision, and values that follow from this value exactly.
MOVED: dict[str, Callable[[torch.Tensor], Any]] = {
    "itself": lambda y: (y, y.float()),
    "transposed": lambda y: (y.t().contiguous(), y.float()),
    "reshaped": lambda y: (y.reshape(-1), y.float()),
    "sums of rows": lambda y: (y, y.float().sum(-1)),
    "sums of columns": lambda y: (y, y.float().sum(0)),
    "differences": lambda y: (y, y.float() - y.float().amax(-1, keepdim=True)),
    "scans": lambda y: (y, y.float().cumsum(-1)),
    "parts": lambda y: (y, torch.cat((y.float()[1:], y.float()[:1]))),
    "written": lambda y: (y, y.double()),
}
ADDED = ("sums of rows", "sums of columns", "scans")  # in another order than eager mode


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5, 33), (3, 40000)], ids=["rows", "long rows"])
@pytest.mark.parametrize("name", MOVED)
def test_what_is_read_is_what_is_stored(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a, b = halves(*shape, dtype=dtype), halves(*shape, seed=1, dtype=dtype)
    jitted = thunder.jit(lambda a, b: MOVED[name](a + b), executors=["triton"])
    slack = 1e-6 * shape[-1] if name in ADDED else 0.0
    for found, expected in zip(jitted(a, b), MOVED[name](a + b)):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=slack)
    assert any(op.sym.is_fusion for op in thunder.last_traces(jitted)[-1].bound_symbols)


# Each is rounded once in eager mode, too.
OPERATIONS: list[Callable[..., Any]] = [
    torch.add, torch.sub, torch.mul, torch.div, torch.maximum, lambda a, b: -a, lambda a, b: a.clamp(max=8).exp(),
    lambda a, b: a.float().mean(-1, keepdim=True).to(a.dtype), lambda a, b: a.float().sum(0).to(a.dtype),
]  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6))
def test_chains(steps: list[tuple[Callable[..., Any], int, int]]) -> None:
    """If each value is returned, each operation has eager mode's result for the values that were returned."""

    def program(*values: torch.Tensor) -> list[torch.Tensor]:
        found = list(values)
        for operation, i, j in steps:
            found.append(operation(found[i % len(found)], found[j % len(found)]))
        return found[len(values) :]

    args = halves(4, 20), halves(4, 20, seed=1)
    found = [*args, *thunder.jit(program, executors=["triton"])(*args)]
    for n, (operation, i, j) in enumerate(steps, len(args)):
        expected = operation(found[i % n], found[j % n])
        torch.testing.assert_close(found[n], expected, rtol=1e-3, atol=1e-7, equal_nan=True)
        assert found[n].stride() == expected.stride()


SELECTED: dict[str, Callable[[torch.Tensor], Any]] = {
    "largest": lambda y: (m := y.amax(-1, keepdim=True), (m - y).sqrt()),
    "largest of columns": lambda y: (m := y.amax(0), (m - y).sqrt()),
    "in single precision": lambda y: (m := y.amax(-1, keepdim=True), (m.float() - y.float()).sqrt()),
    "quotient": lambda y: (m := y.amax(-1, keepdim=True), (1 - y.float() / m.float()).sqrt()),
    "twice": lambda y: (y * 2, (y.amax(-1, keepdim=True) * 2 - y * 2).sqrt()),
    "clamped": lambda y: (c := y.clamp(min=0), (c - y).sqrt()),
    "range": lambda y: (low := y.amin(-1, keepdim=True), ((y - low) / (y.amax(-1, keepdim=True) - low)).sqrt()),
    "how often": lambda y: (m := y.amax(-1, keepdim=True), (y >= m).float().sum(-1)),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", SELECTED)
def test_a_stored_value_is_comparable_with_others(name: str, dtype: torch.dtype) -> None:
    """No value is larger than the stored maximum, as in eager mode. The root would be NaN."""
    a, b = halves(64, 33, dtype=dtype), halves(64, 33, seed=1, dtype=dtype)
    for found, expected in zip(*(f(a, b) for f in (jit(name), lambda a, b: SELECTED[name](a * b)))):
        torch.testing.assert_close(found, expected)


def jit(name: str) -> Any:
    return thunder.jit(lambda a, b: SELECTED[name](a * b), executors=["triton"])


def test_parts_of_operations_are_not_rounded() -> None:
    """`addcmul` is one kernel of torch."""
    a, b = halves(8, 64), halves(8, 64, seed=1)
    jitted = thunder.jit(lambda a, b: torch.addcmul(a, a, b, value=-0.9), executors=["triton"])
    assert torch.equal(jitted(a, b), torch.addcmul(a.double(), a.double(), b.double(), value=-0.9).to(HALF))


QUOTIENTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "quotients": lambda a, b: a / b,
    "reciprocals": lambda a, b: a.reciprocal(),
    "of itself": lambda a, b: a / a,
    "of a row's maximum": lambda a, b: a / a.amax(-1, keepdim=True),
    "roots": lambda a, b: a.sqrt(),
    "powers": lambda a, b: a**0.5,
}
SPECIAL = [0.0, -0.0, 1e-40, -3e-39, math.inf, -math.inf, math.nan, 3e38, 1.2e-38, 5.0]


@pytest.mark.parametrize("name", QUOTIENTS)
def test_quotients_and_roots_are_rounded_once(name: str) -> None:
    """Rounding a result of double precision is the same. Numbers are random, and all pairs of special numbers."""
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.rand((40, 1000), generator=draw).to(DEVICE) * 100 + 1e-3 for _ in range(2))
    pairs = torch.cartesian_prod(torch.tensor(SPECIAL), torch.tensor(SPECIAL)).to(DEVICE).unbind(-1)
    jitted = thunder.jit(QUOTIENTS[name], executors=["triton"])
    for x, y in ((a, b), pairs):
        expected = QUOTIENTS[name](x.double(), y.double()).float()
        torch.testing.assert_close(jitted(x, y), expected, rtol=0, atol=0, equal_nan=True)
    assert any(op.sym.is_fusion for op in thunder.last_traces(jitted)[-1].bound_symbols)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_a_quotient_with_a_number_is_torchs(cache: str, dtype: torch.dtype) -> None:
    """On GPUs torch multiplies by the reciprocal of a number, e.g. of a size."""
    x = halves(3, 777, dtype=torch.float32).to(dtype)

    def divide(x: Any) -> Any:
        return x / 3, x / x.shape[-1], x / 1e-42, x / 0

    for found, expected in zip(thunder.jit(divide, executors=["triton"], cache=cache)(x), divide(x)):
        assert torch.equal(found, expected)


def test_numbers_under_a_default_device() -> None:
    """Numbers are computed on the CPU, and copied from there, whatever torch's default device is."""

    def program(x: Any) -> Any:
        return torch.where(x > 0.1, x, x * 2) / 3

    def step(ps: Any, gs: Any, lr: float) -> None:
        for p, g in zip(ps, gs):
            p.mul_(1 - lr).add_(g, alpha=-lr)

    x = halves(8, 33)
    ps, gs, expected = ([halves(40, seed=i, dtype=torch.float32) for i in range(4)] for _ in range(3))
    jitted = thunder.jit(step)
    with torch.device("meta"):
        assert torch.equal(thunder.jit(program, executors=["triton"])(x), program(x))
        for lr in (0.1, 0.2, 0.3):
            jitted(ps, gs, lr)
            step(expected, gs, lr)
    for p, e in zip(ps, expected):
        torch.testing.assert_close(p, e)


def test_no_probability_is_greater_than_one() -> None:
    """A kernel multiplies by the reciprocal of a row's sum."""
    x = halves(64, 5, dtype=torch.float32) * 30
    for f in (lambda x: x.softmax(-1), lambda x: (e := (x - x.amax(-1, keepdim=True)).exp()) / e.sum(-1, keepdim=True)):
        assert thunder.jit(f, executors=["triton"])(x).amax() <= 1


def test_a_single_exponential_is_its_sum() -> None:
    """It may be of any size: only softmax itself multiplies by a reciprocal."""
    x = halves(64, 1, dtype=torch.float32) * 20
    jitted = thunder.jit(lambda x: (e := x.exp()) / e.sum(-1, keepdim=True), executors=["triton"])
    assert torch.equal(jitted(x), torch.ones_like(x))


def test_numbers_of_double_precision_are_rounded_twice() -> None:
    """As torch does: first to single precision, and from there to bfloat16, for the memory and for other operations."""
    x = torch.tensor([1 + 2**-8 + 2**-40, 1 + 2**-8, 3 + 2**-7 - 2**-40], dtype=torch.float64, device=DEVICE)

    def convert(x: Any) -> Any:
        y = x.to(torch.bfloat16)
        return y, y.double()

    for found, expected in zip(thunder.jit(convert, executors=["triton"])(x), convert(x)):
        assert torch.equal(found, expected)


def test_a_residual_that_is_kept() -> None:
    """The norm is that of the sum that is returned, of which half precision has only whole numbers here."""

    def block(x: Any, r: Any, w: Any) -> Any:
        h = x + r
        return h, F.layer_norm(h, (64,), w)

    args = halves(8, 64) + 1000, halves(8, 64, seed=1) + 1000, halves(64, seed=3)
    found, norm = thunder.jit(block, executors=["triton"])(*args)
    assert torch.equal(found, args[0] + args[1])
    right = F.layer_norm(found.double(), (64,), args[2].double())
    assert (norm - right).abs().max() <= 2e-3 * right.abs().max()


def test_a_batch_norm_after_a_bias() -> None:
    """The sum of a convolution and a bias is rounded in the same direction in a channel. The gradient is fine."""
    torch.manual_seed(1)
    m = nn.Sequential(nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16), nn.SiLU()).to(DEVICE, HALF)
    x = torch.randn(3, 16, 12, 12, generator=torch.Generator().manual_seed(3)).to(DEVICE, HALF) + 3
    (thunder.jit(m)(x).double().square().mean() * 100).backward()
    bias = m[0].bias.grad
    assert bias.abs().max() <= 1e-3  # zero in exact arithmetic; 1e-2 if the mean is that of other values
