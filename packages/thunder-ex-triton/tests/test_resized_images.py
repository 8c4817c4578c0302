# SPDX-License-Identifier: Apache-2.0
"""Images that are resampled and concatenated: values, strides and gradients are those of torch, without its copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import thunder

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FORMATS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}


def image(*shape: int, layout: str = "contiguous", dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(DEVICE, dtype).contiguous(memory_format=FORMATS[layout])


def is_joined(jitted: Any) -> bool:
    return "triton_resized_cat(" in str(thunder.last_traces(jitted)[-1])


def check(fn: Callable[..., Any], *inputs: torch.Tensor) -> bool:
    """Compare results and gradients with eager mode. Return whether the operator computes them."""
    jitted = thunder.jit(fn)
    given = [x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for x in inputs]
    found, right = jitted(*given), fn(*given)
    assert found.stride() == right.stride()
    torch.testing.assert_close(found, right)
    g = torch.randn(right.shape, generator=torch.Generator().manual_seed(1)).to(right)
    for mine, wanted in zip(torch.autograd.grad(found, given, g), torch.autograd.grad(right, given, g)):
        assert mine.stride() == wanted.stride()
        torch.testing.assert_close(mine, wanted)
    return is_joined(jitted)


def enlarged(x: torch.Tensor, **how: Any) -> torch.Tensor:
    return F.interpolate(x, size=(6, 8), **{"mode": "bilinear", **how})


@pytest.mark.parametrize("layout", [*FORMATS, "both"])
@pytest.mark.parametrize("how", [{}, {"align_corners": True}, {"mode": "nearest"}])
def test_feature_maps(layout: str, how: dict[str, Any]) -> None:
    """Several sizes, one of which is that of the result, and an image that is not resampled."""
    sizes = ((3, 3, 4), (2, 6, 8), (4, 2, 5), (2, 6, 8))
    layouts = ["contiguous", "channels-last", "channels-last", "contiguous"] if layout == "both" else [layout] * 4
    maps = [image(2, *size, layout=each) for size, each in zip(sizes, layouts)]
    assert check(lambda a, b, c, d: torch.cat([*(enlarged(x, **how) for x in (a, b, c)), d], 1) * 2, *maps)


def test_result_of_the_program() -> None:
    """The result has its memory for itself."""
    a, b = image(2, 3, 3, 4), image(2, 2, 6, 8)
    assert check(lambda a, b: torch.cat([enlarged(a), b], -3), a, b)
    out = thunder.jit(lambda b, a: torch.cat([enlarged(b), enlarged(a)], 1))(b, a)
    assert torch.equal(out[:, :2], b) and out.data_ptr() != b.data_ptr()


def test_half_precision_and_what_is_not_finite() -> None:
    """A copy keeps what is not finite at its place."""
    a, b = image(1, 8, 2, 3, dtype=torch.float16, layout="channels-last"), image(1, 8, 6, 8, dtype=torch.float16)
    b[0, 1, 2, 3] = torch.inf
    found = thunder.jit(lambda a, b: torch.cat([enlarged(a), enlarged(b)], 1))(a, b)
    assert torch.equal(found[:, 8:], b)
    torch.testing.assert_close(found[:, :8], enlarged(a))


def test_what_is_left_to_torch() -> None:
    """Other dimensions and dtypes, several modes, images that are also used otherwise, and images without a size."""
    a, b = image(2, 3, 3, 4), image(2, 3, 6, 8)
    assert not check(lambda a, b: torch.cat([enlarged(a), b], 0), a, b)
    assert not check(lambda a, b: torch.cat([enlarged(a, mode="nearest"), enlarged(a), b], 1), a, b)
    assert not check(lambda a, b: torch.cat([enlarged(a), b], 1), b, b + 1)
    assert not check(lambda a, b: torch.cat([enlarged(a), b.double()], 1), a, b)
    assert not check(lambda a, b: torch.cat([enlarged(a, mode="bicubic"), b], 1), a, b)

    def shared(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        large = enlarged(a)
        return torch.cat([large, b], 1).sum((0, 1)) + large.sum((0, 1))

    assert not check(shared, a, b)
    assert not check(lambda a, b: torch.cat([enlarged(a), b], 1), a[:, :, :1, :1], b)
    symbolic = thunder.jit(lambda a, b: torch.cat([F.interpolate(a, scale_factor=2), b], 1), cache="symbolic values")
    for n in (3, 4, 6):
        x, y = image(2, 3, n, n + 1), image(2, 3, 2 * n, 2 * n + 2)
        torch.testing.assert_close(symbolic(x, y), torch.cat([F.interpolate(x, scale_factor=2), y], 1))
