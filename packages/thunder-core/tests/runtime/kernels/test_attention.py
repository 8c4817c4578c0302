# SPDX-License-Identifier: Apache-2.0
"""What torch's attention kernels ask of masks and head sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import thunder
from thunder.runtime.kernels import attention


@pytest.mark.parametrize("length", [16, 21, 7])
def test_masks_for_the_efficient_kernel(length: int) -> None:
    """Rows start at multiples of 16 elements, and every head has its own view."""
    query, key = torch.ones(2, 3, 5, 8), torch.ones(2, 3, length, 8)
    mask = torch.randn(5, length)
    aligned = attention._aligned(mask, query, key)
    assert aligned.shape == (2, 3, 5, length)
    assert aligned.stride(-2) % 16 == 0
    assert torch.equal(aligned[1, 2], mask)
    assert attention._aligned(None, query, key) is None


MASKS = {
    "permuted": lambda n: torch.randn(5, n, 3).permute(2, 0, 1),
    "one number for each query": lambda n: torch.randn(3, 5, 1),
    "rows of a wider tensor": lambda n: torch.randn(5, n + 3)[:, :n],
    "after the first row": lambda n: torch.randn(7 * n + 1)[1 : 5 * n + 1].view(5, n),
    "every second": lambda n: torch.randn(5, 2 * n)[:, ::2],
    "expanded": lambda n: torch.randn(n).expand(2, 1, 5, n),
    "of channels-last": lambda n: torch.randn(2, 3, 5, n).contiguous(memory_format=torch.channels_last),
    "one query": lambda n: torch.randn(2, 1, 1, n),
}


@pytest.mark.parametrize("length", [1, 16, 21])
@pytest.mark.parametrize("kind", MASKS)
def test_layouts_of_masks_for_the_efficient_kernel(kind: str, length: int) -> None:
    """Rows are dense and aligned. Memory is not multiplied by the dimensions that a mask is expanded in."""
    query, key = torch.ones(2, 3, 5, 8), torch.ones(2, 3, length, 8)
    mask = MASKS[kind](length)
    aligned = attention._aligned(mask, query, key)
    assert aligned.shape == (2, 3, 5, length)
    assert length == 1 or aligned.stride(-1) == 1
    assert not any(step % 16 for step in (*aligned.stride()[:-1], aligned.storage_offset()))
    assert torch.equal(aligned, mask.expand_as(aligned))
    kept = math.prod(n for n, step in zip(mask.shape[:-1], mask.stride()) if step) * (length + 15)
    assert aligned.untyped_storage().nbytes() <= max(4 * kept, mask.untyped_storage().nbytes())


def test_layouts_of_results_for_the_efficient_kernel() -> None:
    """The heads of a token are adjacent in memory, as the kernel writes them. Such results are not copied."""
    out = torch.randn(2, 5, 3, 8).transpose(1, 2)
    assert attention._with_adjacent_heads(out) is out
    for other in (out.contiguous(), torch.randn(2, 3, 8, 5).mT, torch.randn(2, 3, 5, 16)[..., :8]):
        found = attention._with_adjacent_heads(other)
        assert found.stride() == (120, 8, 24, 1)
        assert torch.equal(found, other)


def test_alignment_of_foreign_memory() -> None:
    """What begins in the middle of an array has no storage offset."""
    whole = torch.zeros(2, 3, 16, 64, dtype=torch.float16)
    part = torch.from_dlpack(whole.flatten()[1:]).narrow(0, 0, 1024).view(1, 1, 16, 64)
    assert part.storage_offset() == 0
    assert not attention._address(whole) & 15
    assert attention._address(part) & 15
    assert not attention._has_aligned_rows(part, 64)
    assert attention._has_aligned_rows(whole, 64)


def test_truth_values_become_numbers() -> None:
    """Zero where attention is allowed, else minus infinity."""
    mask = torch.tensor([[True, False]])
    assert attention._additive(mask, torch.ones(1)).tolist() == [[0.0, -torch.inf]]
    assert attention._additive(torch.ones(2), torch.ones(1)) is not None
    assert attention._additive(None, torch.ones(1)) is None


@pytest.mark.parametrize("size", [8, 20, 64])
def test_head_sizes_for_the_flash_kernel(size: int) -> None:
    """Filled up with zeros to a multiple of 8, and cut to what they were; nothing is done to one that is."""
    x = torch.randn(2, 3, 5, size)
    (padded,) = attention._padded(x)
    assert (padded is x) == (size % 8 == 0)
    assert torch.equal(attention._cut(padded, x), x)
    assert padded.shape[-1] % 8 == 0
    assert torch.equal(padded[..., :size], x)
    assert padded[..., size:].eq(0).all()


def test_masks_for_the_cudnn_kernel() -> None:
    """A mask whose last dimension is not dense is copied: T5's relative bias is a permuted embedding."""
    mask = torch.randn(16, 16, 8).permute(2, 0, 1)
    readable = attention._readable_mask(mask)
    assert readable is not None
    assert readable.is_contiguous()
    assert torch.equal(readable, mask)
    for unchanged in (torch.ones(16, 16), torch.ones(16, 1), None):
        assert attention._readable_mask(unchanged) is unchanged


