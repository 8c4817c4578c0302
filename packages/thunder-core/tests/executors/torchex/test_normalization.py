# SPDX-License-Identifier: Apache-2.0
"""torch's kernels of normalizations: the types and layouts that they take, and what stays out of their hands."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder
import thunder.torch as ltorch
from thunder.executors.torchex import ex
from thunder.runtime.kernels import normalization


@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float32, None], ids=str)
def test_statistics_are_float32(weights: torch.dtype | None) -> None:
    """Out of the forward kernels and into the backward ones, whatever those keep them in."""
    x = torch.randn(2, 4, 6).bfloat16()
    over_last, over_channels = (None if weights is None else torch.randn(n, dtype=weights) for n in (6, 4))
    for forward, backward, args, weight in (
        (normalization.layer_norm_forward, normalization.layer_norm_backward, ((6,),), over_last),
        (normalization.group_norm_forward, normalization.group_norm_backward, (2,), over_channels),
    ):
        out, mean, rstd = forward(x, *args, weight, weight, 1e-5)
        assert (out.dtype, mean.dtype, rstd.dtype) == (torch.bfloat16, torch.float32, torch.float32)
        of_input, of_weight, of_bias = backward(out, x, *args, mean, rstd, weight, weight)
        assert of_input.dtype is torch.bfloat16
        assert of_weight is of_bias is None if weights is None else of_weight.dtype is of_bias.dtype is weights


def test_layouts_that_kernels_do_not_take() -> None:
    """A transposed image is laid out anew."""
    x = torch.randn(2, 4, 5, 3).transpose(2, 3)
    out, mean, rstd = normalization.group_norm_forward(x, 2, None, None, 1e-5)
    torch.testing.assert_close(out, torch.nn.functional.group_norm(x, 2))
    normalization.group_norm_backward(out.transpose(2, 3).contiguous().transpose(2, 3), x, 2, mean, rstd, None, None)


def test_strides_of_a_single_image() -> None:
    """A kernel takes the format that all strides suggest, also the stride of a dimension of size 1."""
    x = torch.randn(1, 64, 8).as_strided((1, 8, 8, 8), (8, 1, 64, 8))
    assert x.is_contiguous(memory_format=torch.channels_last)
    out, mean, rstd = normalization.group_norm_forward(x, 2, None, None, 1e-5)
    torch.testing.assert_close(out, torch.nn.functional.group_norm(x, 2))
    normalization.group_norm_backward(out, x, 2, mean, rstd, None, None)


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("running", [torch.float16, torch.float32, None], ids=str)
@pytest.mark.parametrize("weights", [torch.float16, torch.float32, None], ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 4), (4, 3, 8, 8)], ids=str)
def test_batch_norm_takes_types_as_eager_does(
    shape: tuple[int, ...], weights: torch.dtype | None, running: torch.dtype | None, training: bool
) -> None:
    """In single and half precision at once, wherever eager does."""
    if running is None and not training:
        return
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(shape, device=device).half()
    w = None if weights is None else torch.rand(3, device=device).to(weights)

    def gradients(f: Any) -> tuple[torch.Tensor, ...]:
        mean, var = (None if running is None else torch.full((3,), n, device=device).to(running) for n in (0.5, 2.0))
        leaves = [t.clone().requires_grad_() for t in (x, w) if t is not None]
        out = f(leaves[0], mean, var, *leaves[1:])
        return (out, *torch.autograd.grad(out.square().sum(), leaves), *(t for t in (mean, var) if t is not None))

    def f(x: Any, mean: Any, var: Any, w: Any = None) -> Any:
        return torch.nn.functional.batch_norm(x, mean, var, w, None, training)

    try:
        expected = gradients(f)
    except RuntimeError:  # which types these are depends on the device
        return
    torch.testing.assert_close(gradients(thunder.jit(f, executors=["torch"])), expected, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("weights", [torch.float16, torch.float32, None], ids=str)
def test_types_of_instance_norm(weights: torch.dtype | None, training: bool) -> None:
    """Images in half precision with weights and statistics in single precision, as under autocast."""
    torch.manual_seed(0)
    x, g = torch.randn(2, 3, 8, 8).half(), torch.randn(2, 3, 8, 8).half()
    given = [x] if weights is None else [x, torch.rand(3).to(weights), torch.rand(3).to(weights)]
    state = [torch.full((3,), n).to(weights or torch.float32) for n in (0.5, 2.0)]

    def results(f: Any, dtype: torch.dtype | None) -> list[torch.Tensor]:
        leaves, (mean, var) = ([t.detach().clone().to(dtype or t.dtype) for t in ts] for ts in (given, state))
        out = f(mean, var, *[t.requires_grad_() for t in leaves])
        return [out, *torch.autograd.grad(out, leaves, g.to(out.dtype)), mean, var]

    def f(mean: Any, var: Any, x: Any, *affine: Any) -> Any:
        return torch.nn.functional.instance_norm(x, mean, var, *affine, use_input_stats=training)

    for found, right in zip(results(thunder.jit(f, executors=["torch"]), None), results(f, torch.float64)):
        # On the CPU torch rounds the statistics of images and weights in half precision.
        torch.testing.assert_close(found, right.to(found.dtype), rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("norm", [torch.nn.functional.batch_norm, torch.nn.functional.instance_norm])
def test_no_elements(norm: Any, training: bool) -> None:
    """A kernel of torch's divides by their number."""
    x = torch.ones(0, 3, 2, requires_grad=True)
    (mean, var), theirs = ([torch.zeros(3), torch.ones(3)] for _ in range(2))
    out = thunder.jit(lambda x, m, v: norm(x, m, v, None, None, training), executors=["torch"])(x, mean, var)
    (of_x,) = torch.autograd.grad(out.sum(), x)
    assert out.shape == of_x.shape == x.shape
    norm(x, *theirs, None, None, training)
    torch.testing.assert_close([mean, var], theirs, equal_nan=True)


def test_writes_in_place_are_not_claimed() -> None:
    """torch's batch_norm in training writes its statistics, which an operation of a trace does not."""

    def names(training: bool) -> tuple[list[str], Any]:
        mean, var = torch.zeros(3), torch.ones(3)
        jitted = thunder.jit(lambda x, m, v: ltorch.batch_norm(x, m, v, None, None, training))
        jitted(torch.randn(2, 3, 4), mean, var)
        assert mean.eq(0).all()
        return [b.sym.name for b in thunder.last_traces(jitted)[-1].bound_symbols], mean

    assert "batch_norm" in names(False)[0]
    assert "batch_norm_forward" in names(True)[0]
    assert "writes the running statistics in place" in str(
        ex.implmap[ltorch.batch_norm.id].checker(None, 1, 1, training=True)
    )


def test_results_without_elements_share_no_memory() -> None:
    """Passes may write to a result, and gradients are added to in place."""
    x, w, b, mean, var = torch.ones(0, 3, 2), *(torch.ones(3) for _ in range(4))
    _, *statistics, _, new_mean, new_var = normalization.batch_norm_forward(x, w, b, mean, var, 0.1, 1e-5)
    gradients = normalization.batch_norm_backward(x, x, w, mean, var, None, None, False, 1e-5, None)[1:]
    made = [*statistics, new_mean, new_var, *gradients]
    assert len({t.data_ptr() for t in (*made, mean, var)}) == len(made) + 2
