# SPDX-License-Identifier: Apache-2.0
"""What tests of the torch language share: a function run by torch and through `thunder.jit`, gradients and all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder
from thunder.core.samples import SampleInput
from thunder.tests.opinfo import OpInfo
from thunder.tests.running import execution_trace, run_trace, to_primitives, trace_sample

SEED = 11


def _leaves(inputs: tuple[Any, ...]) -> list[Any]:
    return [
        x.detach().clone(memory_format=torch.preserve_format).requires_grad_(x.requires_grad)
        if isinstance(x, torch.Tensor)
        else x
        for x in inputs
    ]


def _run(fn: Callable[..., Any], inputs: tuple[Any, ...]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Results and gradients, and the state of the generator afterwards."""
    given = _leaves(inputs)
    torch.manual_seed(SEED)
    out = fn(*given)
    outs = [x for x in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(x, torch.Tensor)]
    state = torch.get_rng_state()
    differentiable = [x for x in outs if x.requires_grad]
    if differentiable:
        weights = [torch.linspace(0.5, 1.5, x.numel(), dtype=x.dtype).reshape(x.shape) for x in differentiable]
        torch.autograd.backward(differentiable, weights)
    grads = [
        torch.zeros_like(x) if x.grad is None else x.grad
        for x in given
        if isinstance(x, torch.Tensor) and x.requires_grad
    ]
    return [*(x.detach() for x in outs), *grads], state


@pytest.fixture
def as_eager() -> Callable[..., Any]:
    """Runs a function by torch and jitted and compares results, gradients and the random generator.

    Bit for bit with `exactly=True`. Gives the jitted function.
    """

    def check(fn: Callable[..., Any], *inputs: Any, exactly: bool = False, **tolerance: float) -> Any:
        jitted = thunder.jit(fn)
        expected, state_of_eager = _run(fn, inputs)
        actual, state = _run(jitted, inputs)
        assert len(actual) == len(expected)
        for ours, theirs in zip(actual, expected):
            if exactly:
                assert ours.dtype == theirs.dtype
                assert torch.equal(ours, theirs), (ours - theirs).abs().max()
            else:
                torch.testing.assert_close(ours, theirs, equal_nan=True, **tolerance)
        assert torch.equal(state, state_of_eager), "the generator is not where eager leaves it"
        return jitted

    return check


@pytest.fixture
def randn() -> Callable[..., torch.Tensor]:
    """Normal numbers that require grad, double precision where no dtype is given; the same ones in every run."""
    generator = torch.Generator().manual_seed(SEED)

    def make(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype).requires_grad_()

    return make


@pytest.fixture
def by_primitives() -> Callable[..., Any]:
    """Calls an operation on tensors as the primitives that it decomposes into, which is what fusion executors see.

    (Called by itself on tensors, an operation is simply torch's function.)
    """

    def run(operation: Any, *args: Any, **kwargs: Any) -> Any:
        info = OpInfo(operation, sample_input_generator=lambda *_: iter(()))
        sample = SampleInput(*args, **kwargs)
        return run_trace(execution_trace(to_primitives(trace_sample(info, sample)), ()), sample)

    return run
