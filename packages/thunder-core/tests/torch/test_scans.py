# SPDX-License-Identifier: Apache-2.0
"""Cumulative operations where it is delicate: zeros in products, infinities in sums of exponentials, ties, types."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder

inf = float("inf")


def _compare_gradients(fn: Any, *args: torch.Tensor) -> None:
    expected, actual = fn(*args), thunder.jit(fn)(*args)
    torch.testing.assert_close(actual, expected, equal_nan=True)
    torch.manual_seed(3)
    g = torch.randn_like(expected)
    for x, y in zip(torch.autograd.grad(actual, args, g), torch.autograd.grad(expected, args, g)):
        torch.testing.assert_close(x, y, equal_nan=True)


@pytest.mark.parametrize(
    "line",
    [
        [2.0, 3.0, 4.0, 5.0], [0.0, 3.0, 4.0, 5.0], [2.0, 0.0, 4.0, 5.0], [2.0, 0.0, 0.0, 5.0], [0.0, 0.0, 0.0, 0.0],
        [2.0, 3.0, 4.0, 0.0],
    ],
)  # fmt: skip
def test_products_with_zeros(line: list[float]) -> None:
    """The gradient of a zero is the product of the others up to the next one."""
    _compare_gradients(lambda x: x.cumprod(0), torch.tensor(line, dtype=torch.float64, requires_grad=True))
    both = torch.tensor([line, line[::-1]], dtype=torch.float64, requires_grad=True)
    for dim in (0, 1):
        _compare_gradients(lambda x, dim=dim: x.cumprod(dim), both)


def test_complex_products() -> None:
    """With conjugates where they belong."""
    x = torch.randn(3, 4, dtype=torch.complex128)
    x[1, 2] = 0
    _compare_gradients(lambda x: x.cumprod(1), x.requires_grad_())


def test_sums_of_exponentials() -> None:
    """Large, small and mixed numbers, and gradients of both signs."""
    for line in ([1.0, 2.0, 3.0], [1000.0, -1000.0, 0.0], [-inf, 1.0, 2.0], [500.0, 500.0, 500.0]):
        x = torch.tensor(line, dtype=torch.float64, requires_grad=True)
        actual = thunder.jit(lambda x: x.logcumsumexp(0))(x)
        torch.testing.assert_close(actual, x.logcumsumexp(0))
        (grad,) = torch.autograd.grad(actual, x, torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64))
        assert grad.isfinite().all()
        if line[0] != -inf:
            _compare_gradients(lambda x: x.logcumsumexp(0), x)
    _compare_gradients(lambda x: x.logcumsumexp(0), torch.randn(5, dtype=torch.complex128, requires_grad=True))


def test_higher_derivatives_of_logcumsumexp() -> None:
    """By modes that follow one another: what the gradient splits by sign has infinities inside, which nothing moves."""

    def ours(x: Any) -> Any:
        return (x.logcumsumexp(0) * weight).sum()

    def theirs(x: Any) -> Any:
        return ((x.exp().cumsum(0)).log() * weight).sum()

    weight = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    x = torch.tensor([0.3, -1.0, 0.5], dtype=torch.float64)
    for wrap in (
        lambda m, f: m.hessian(f),
        lambda m, f: m.jacfwd(m.jacfwd(m.jacrev(f))),
        lambda m, f: m.hessian(lambda v: m.hessian(f)(v).sum()),
        lambda m, f: m.jacrev(m.jacrev(m.grad(f))),
    ):
        torch.testing.assert_close(wrap(thunder, ours)(x), wrap(torch.func, theirs)(x), rtol=1e-10, atol=1e-11)


def test_extremes_with_ties_and_nan() -> None:
    """The later one of two equal elements, and NaN from where it first is, as torch."""
    for line in ([1.0, 3.0, 3.0, 2.0], [1.0, float("nan"), 5.0, 7.0], [2.0, 2.0, 2.0, 2.0]):
        x = torch.tensor(line, dtype=torch.float64, requires_grad=True)
        for name in ("cummax", "cummin"):
            _compare_gradients(lambda x, name=name: getattr(x, name)(0).values, x)
            assert torch.equal(thunder.jit(lambda x, name=name: getattr(x, name)(0).indices)(x), getattr(x, name)(0)[1])


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.complex64], ids=str
)
def test_types(name: str, dtype: torch.dtype) -> None:
    """Integers and bools add up in int64, the others in themselves, unless `dtype` says otherwise."""
    x = torch.tensor([1, 0, 3]).to(dtype)
    for asked in (None, torch.float64, torch.int32):
        if asked is not None and dtype.is_complex:
            continue
        expected = getattr(torch, name)(x, 0, dtype=asked)
        actual = thunder.jit(lambda x, asked=asked: getattr(torch, name)(x, 0, dtype=asked))(x)
        assert actual.dtype is expected.dtype
        assert torch.equal(actual, expected)


def test_results_have_names() -> None:
    """torch's return types, inside of the program and outside."""
    pair = thunder.jit(lambda x: torch.cummax(x * 2, 0))(torch.tensor([1.0, 3.0, 2.0]))
    assert isinstance(pair, torch.return_types.cummax)
    assert pair.indices.tolist() == [0, 1, 1]
