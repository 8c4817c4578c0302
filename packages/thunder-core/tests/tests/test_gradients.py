# SPDX-License-Identifier: Apache-2.0
"""Comparing gradients: with autograd's, and with differences where torch has nothing to compare with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import thunder
import thunder.torch as ltorch
from thunder.core.errors import TracingError
from thunder.core.samples import SampleInput
from thunder.core.transforms import get_grad, put_grads
from thunder.extend import get_executor
from thunder.tests.cases import Case
from thunder.tests.comparison import Mismatch
from thunder.tests.gradients import (
    compare_second_order,
    compare_with_autograd,
    compare_with_differences,
    gradients_of,
    with_leaves,
)
from thunder.tests.opinfos import OpInfo, make_tensor, opinfo_of
from thunder.tests.target import target_of


def one_sample(op: OpInfo, device: Any, dtype: Any, requires_grad: bool, **kwargs: Any) -> Iterator[SampleInput]:
    yield SampleInput(make_tensor(4, device=device, dtype=dtype, requires_grad=requires_grad, low=0.5, high=2))


def case_of(info: OpInfo, dtype: torch.dtype = torch.float64) -> tuple[Case, SampleInput]:
    case = Case(info, target_of(get_executor("torch")), "test_grad_vs_torch", "cpu", dtype)
    return case, info.sample_inputs("cpu", dtype, requires_grad=True)[0]


def operation(forward: Callable[..., Any], factor: float) -> Any:
    """An operation with the gradient of `a * a`, times a factor."""
    from thunder.core.symbol import Symbol

    sym = Symbol("squared", forward, id="test.squared")

    @sym.grad
    def _(a: Any) -> Any:
        out = a * a
        put_grads((a,), (get_grad(out) * a * (2 * factor),))
        return out

    return sym


def test_leaves() -> None:
    """What requires grad becomes a leaf of the same values and strides; the rest stays."""
    a = torch.ones(2, 3, requires_grad=True)
    sample, leaves = with_leaves(SampleInput(a.mT, a.mT.detach(), (a.mT,), 2))
    assert len(leaves) == 2
    assert all(x.is_leaf and x.requires_grad and x.stride() == (1, 3) for x in leaves)
    assert sample.args[0] is leaves[0]
    assert not sample.args[1].requires_grad


def test_gradients() -> None:
    """No gradient is one of zeros; outputs without one take no part."""
    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    first, second = gradients_of((a * 2, torch.ones(3), 1), (a, b))
    assert (first != 0).all()
    assert torch.equal(second, torch.zeros(2))
    assert torch.equal(gradients_of(torch.ones(1), (a,))[0], torch.zeros(2))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.complex128], ids=str)
def test_with_autograd(dtype: torch.dtype) -> None:
    """Of an operation of ours: right in every precision."""
    case, sample = case_of(opinfo_of("exp"), dtype)
    assert compare_with_autograd(case, sample) is not None


def test_a_wrong_gradient() -> None:
    """Is found by both comparisons, a right one passes both."""
    for factor, right in ((1.0, True), (1.01, False)):
        info = OpInfo(
            operation(lambda a: a * a, factor), sample_input_generator=one_sample, torch_reference=lambda a: a * a
        )
        case, sample = case_of(info)
        for compare_gradients in (compare_with_autograd, compare_with_differences):
            if right:
                compare_gradients(case, sample)
            else:
                with pytest.raises(Mismatch):
                    compare_gradients(case, sample)


def test_who_requires_grad() -> None:
    """An output that should carry a gradient and does not, and the other way round."""
    for ours, theirs in ((ltorch.detach, torch.neg), (ltorch.neg, torch.detach)):
        info = OpInfo(ours, sample_input_generator=one_sample, torch_reference=theirs)
        case, sample = case_of(info)
        with pytest.raises(Mismatch, match=r"requires_grad of result 0|elements of result"):
            compare_with_autograd(case, sample)


def test_what_torch_cannot_differentiate() -> None:
    """Is not compared."""

    class NoGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
            return a * 2

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            raise NotImplementedError("derivative not implemented")

    info = OpInfo(ltorch.neg, sample_input_generator=one_sample, torch_reference=NoGradient.apply)
    case, sample = case_of(info)
    assert compare_with_autograd(case, sample) is None


def test_where_torch_divides_by_zero() -> None:
    """A finite gradient that differences confirm is right, whatever torch says; one that they do not is wrong."""

    class Infinite(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
            return a * a

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g / 0

    for factor, right in ((1.0, True), (2.0, False)):
        info = OpInfo(
            operation(lambda a: a * a, factor), sample_input_generator=one_sample, torch_reference=Infinite.apply
        )
        case, sample = case_of(info)
        if right:
            compare_with_autograd(case, sample)
        else:
            with pytest.raises(Mismatch, match="in a random direction"):
                compare_with_autograd(case, sample)


def test_differences_need_double_precision() -> None:
    """In others they would say little."""
    case, sample = case_of(opinfo_of("exp"), torch.float32)
    assert compare_with_differences(case, sample) is None


@pytest.mark.parametrize("executors", [(), ("torch",)])
def test_eager_second_derivatives_do_not_count(executors: tuple[str, ...]) -> None:
    """They are right, but nothing was compiled."""
    sample = SampleInput(torch.rand(3, requires_grad=True))
    assert compare_second_order(lambda args, kwargs: args[0].sin(), sample, executors=executors)
    stays_python = thunder.disable(torch.sin)
    with pytest.raises(TracingError, match="disable keeps out of traces"):
        compare_second_order(lambda args, kwargs: stays_python(*args), sample, executors=executors)
