# SPDX-License-Identifier: Apache-2.0
"""Mean and maximum pooling and their gradients, compared with torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import thunder
from thunder_ex_triton import images
from thunder_ex_triton.max_pooling import max_pool, max_pool_backward
from thunder_ex_triton.pooling import avg_pool, avg_pool_backward

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    """Use tiles that small images do not fit into."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images.Limits.__new__, "__defaults__", (64, 4, 1, (16, 8)))
        patch.setattr(images, "_SMALLEST_TILE", 64)
        images.tiles.cache_clear()
        yield
        images.tiles.cache_clear()


@st.composite
def calls(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[Any, ...], bool]:
    """Draw a shape, the arguments of a call, and whether the image is channels-last."""
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    stride = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    sizes = tuple(draw(st.integers(max(k - 2 * p, 1), 9)) for k, p in zip(kernel, padding))
    how = kernel, stride, padding, draw(st.booleans()), draw(st.booleans()), draw(st.sampled_from([None, 3]))
    return (draw(st.integers(1, 2)), draw(st.sampled_from([1, 3, 17])), *sizes), how, draw(st.booleans())


@settings(max_examples=12, deadline=None)
@given(calls())
def test_values_and_layout(call: tuple[tuple[int, ...], tuple[Any, ...], bool]) -> None:
    """Windows of all sizes, strides and paddings, overlapping and with gaps, in both layouts."""
    shape, how, channels_last = call
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    leaf = x.double().requires_grad_()
    right = F.avg_pool2d(leaf, *how)
    out = avg_pool(x, *how)
    assert out.stride() == F.avg_pool2d(x, *how).stride()
    torch.testing.assert_close(out.double(), right.detach(), rtol=1e-6, atol=1e-6)
    g = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    (wanted,) = torch.autograd.grad(right, leaf, g.double())
    of_x = avg_pool_backward(g, x, *how)
    assert of_x.stride() == x.stride() or 1 in shape
    torch.testing.assert_close(of_x.double(), wanted, rtol=1e-6, atol=1e-6)


@settings(max_examples=16, deadline=None)
@given(calls(), st.tuples(st.integers(1, 2), st.integers(1, 3)), st.sampled_from([0.0, 0.2, 1.0]))
def test_maxima(call: tuple[tuple[int, ...], tuple[Any, ...], bool], dilation: tuple[int, int], odd: float) -> None:
    """Values and indices are torch's to the bit, with equal elements, NaN and -inf; so are layouts.

    The reference is computed on the CPU: in channels-last memory on a GPU, torch returns index 0 for windows of -inf.
    """
    (*outer, height, width), (kernel, stride, padding, ceil_mode, *_), channels_last = call
    sizes = [n + (k - 1) * (d - 1) for n, k, d in zip((height, width), kernel, dilation)]
    how = kernel, stride, padding, dilation, ceil_mode
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-4, 4, (*outer, *sizes), generator=generator).float()
    which = torch.randint(0, 2, x.shape, generator=generator).bool()
    special = torch.where(which, float("-inf"), float("nan") if odd < 1 else float("-inf"))
    x = torch.where(torch.rand(x.shape, generator=generator) < odd, special, x).to(DEVICE)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    leaf = x.detach().cpu().clone().requires_grad_()
    values, indices = F.max_pool2d_with_indices(leaf, *how)
    found = max_pool(x, *how)
    for ours, right, like in zip(found, (values, indices), F.max_pool2d_with_indices(x, *how)):
        torch.testing.assert_close(ours.cpu(), right.detach(), rtol=0, atol=0, equal_nan=True)
        assert ours.stride() == like.stride()
    g = torch.randn(values.shape, generator=torch.Generator().manual_seed(1))
    (wanted,) = torch.autograd.grad(values, leaf, g)
    of_x = max_pool_backward(g.to(DEVICE), x, indices.to(DEVICE), *how)
    assert of_x.stride() == wanted.stride() or 1 in x.shape
    torch.testing.assert_close(of_x.cpu(), wanted, rtol=1e-6, atol=1e-6)


def test_half_precision_is_rounded_once() -> None:
    """Means of half-precision values are computed in float32, as in torch."""
    x = torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(0)).to(DEVICE, torch.float16)
    how = ((3, 3), (1, 1), (1, 1), False, True, None)
    right = F.avg_pool2d(x.double(), *how)
    assert (avg_pool(x, *how).double() - right).abs().max() <= 2**-11 * right.abs().max()


def test_no_elements() -> None:
    """An empty batch stays empty."""
    how = ((2, 2), (2, 2), (0, 0), False, True, None)
    x = torch.ones(0, 3, 4, 4, device=DEVICE)
    assert avg_pool(x, *how).shape == (0, 3, 2, 2)
    values, indices = max_pool(x, *how[:3], (1, 1), False)
    assert values.shape == indices.shape == (0, 3, 2, 2)
    assert max_pool_backward(values, x, indices, *how[:3], (1, 1), False).shape == x.shape


def test_programs_use_the_kernels() -> None:
    """The trace has the operators for images, forward and backward; large windows are left to torch."""
    x = torch.randn(2, 3, 4, 4, device=DEVICE, requires_grad=True)
    jf = thunder.jit(lambda x: F.avg_pool2d(x, 2) * 2, cuda_graphs="never")
    out = jf(x)
    torch.testing.assert_close(out, F.avg_pool2d(x, 2) * 2)
    (found,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(found, torch.full_like(x, 0.5))
    assert "triton_avg_pool(" in str(thunder.last_traces(jf)[-1])
    assert "triton_avg_pool_backward(" in str(thunder.last_backward_traces(jf)[-1])
    jm = thunder.jit(lambda x: F.max_pool2d(x, 2) * 2, cuda_graphs="never")
    out = jm(x)
    torch.testing.assert_close(out, F.max_pool2d(x, 2) * 2)
    (found,) = torch.autograd.grad(out.sum(), x)
    (right,) = torch.autograd.grad((F.max_pool2d(x, 2) * 2).sum(), x)
    torch.testing.assert_close(found, right)
    assert "triton_max_pool(" in str(thunder.last_traces(jm)[-1])
    assert "triton_max_pool_backward(" in str(thunder.last_backward_traces(jm)[-1])
    empty = thunder.jit(lambda x: F.max_pool2d(x, 2, 1, 1, 3), cuda_graphs="never")  # windows without an element
    wide = torch.randn(1, 1, 2, 2, device=DEVICE)
    assert empty(wide).equal(F.max_pool2d(wide, 2, 1, 1, 3))
    assert "triton_max_pool" not in str(thunder.last_traces(empty)[-1])
    large = thunder.jit(lambda x: F.avg_pool2d(x, 9), cuda_graphs="never")
    large(torch.ones(1, 1, 9, 9, device=DEVICE))
    assert "triton_avg_pool" not in str(thunder.last_traces(large)[-1])