LAYOUTS = {
    "heads": lambda b, h, s, d: torch.randn(b, h, s, d),
    "tokens": lambda b, h, s, d: torch.randn(b, s, h, d).transpose(1, 2),
    "batch last": lambda b, h, s, d: torch.randn(h, s, b, d).permute(2, 0, 1, 3),
    "part of a projection": lambda b, h, s, d: torch.randn(b, s, 3, h, d)[:, :, 1].transpose(1, 2),
    "shared by heads": lambda b, h, s, d: torch.randn(b, 1, s, d).expand(b, h, s, d),
}


def _in(layout: str, x: torch.Tensor) -> torch.Tensor:
    """Copy a tensor to memory of a layout."""
    return torch.empty_strided(x.shape, LAYOUTS[layout](*x.shape).stride(), dtype=x.dtype, device=x.device).copy_(x)


@pytest.mark.parametrize("p", [0.0, 0.1])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_graphs_of_the_cudnn_kernel(monkeypatch: pytest.MonkeyPatch, layout: str, p: float) -> None:
    """Strides of gradients and results follow from query's. The key of the graph is not one that eager mode has."""
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(attention, "_cudnn_backward", lambda *args, **_: seen.append(args))
    query = LAYOUTS[layout](2, 3, 5, 8)
    lse, drawn = torch.randn(2, 3, 5), (None, None)
    whole = torch.randn(2, 3, 5, 8)
    for other in ("heads", "tokens", "batch last", "part of a projection"):
        x = _in(other, whole)
        attention._cudnn_gradients(x, query, query, query, None, x, lse, *drawn, p, False, 0.3)
        assert torch.equal(seen[-1][0], x)
        assert torch.equal(seen[-1][1], query)
        assert torch.equal(seen[-1][4], x)
    assert len({tuple(x.stride() for x in (*args[:2], args[4])) for args in seen}) == 1
    grad, mine, *_, found, _ = seen[0]
    assert grad.stride(-1) == 1
    assert sorted(range(4), key=grad.stride) == sorted(range(4), key=mine.stride) or layout == "shared by heads"
    if p:
        assert found == p
        assert not any(step % 16 for step in mine.stride()[:-1])
    else:
        assert math.copysign(1.0, found) == -1.0
        assert mine is query


def test_dense_gradients_for_the_cudnn_kernel_are_not_copied() -> None:
    for layout in ("heads", "tokens", "batch last"):
        x = LAYOUTS[layout](2, 3, 5, 8)
        assert attention._laid_out(x, sorted(range(3), key=x.stride, reverse=True)) is x


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("p", [0.0, 0.1])
@pytest.mark.parametrize("layout", ["heads", "tokens"])
def test_gradients_after_eager_modes(layout: str, p: float) -> None:
    """torch has a graph for each layout of query, key and value, even if gradients of other layouts come later."""
    query, key, value, grad = (torch.randn(2, 4, 120, 64, device="cuda", dtype=torch.float16) for _ in range(4))
    args = [_in(layout, x).requires_grad_() for x in (query, key, value)]
    others = {other: _in(other, grad) for other in ("heads", "tokens", "batch last")}

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, value, dropout_p=p)

    def gradients(fn: Callable[..., torch.Tensor], other: str) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(0)
        return torch.autograd.grad(fn(*args), args, others[other])

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        expected = gradients(attend, "batch last")  # this graph is eager mode's from now on
        jitted = thunder.jit(attend, executors=["torch"], cuda_graphs="never")
        found = [gradients(jitted, other) for other in others]
    assert any("attention" in op.sym.name for op in thunder.last_backward_traces(jitted)[-1].bound_symbols)
    for grads in found:
        for a, b in zip(grads, expected):
            torch.testing.assert_close(a, b, atol=2e-3, rtol=2e-2)
