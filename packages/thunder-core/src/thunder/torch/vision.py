# SPDX-License-Identifier: Apache-2.0
"""Resizing of images: `interpolate` in all its modes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F

from thunder.core import prims
from thunder.core.errors import check
from thunder.core.prims.resize import RESIZE_MODES
from thunder.core.samples import MakeTensor, SampleInput
from thunder.torch.base import operations as ltorch
from thunder.torch.base import torchsymbol

_SMOOTH = ("linear", "bilinear", "bicubic", "trilinear")
_MODES = "nearest | linear | bilinear | bicubic | trilinear | lanczos | area | nearest-exact"


def size_and_scales(input: Any, size: Any, scale_factor: Any) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """Return the output size, and the scale factors if the caller passed these instead."""
    spatial = input.ndim - 2
    check(
        size is None or scale_factor is None, lambda: "only one of size or scale_factor should be defined", ValueError
    )
    check(
        size is not None or scale_factor is not None,
        lambda: "either size or scale_factor should be defined",
        ValueError,
    )
    given = size if size is not None else scale_factor
    name = "output size" if size is not None else "scale_factor"
    values = tuple(given) if isinstance(given, Sequence) else (given,) * spatial
    check(
        len(values) == spatial,
        lambda: (
            f"Input and {name.split()[-1] if size is None else 'output'} must have the same number of spatial "
            "dimensions, but "
            f"got input with spatial dimensions of {list(input.shape[2:])} and {name} of {given}."
        ),
        ValueError,
    )
    if size is not None:
        return values, (None,) * spatial
    return tuple(math.floor(n * s) for n, s in zip(input.shape[2:], values)), values


def check_mode(input: Any, mode: str, align_corners: bool | None, antialias: bool) -> None:
    check(
        align_corners is None or mode in _SMOOTH,
        lambda: (
            "align_corners option can only be set with the interpolating modes: linear | bilinear | bicubic | trilinear"
        ),
        ValueError,
    )
    check(
        not antialias or (mode in ("bilinear", "bicubic") and input.ndim == 4),
        lambda: (
            "Anti-alias option is restricted to bilinear, bicubic, and lanczos modes and requires a 4-D tensor as input"
        ),
        ValueError,
    )
    spatial = input.ndim - 2
    wanted = RESIZE_MODES.get(mode, (1, 2, 3) if mode == "area" else ())
    check(
        spatial in wanted,
        lambda: (
            f"Got {input.ndim}D input, but {mode} mode needs {wanted[0] + 2}D input"
            if wanted and spatial in (1, 2, 3)
            else f"Input Error: Only 3D, 4D and 5D input Tensors supported (got {input.ndim}D) for the modes: "
            f"{_MODES} (got {mode})"
        ),
        NotImplementedError,
    )


@torchsymbol(F.interpolate, is_method=False)
def interpolate(
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    """Resample `(batch, channels, *spatial)` to `size`, or by `scale_factor`."""
    output_size, scales = size_and_scales(input, size, scale_factor)
    check_mode(input, mode, align_corners, antialias)
    check(
        not recompute_scale_factor or size is None,
        lambda: "recompute_scale_factor is not meaningful with an explicit size.",
        ValueError,
    )
    if mode == "area":
        pool = (ltorch.adaptive_avg_pool1d, ltorch.adaptive_avg_pool2d, ltorch.adaptive_avg_pool3d)[input.ndim - 3]
        return pool(input, output_size)
    if recompute_scale_factor:
        scales = (None,) * len(output_size)
    scales = tuple(None if s is None else float(s) for s in scales)
    return prims.resize(input, output_size, mode, bool(align_corners), scales, antialias)


@interpolate.samples
def _(make: MakeTensor) -> Any:
    image = (2, 3, 4, 5)
    for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area"):
        yield SampleInput(make(image), (6, 3), mode=mode)
        yield SampleInput(make(image), scale_factor=1.5, mode=mode)
    yield SampleInput(make(image), 7, mode="bilinear", align_corners=True)
    yield SampleInput(make(image), scale_factor=(0.5, 2.0), mode="bilinear", recompute_scale_factor=True)
    yield SampleInput(make(image), (3, 2), mode="bilinear", antialias=True)
    yield SampleInput(make(image), (3, 2), mode="bicubic", antialias=True, align_corners=False)
    for mode in ("nearest", "linear", "area"):
        yield SampleInput(make((2, 3, 5)), 8, mode=mode)
    for mode in ("nearest", "trilinear", "area"):
        yield SampleInput(make((1, 2, 3, 4, 2)), (4, 2, 3), mode=mode)


@interpolate.errors
def _(make: MakeTensor) -> Any:
    x = make((2, 3, 4, 4))
    yield SampleInput(x), ValueError, "either size or scale_factor should be defined"
    yield SampleInput(x, 8, 2.0), ValueError, "only one of size or scale_factor should be defined"
    yield SampleInput(x, (8, 8, 8)), ValueError, "must have the same number of spatial dimensions"
    yield SampleInput(x, 8, mode="linear"), NotImplementedError, "Got 4D input, but linear mode needs 3D input"
    yield SampleInput(x, 8, align_corners=True), ValueError, "align_corners option can only be set"
    yield SampleInput(x, 8, mode="nearest", antialias=True), ValueError, "Anti-alias option is restricted"
