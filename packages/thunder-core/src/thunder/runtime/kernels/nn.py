# SPDX-License-Identifier: Apache-2.0
"""torch's kernels for convolution, pooling, resampling and dropout, and for their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from thunder.runtime.kernels.table import kernel

aten = torch.ops.aten


# -- convolution -------------------------------------------------------------------------------------------------------
@kernel
def convolution_input_grad(g: torch.Tensor, a: torch.Tensor, weight: torch.Tensor, *how: Any) -> torch.Tensor:
    """Return the gradient of a convolution's input."""
    return aten.convolution_backward(g, a, weight, None, *how, [True, False, False])[0]


@kernel
def convolution_weight_grad(g: torch.Tensor, a: torch.Tensor, weight: torch.Tensor, *how: Any) -> torch.Tensor:
    """Return the gradient of a convolution's weight."""
    return aten.convolution_backward(g, a, weight, None, *how, [False, True, False])[1]


# -- pooling -----------------------------------------------------------------------------------------------------------
@kernel
def max_pool(a: torch.Tensor, kernel_size: Sequence[int], *how: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the maxima of windows and their indices."""
    pools = (torch.max_pool1d_with_indices, torch._C._nn.max_pool2d_with_indices, torch._C._nn.max_pool3d_with_indices)
    return pools[len(kernel_size) - 1](a, kernel_size, *how)


@kernel
def max_pool_backward(g: torch.Tensor, a: torch.Tensor, indices: torch.Tensor, *how: Any) -> torch.Tensor:
    """Return the gradient of max_pool."""
    *windows, ceil_mode = how
    if len(windows[0]) == 3:
        return aten.max_pool3d_with_indices_backward(g, a, *windows, ceil_mode, indices)
    if len(windows[0]) == 2:
        return aten.max_pool2d_with_indices_backward(g, a, *windows, ceil_mode, indices)
    flat = [(first, *x) for x, first in zip(windows, (1, 1, 0, 1))]
    g, a, indices = (x.unsqueeze(-2) for x in (g, a, indices))
    return aten.max_pool2d_with_indices_backward(g, a, *flat, ceil_mode, indices).squeeze(-2)


@kernel
def avg_pool(a: torch.Tensor, kernel_size: Sequence[int], *how: Any) -> torch.Tensor:
    """Return the means of windows."""
    if len(kernel_size) == 1:
        return torch.avg_pool1d(a, kernel_size, *how[:-1])  # this kernel has no divisor argument
    pool = F.avg_pool2d if len(kernel_size) == 2 else F.avg_pool3d
    return pool(a, kernel_size, *how)


@kernel
def avg_pool_backward(g: torch.Tensor, a: torch.Tensor, *how: Any) -> torch.Tensor:
    """Return the gradient of avg_pool."""
    spatial = len(how[0])
    if spatial > 1:
        return (aten.avg_pool3d_backward if spatial == 3 else aten.avg_pool2d_backward)(g, a, *how)
    windows = [(first, *x) for x, first in zip(how[:3], (1, 1, 0))]
    return aten.avg_pool2d_backward(g.unsqueeze(-2), a.unsqueeze(-2), *windows, *how[3:]).squeeze(-2)


@kernel
def adaptive_avg_pool(a: torch.Tensor, output_size: Sequence[int]) -> torch.Tensor:
    """Return the means of windows whose size follows from the output size."""
    pools = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)
    return pools[len(output_size) - 1](a, output_size)


@kernel
def adaptive_avg_pool_backward(g: torch.Tensor, a: torch.Tensor, output_size: Sequence[int]) -> torch.Tensor:
    """Return the gradient of adaptive_avg_pool."""
    if len(output_size) == 3:
        return aten._adaptive_avg_pool3d_backward(g, a)
    if len(output_size) == 2:
        return aten._adaptive_avg_pool2d_backward(g, a)
    return aten._adaptive_avg_pool2d_backward(g.unsqueeze(-2), a.unsqueeze(-2)).squeeze(-2)


@kernel
def adaptive_max_pool(a: torch.Tensor, output_size: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the maxima of windows whose size follows from the output size, and their indices."""
    pools = (torch.adaptive_max_pool1d, torch._C._nn.adaptive_max_pool2d, torch._C._nn.adaptive_max_pool3d)
    return pools[len(output_size) - 1](a, output_size)


@kernel
def adaptive_max_pool_backward(
    g: torch.Tensor, a: torch.Tensor, indices: torch.Tensor, output_size: Sequence[int]
) -> torch.Tensor:
    """Return the gradient of adaptive_max_pool."""
    if len(output_size) == 3:
        # The CPU's kernel assumes that both tensors are contiguous.
        return aten.adaptive_max_pool3d_backward(g.contiguous(), a, indices.contiguous())
    if len(output_size) == 2:
        return aten.adaptive_max_pool2d_backward(g, a, indices)
    g, a, indices = (x.unsqueeze(-2) for x in (g, a, indices))
    return aten.adaptive_max_pool2d_backward(g, a, indices).squeeze(-2)


# -- embedding ---------------------------------------------------------------------------------------------------------
@kernel
def embedding_backward(
    g: torch.Tensor, indices: torch.Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> torch.Tensor:
    """Return the gradient of an embedding's table."""
    if not g.numel():  # torch's GPU kernel reads out of bounds
        return g.new_zeros((num_weights, g.shape[-1]))
    return aten.embedding_dense_backward(g, indices, num_weights, padding_idx, scale_grad_by_freq)


# -- resampling --------------------------------------------------------------------------------------------------------
def _resizer(mode: str, spatial: int, antialias: bool, suffix: str) -> Callable[..., Any]:
    name = "nearest_exact" if mode == "nearest-exact" else mode
    private = "_" if antialias or mode == "nearest-exact" else ""
    return getattr(aten, f"{private}upsample_{name}{spatial}d{'_aa' if antialias else ''}{suffix}").default


def _resized(
    x: torch.Tensor, sizes: Sequence[Any], suffix: str, mode: str, align_corners: bool, scales: Any, antialias: bool
) -> torch.Tensor:
    run = _resizer(mode, len(scales), antialias, suffix)
    corners = () if mode.startswith("nearest") else (align_corners,)
    return run(x, *sizes, *corners, *scales)  # type: ignore[no-any-return]


@kernel
def resize(a: torch.Tensor, output_size: Sequence[int], *how: Any) -> torch.Tensor:
    """Return a resized image."""
    return _resized(a, (output_size,), "", *how)


@kernel
def resize_backward(g: torch.Tensor, input_shape: Sequence[int], *how: Any) -> torch.Tensor:
    """Return the gradient of resize."""
    return _resized(g, (g.shape[2:], input_shape), "_backward", *how)


# -- dropout -----------------------------------------------------------------------------------------------------------
@kernel
def dropout_noise(a: torch.Tensor, p: float, feature: bool) -> torch.Tensor:
    """Return the scaled dropout mask, drawn like the mask of torch's dropout."""
    if feature:
        shape = (*a.shape[:2], *([1] * (a.ndim - 2)))
        return torch.empty(shape, dtype=a.dtype, device=a.device).bernoulli_(1 - p)
    return torch.empty_like(a).bernoulli_(1 - p)


@kernel
def native_dropout(a: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the result of dropout and its mask."""
    return torch.native_dropout(a, p, True)


@kernel
def dropout_backward(grad: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """Return the gradient of dropout's input."""
    return aten.native_dropout_backward(grad, mask, scale)
