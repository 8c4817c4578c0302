# SPDX-License-Identifier: Apache-2.0
"""What `backward()` inside a compiled program leaves: the `.grad` of leaf tensors, and results without a graph."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["new_gradient", "with_freed_graph"]


def new_gradient(gradient: torch.Tensor, leaf: torch.Tensor, shared: bool) -> torch.Tensor:
    """Return the `.grad` of a leaf that has none: with the strides of the leaf, and with memory of its own.

    `shared` says whether another tensor uses the memory of `gradient`.
    """
    if not shared and gradient.stride() == leaf.stride() and leaf.is_contiguous():
        return gradient
    if _is_dense(leaf):
        if not shared and _same_strides(gradient, leaf):
            return gradient
        return torch.empty_strided(leaf.shape, leaf.stride(), dtype=gradient.dtype, device=gradient.device).copy_(
            gradient
        )
    if not shared and gradient.is_contiguous():
        return gradient
    return gradient.clone(memory_format=torch.contiguous_format)


def _same_strides(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compare the strides of dimensions with more than one element."""
    return all(n < 2 or a == b for n, a, b in zip(one.shape, one.stride(), other.stride()))


def _is_dense(x: torch.Tensor) -> bool:
    """Check whether the elements of a tensor fill its memory without gaps and without overlaps."""
    expected = 1
    for stride, n in sorted((stride, n) for n, stride in zip(x.shape, x.stride()) if n != 1):
        if stride != expected:
            return x.numel() == 0
        expected *= n
    return True


class _FreedGraph(torch.autograd.Function):
    """A node without saved values, like the nodes of a graph after `backward()`."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Return an alias of `x` that is no view."""
        with torch.no_grad():
            return torch.empty((0,), dtype=x.dtype, device=x.device).set_(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # type: ignore[override]
        """Raise the error of torch's own nodes."""
        raise RuntimeError(
            "Trying to backward through the graph a second time (or directly access saved tensors after they have "
            "already been freed). Saved intermediate values of the graph are freed when you call .backward() or "
            "autograd.grad(). Specify retain_graph=True if you need to backward through the graph a second time or if "
            "you need to access saved tensors after calling backward."
        )


def with_freed_graph(x: torch.Tensor) -> Any:
    """Return a tensor that requires grad, and whose graph an earlier `backward()` has freed."""
    with torch.enable_grad():
        return _FreedGraph.apply(torch.empty((0,), device="cpu", requires_grad=True), x)  # type: ignore[no-untyped-call]
