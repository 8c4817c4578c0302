# SPDX-License-Identifier: Apache-2.0
"""Resampling of images to another size, and its gradient. Both are linear, and each is the gradient of the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thunder.core.errors import check
from thunder.core.prims.base import prim
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput

# The numbers of spatial dimensions that each mode supports.
RESIZE_MODES: dict[str, tuple[int, ...]] = {
    "nearest": (1, 2, 3),
    "nearest-exact": (1, 2, 3),
    "linear": (1,),
    "bilinear": (2,),
    "bicubic": (2,),
    "trilinear": (3,),
}


@prim()
def resize(
    a: TensorProxy,
    output_size: Sequence[int],
    mode: str,
    align_corners: bool,
    scales: Sequence[float | None],
    antialias: bool,
    /,
) -> TensorProxy:
    """Resample `a` (batch, channels, *spatial) to `output_size`.

    `scales` contains the user's scale factors, with which positions are computed, or None if the user passed a size.
    """
    spatial = len(output_size)
    check(
        a.ndim == spatial + 2,
        lambda: (
            f"resize: {spatial} output sizes were given for an input of shape {a.shape}, which has {a.ndim - 2} "
            "spatial dimensions"
        ),
    )
    check(
        min((*a.shape[1:], *output_size)) > 0,
        lambda: (
            f"Input and output sizes should be greater than 0, but got input {a.shape[2:]} and output "
            f"{tuple(output_size)}"
        ),
    )
    check(
        spatial in RESIZE_MODES.get(mode, ()),
        lambda: f"resize: {mode!r} is not a mode for {spatial} spatial dimensions",
    )
    return TensorProxy(like=a, shape=(*a.shape[:2], *output_size))


@resize.vjp
def _(g: Any, out: Any, a: Any, output_size: Any, mode: Any, align_corners: Any, scales: Any, antialias: Any) -> Any:
    return resize_backward(g, a.shape, mode, align_corners, scales, antialias)


@prim()
def resize_backward(
    g: TensorProxy,
    input_shape: Sequence[int],
    mode: str,
    align_corners: bool,
    scales: Sequence[float | None],
    antialias: bool,
    /,
) -> TensorProxy:
    """Return the gradient of `resize` for an input of `input_shape`."""
    return TensorProxy(like=g, shape=tuple(input_shape))


@resize_backward.vjp
def _(v: Any, out: Any, g: Any, input_shape: Any, mode: Any, align_corners: Any, scales: Any, antialias: Any) -> Any:
    return resize(v, g.shape[2:], mode, align_corners, scales, antialias)


_CASES: tuple[Any, ...] = (
    ((2, 3, 4, 5), (8, 3), "nearest", False, (None, None), False),
    ((2, 3, 4, 5), (6, 7), "bilinear", False, (None, None), False),
    ((2, 3, 4, 5), (6, 7), "bilinear", True, (None, None), False),
    ((2, 3, 4, 5), (3, 2), "bilinear", False, (None, None), True),
    ((2, 3, 4, 5), (6, 10), "bicubic", False, (1.5, 2.0), False),
    ((2, 3, 4, 5), (3, 2), "bicubic", False, (None, None), True),
    ((2, 3, 5), (8,), "linear", False, (None,), False),
    ((2, 3, 5), (8,), "nearest-exact", False, (None,), False),
    ((1, 2, 3, 4, 2), (4, 2, 5), "trilinear", False, (None, None, None), False),
    ((1, 2, 3, 4, 2), (4, 2, 5), "nearest", False, (None, None, None), False),
)


@resize.batch
def _(b: Any, a: Any, *how: Any) -> Any:
    return b.split(resize(b.merge(a), *how), a.shape[1])


@resize.samples
def _(make: MakeTensor) -> Any:
    for shape, *how in _CASES:
        yield SampleInput(make(shape), *how)


@resize_backward.batch
def _(b: Any, g: Any, input_shape: Any, *how: Any) -> Any:
    return b.split(resize_backward(b.merge(g), (b.size * input_shape[0], *input_shape[1:]), *how), input_shape[0])


@resize_backward.samples
def _(make: MakeTensor) -> Any:
    for shape, size, *how in _CASES:
        yield SampleInput(make((*shape[:2], *size)), shape, *how)


@resize.errors
def _(make: MakeTensor) -> Any:
    how = (False, (None, None), False)
    yield SampleInput(make((2, 3, 4)), (8, 8), "nearest", *how), RuntimeError, "2 output sizes were given"
    yield SampleInput(make((2, 3, 4, 4)), (8, 8), "linear", *how), RuntimeError, "not a mode for 2 spatial dimensions"
