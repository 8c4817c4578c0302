# SPDX-License-Identifier: Apache-2.0
"""`interpolate`: sizes and factors in every spelling, and what torch refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thunder

MODES = {
    3: ("nearest", "linear", "area"),
    4: ("nearest-exact", "bilinear", "bicubic", "area"),
    5: ("trilinear", "nearest"),
}


@pytest.mark.parametrize(("ndim", "mode"), [(n, mode) for n, modes in MODES.items() for mode in modes])
def test_sizes_and_factors(as_eager: Any, randn: Any, ndim: int, mode: str) -> None:
    """One number for all dimensions, one for each, factors that do not divide, factors thought over again."""
    x = randn(2, 3, *(5, 4, 3)[: ndim - 2])
    as_eager(lambda x: F.interpolate(x, 7, mode=mode), x)
    as_eager(lambda x: F.interpolate(x, scale_factor=1.7, mode=mode), x)
    as_eager(lambda x: F.interpolate(x, scale_factor=(1.7,) * (ndim - 2), mode=mode, recompute_scale_factor=True), x)
    if mode.endswith(("linear", "cubic")):
        as_eager(lambda x: F.interpolate(x, 7, mode=mode, align_corners=True), x)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialiasing(as_eager: Any, randn: Any, mode: str) -> None:
    """Smoothed on the way down."""
    as_eager(lambda x: F.interpolate(x, (3, 2), mode=mode, antialias=True), randn(2, 3, 8, 6))


@pytest.mark.filterwarnings("ignore:.*upsample. is deprecated")
def test_the_older_names(as_eager: Any, randn: Any) -> None:
    """Which are written in terms of it."""
    as_eager(lambda x: F.upsample(x, scale_factor=2), randn(1, 2, 3, 3))
    as_eager(lambda x: torch.nn.UpsamplingBilinear2d(scale_factor=2)(x), randn(1, 2, 3, 3))


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ({}, ValueError, "either size or scale_factor should be defined"),
        ({"size": 8, "scale_factor": 2.0}, ValueError, "only one of size or scale_factor should be defined"),
        ({"size": (8, 8, 8)}, ValueError, "must have the same number of spatial dimensions"),
        ({"size": 8, "mode": "linear"}, NotImplementedError, "Got 4D input, but linear mode needs 3D input"),
        ({"size": 8, "align_corners": True}, ValueError, "align_corners option can only be set"),
        ({"size": 8, "antialias": True}, ValueError, "Anti-alias option is restricted"),
        ({"size": 8, "mode": "cubic"}, NotImplementedError, "Only 3D, 4D and 5D input Tensors supported"),
    ],
)
def test_errors(how: dict[str, Any], error: type[Exception], message: str) -> None:
    """torch's types and texts."""
    for call in (lambda x: F.interpolate(x, **how), thunder.jit(lambda x: F.interpolate(x, **how))):
        with pytest.raises(error, match=message):
            call(torch.ones(1, 2, 4, 4))
