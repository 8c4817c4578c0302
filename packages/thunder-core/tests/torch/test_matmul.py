# SPDX-License-Identifier: Apache-2.0
"""Matrix products of random shapes, what torch refuses among them, and what a differentiated product runs."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from outcomes import result_or_error

import thunder
import thunder.torch as ltorch

SIZES = st.lists(st.integers(0, 3), max_size=4)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(a=SIZES, b=SIZES)
def test_any_two_shapes(by_primitives: Any, a: list[int], b: list[int]) -> None:
    """The shape and the values, or an error where torch has one."""
    if len(a) > 1 and len(b) > 1:
        b = [*b[:-2], a[-1], b[-1]]  # else nearly none would fit
    x, y = torch.randn(a, dtype=torch.float64), torch.randn(b, dtype=torch.float64)
    expected, actual = result_or_error(torch.matmul, x, y), result_or_error(by_primitives, ltorch.matmul, x, y)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(actual, expected)
    else:
        assert actual is expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_gradients(as_eager: Any, randn: Any, dtype: torch.dtype) -> None:
    """Of matrices, vectors and batches; the conjugate where numbers are complex."""

    def make(*shape: int) -> torch.Tensor:
        real = randn(*shape).detach()
        return (torch.complex(real, randn(*shape).detach()) if dtype.is_complex else real).requires_grad_()

    for a, b in (((3, 4), (4, 5)), ((4,), (2, 4, 5)), ((2, 3, 4), (4,)), ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5))):
        as_eager(lambda x, y: x @ y, make(*a), make(*b))
    as_eager(lambda x, w, b: F.linear(x, w, b), make(2, 3, 4), make(5, 4), make(5))
    as_eager(lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), make(5), make(3, 4), make(4, 5))
    as_eager(lambda a, b: torch.vdot(a, b), make(4), make(4))
    as_eager(lambda a, b: torch.linalg.vecdot(a, b), make(3, 4), make(4))
    as_eager(lambda *xs: torch.linalg.multi_dot(xs), make(3), make(3, 4), make(4, 2))
    as_eager(lambda a, b: torch.kron(a, b), make(2, 3), make(2))
    as_eager(lambda a, b: torch.tensordot(a, b, ([0, 2], [1, 0])), make(2, 3, 4), make(4, 2, 5))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64], ids=str)
def test_broadcast_dimensions_of_tensordot(dtype: torch.dtype) -> None:
    """Sums over dimensions that meet a size of 1 keep the dtype, which programs read while they are traced."""
    a, b = torch.arange(6).reshape(2, 3).to(dtype), torch.arange(4).reshape(1, 4).to(dtype)

    def product(a: Any, b: Any) -> Any:
        y = torch.tensordot(a, b, ([1], [0]))
        return y, y.dtype

    found, expected = thunder.jit(product)(a, b), product(a, b)
    torch.testing.assert_close(found[0], expected[0])
    assert found[1] is expected[1]


@pytest.mark.parametrize("sizes", [(2,) * 4, (2,) * 5, (4, 2, 3, 5)], ids=str)
def test_the_order_of_a_chain(sizes: tuple[int, ...]) -> None:
    """Of orders that need the same number of multiplications it is torch's, because the order affects rounding."""
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(m, n, generator=generator).bfloat16() for m, n in itertools.pairwise(sizes)]
    results = []
    for run in (thunder.jit(lambda *xs: torch.linalg.multi_dot(xs)), lambda *xs: torch.linalg.multi_dot(xs)):
        matrices = [x.clone().requires_grad_() for x in given]
        out = run(*matrices)
        results.append([out.detach(), *torch.autograd.grad(out.float().square().sum(), matrices)])
    assert all(map(torch.equal, *results))


def test_a_batched_product_with_one_matrix_is_one_product(randn: Any) -> None:
    """The gradient of the matrix folds the batch into rows instead of summing a product for each."""
    jitted = thunder.jit(lambda x, w: x @ w)
    jitted(randn(2, 3, 4), randn(4, 5))
    names = [b.sym.name for b in thunder.last_backward_traces(jitted)[-1].bound_symbols]
    assert names.count("matmul") == 2
    assert "sum" not in names


def test_a_nan_that_is_not_read() -> None:
    """With `beta=0` the tensor that is added to plays no part."""
    nan = torch.full((2, 2), float("nan"))
    for fn, args in (
        (torch.addmm, (torch.ones(2, 3), torch.ones(3, 2))),
        (torch.baddbmm, (torch.ones(2, 2, 3), torch.ones(2, 3, 2))),
    ):
        assert torch.equal(thunder.jit(lambda c, *xs: fn(c, *xs, beta=0))(nan, *args), fn(nan, *args, beta=0))


@pytest.mark.parametrize(
    ("fn", "shapes", "message"),
    [
        (torch.mm, ((2, 3), (2, 3)), r"mat1 and mat2 shapes cannot be multiplied \(2x3 and 2x3\)"),
        (torch.mm, ((2, 3, 3), (3, 3)), "self must be a matrix"),
        (torch.bmm, ((2, 3, 4), (3, 4, 5)), r"dimensions of batch2 tensor to be: \[2, 4\] but got: \[3, 4\]"),
        (torch.mv, ((2, 3), (2,)), r"size mismatch, got input \(2\), mat \(2x3\), vec \(2\)"),
        (torch.dot, ((2,), (3,)), r"expected tensor \[2\] and src \[3\] to have the same number of elements"),
        (torch.outer, ((2, 3), (4,)), "outer: Expected 1-D argument self, but got 2-D"),
        (torch.inner, ((2, 3), (4, 4)), r"shapes \[2, 3\] and \[4, 4\]"),
        (F.linear, ((2, 3), (4, 4)), r"mat1 and mat2 shapes cannot be multiplied \(2x3 and 4x4\)"),
        (torch.matmul, ((), (2,)), "need to be at least 1D, but they are 0D and 1D"),
        (
            torch.tensordot,
            ((2, 3, 4), (4, 4, 5)),
            "contracted dimensions need to match, but first has size 3 in dim -2",
        ),
    ],
)
def test_shapes_that_do_not_fit(fn: Any, shapes: Any, message: str) -> None:
    """torch's words."""
    tensors = [torch.ones(s) for s in shapes]
    for call in (fn, thunder.jit(fn)):
        with pytest.raises(RuntimeError, match=message):
            call(*tensors)


def test_types_that_differ() -> None:
    """Products do not promote."""
    a, b = torch.ones(2, 3), torch.ones(3, 2, dtype=torch.float64)
    for fn in (torch.matmul, torch.mm, F.linear):
        with pytest.raises(RuntimeError, match="same dtype"):
            thunder.jit(fn)(a, b if fn is not F.linear else b.mT)


@pytest.mark.parametrize("features", [(3, 0), (0, 2), (0, 0)])
@pytest.mark.parametrize("rows", [(2,), (0,), (2, 3)])
def test_gradients_of_layers_without_features(rows: tuple[int, ...], features: tuple[int, int]) -> None:
    x, w, b = (torch.ones(s, requires_grad=True) for s in ((*rows, features[0]), features[::-1], features[1:]))
    grads = [torch.autograd.grad(fn(x, w, b).sum(), (x, w, b)) for fn in (thunder.jit(F.linear), F.linear)]
    torch.testing.assert_close(*grads, rtol=0, atol=0)
