# SPDX-License-Identifier: Apache-2.0
"""Pooling: every way to ask for indices, windows over the edge, equal elements, and torch's words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thunder


def test_indices(as_eager: Any, randn: Any) -> None:
    """By the option, by the function's own name, by torch's; they undo the pooling."""
    x = randn(2, 3, 6, 6)
    as_eager(lambda x: F.max_pool2d(x, 2, return_indices=True), x)
    as_eager(lambda x: F.max_pool2d_with_indices(x, 2), x)
    as_eager(lambda x: F.max_pool1d(x[0], 3, 2, 1, return_indices=True), x)
    as_eager(lambda x: F.adaptive_max_pool2d(x, 2, return_indices=True), x)
    as_eager(lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), x)


@pytest.mark.parametrize("ceil_mode", [True, False])
@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_windows_over_the_edge(as_eager: Any, randn: Any, spatial: int, ceil_mode: bool) -> None:
    """Maxima, means that count the padding and means that do not, p-norms."""
    x = randn(2, 3, *(7, 6, 5)[:spatial])
    max_pool, avg_pool, lp_pool = (getattr(F, f"{name}_pool{spatial}d") for name in ("max", "avg", "lp"))
    as_eager(lambda x: max_pool(x, 3, 2, 1, 1, ceil_mode), x)
    as_eager(lambda x: max_pool(x, 2, stride=1, dilation=2), x)
    as_eager(lambda x: avg_pool(x, 3, 2, 1, ceil_mode), x)
    as_eager(lambda x: avg_pool(x, 3, 2, 1, ceil_mode, False), x)
    as_eager(lambda x: lp_pool(x.abs(), 2.0, 2, None, ceil_mode), x)
    as_eager(lambda x: max_pool(x[0], 2), x)


@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_windows_for_an_output_size(as_eager: Any, randn: Any, spatial: int) -> None:
    """Fewer, more, one, and as many as there are."""
    x = randn(2, 3, *(7, 6, 5)[:spatial])
    for size in (3, 1, 9, *(((2, *(None,) * (spatial - 1)),) if spatial > 1 else ())):
        as_eager(lambda x: getattr(F, f"adaptive_avg_pool{spatial}d")(x, size), x)
        as_eager(lambda x: getattr(F, f"adaptive_max_pool{spatial}d")(x, size), x)


def test_equal_elements_and_nans(as_eager: Any) -> None:
    """The first of equal ones, or a NaN, gets the gradient."""
    x = torch.tensor([[1.0, 1.0, 0.0, float("nan")], [1.0, 0.0, 2.0, 2.0]], dtype=torch.float64).reshape(1, 1, 2, 4)
    as_eager(lambda x: F.max_pool2d(x, 2), x.requires_grad_())
    as_eager(lambda x: F.adaptive_max_pool2d(x, (1, 2)), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_channels_last(as_eager: Any, randn: Any, dtype: torch.dtype) -> None:
    """The layout is kept, and the numbers are eager's."""
    x = randn(2, 4, 6, 6, dtype=dtype).detach().to(memory_format=torch.channels_last).requires_grad_()
    as_eager(lambda x: F.max_pool2d(x, 2), x, exactly=True)
    as_eager(lambda x: F.avg_pool2d(x, 2), x, exactly=True)
    assert thunder.jit(lambda x: F.max_pool2d(x, 2))(x.detach()).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x: F.max_pool2d(x, 9), r"Given input size: \(3x5x5\)\. Calculated output size: \(3x0x0\)"),
        (lambda x: F.max_pool2d(x, 2, padding=2), "pad should be at most half of effective kernel size"),
        (lambda x: F.max_pool2d(x, (2, 2, 2)), "kernel_size must either be a single int, or a tuple of two ints"),
        (lambda x: F.max_pool2d(x[0, 0], 2), r"non-empty 3D or 4D \(batch mode\) tensor expected for input"),
        (lambda x: F.avg_pool2d(x, 2, divisor_override=0), "divisor must be not zero"),
        (lambda x: F.adaptive_avg_pool2d(x[0, 0], 2), "Expected 3D or 4D tensor, but got"),
        (lambda x: F.adaptive_avg_pool2d(x, -1), r"but received \{-1, -1\}"),
    ],
)
def test_errors(fn: Any, message: str) -> None:
    """torch's words."""
    for call in (fn, thunder.jit(fn)):
        with pytest.raises(RuntimeError, match=message):
            call(torch.ones(2, 3, 5, 5))
