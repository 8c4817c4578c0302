# SPDX-License-Identifier: Apache-2.0
"""Resampling and its gradient: each is compared with matrices in float64 whose positions are computed in float32."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import thunder
from thunder import prims
from thunder_ex_triton import images
from thunder_ex_triton import resize as module
from thunder_ex_triton.resize import resize, resize_backward

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}
# Triton's interpreter may truncate when it rounds to bfloat16.
ROUNDING = {torch.float32: 1e-6, torch.float16: 2**-10.9, torch.bfloat16: 2**-7.9 if DEVICE == "cuda" else 2**-7}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use tiles that small images do not fit into, with several rows."""
    limits = images.Limits(elements=64, steps=3, lengths=(16, 8))
    monkeypatch.setattr(module, "SAMPLE", (limits, limits))
    monkeypatch.setattr(module, "GATHER", limits)
    monkeypatch.setattr(images, "_PROGRAMS", 1)
    monkeypatch.setattr(images, "_SMALLEST_TILE", 64)
    images.tiles.cache_clear()
    yield
    images.tiles.cache_clear()


def weights(n: int, m: int, mode: str, align_corners: bool, factor: float | None) -> torch.Tensor:
    """Return the matrix (m, n) of one dimension, by torch's formulas for GPUs."""
    positions = torch.arange(m, dtype=torch.float32)
    found = torch.zeros(m, n, dtype=torch.float64)
    rows = torch.arange(m)
    scale = torch.tensor(n / m if factor is None else 1 / factor, dtype=torch.float32)
    if mode.startswith("nearest"):
        source = (positions + (0.5 if mode == "nearest-exact" else 0.0)) * scale
        found[rows, source.floor().long().clamp(max=n - 1)] = 1
        return found
    if align_corners:
        source = positions * torch.tensor((n - 1) / (m - 1) if m > 1 else 0.0, dtype=torch.float32)
    else:
        source = ((positions + 0.5) * scale - 0.5).clamp(min=0)
    first = source.floor().long().clamp(max=n - 1)
    fraction = (source - first).double()
    found.index_put_((rows, first), 1 - fraction, accumulate=True)
    found.index_put_((rows, (first + 1).clamp(max=n - 1)), fraction, accumulate=True)
    return found


def expected(x: torch.Tensor, matrices: Sequence[torch.Tensor], backward: bool) -> torch.Tensor:
    """Apply a matrix to each spatial dimension in float64."""
    out = x.double().cpu()
    for dim, matrix in enumerate(matrices, 2):
        out = torch.tensordot(out, matrix if backward else matrix.t(), dims=([dim], [0])).movedim(-1, dim)
    return out


def check(a: torch.Tensor, ends: Sequence[int], mode: str, align: bool = False, factors: Any = None) -> None:
    """Compare the forward for `a`, and the backward for a gradient in the same layout."""
    how = (mode, align, (None,) * len(ends) if factors is None else factors, False)
    matrices = [weights(n, m, mode, align, s) for n, m, s in zip(a.shape[2:], ends, how[2])]
    out = resize(a, ends, *how)
    close(out, expected(a, matrices, False))
    g = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)  # in the layout of `out`
    close(resize_backward(g, a.shape, *how), expected(g, matrices, True))


def close(found: torch.Tensor, right: torch.Tensor) -> None:
    """The float32 result is rounded once: the error is at most that of the dtype's rounding, and of float32 sums."""
    rtol = ROUNDING[found.dtype] + 1e-6
    torch.testing.assert_close(found.cpu().double(), right, rtol=rtol, atol=2e-5 if rtol < 1e-4 else 1e-4)


def image(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    ("sizes", "ends"),
    [
        ((3, 5), (12, 20)),
        ((4, 5), (7, 13)),
        ((2, 3), (6, 15)),
        ((9, 8), (3, 2)),
        ((5, 7), (4, 5)),
        ((1, 1), (3, 40)),
        ((5, 1), (5, 3)),
        ((5, 4), (1, 1)),
        ((1, 20), (1, 23)),
    ],
)
def test_two_dimensions(sizes: tuple[int, int], ends: tuple[int, int], channels_last: bool) -> None:
    """Enlarged and reduced, by whole numbers and others, and dimensions of one element, in every mode."""
    a = image(1, 9, *sizes)
    if channels_last:
        a = a.contiguous(memory_format=torch.channels_last)
    for mode, align in (("bilinear", False), ("bilinear", True), ("nearest", False), ("nearest-exact", False)):
        check(a, ends, mode, align)


@pytest.mark.parametrize("spatial", [1, 3])
def test_one_and_three_dimensions(spatial: int) -> None:
    """They are two dimensions with fewer and with more of them."""
    for sizes, ends in (((3, 2, 3), (2, 3, 6)), ((1, 3, 1), (3, 2, 4))):
        a = image(1, 3, *sizes[:spatial])
        for mode, align in ((MODES[spatial], False), (MODES[spatial], True), ("nearest", False)):
            check(a, ends[:spatial], mode, align)
        if spatial == 3:
            check(a.contiguous(memory_format=torch.channels_last_3d), ends, "trilinear")


@settings(max_examples=40)
@given(st.data())
def test_any_scale(data: st.DataObject) -> None:
    """Sizes and factors: with a factor, positions are computed from the factor and not from the sizes."""
    spatial = data.draw(st.integers(1, 2))
    sizes = data.draw(st.lists(st.integers(1, 20), min_size=spatial, max_size=spatial))
    mode = data.draw(st.sampled_from([MODES[spatial], "nearest", "nearest-exact"]))
    align = mode in MODES.values() and data.draw(st.booleans())
    factors = ends = None
    if data.draw(st.booleans()):
        factors = tuple(data.draw(st.floats(1 / n, 30 / n)) for n in sizes)
        ends = tuple(math.floor(n * s) for n, s in zip(sizes, factors))
    if ends is None or min(ends) < 1:
        ends, factors = tuple(data.draw(st.lists(st.integers(1, 30), min_size=spatial, max_size=spatial))), None
    check(image(1, 1, *sizes), ends, mode, align, factors)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_positions_between_two_elements(mode: str) -> None:
    """Products of positions and inexact scales are rounded, also across a whole number. No gradient is lost."""
    for n, m in ((28, 4), (49, 7), (52, 7), (36, 10), (25, 175), (7, 150)):
        check(image(1, 1, n), (m,), mode)
        g = torch.ones(1, 1, m, device=DEVICE)
        assert resize_backward(g, (1, 1, n), mode, False, (None,), False).sum() == m


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype: torch.dtype) -> None:
    """The sum of many gradients has the precision of float32."""
    check(image(1, 3, 2, 6, dtype=dtype), (16, 48), "bilinear")
    check(image(1, 3, 5, 4, dtype=dtype).contiguous(memory_format=torch.channels_last), (9, 3), "bilinear", True)
    check(image(1, 3, 3, 5, dtype=dtype), (9, 10), "nearest")


def test_large_scales_are_not_unrolled(monkeypatch: pytest.MonkeyPatch) -> None:
    """More positions along the width than fit into an unrolled loop."""
    monkeypatch.setattr(module, "_UNROLLED", 4)
    for n, m in ((3, 23), (2, 16), (1, 9)):
        for mode in ("linear", "nearest"):
            check(image(2, 3, n), (m,), mode)


def layouts(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield tensors with the shape of `x` and different strides."""
    yield x
    yield x.contiguous(memory_format=torch.channels_last)
    yield x.transpose(2, 3).contiguous().transpose(2, 3)
    yield x.transpose(0, 1).contiguous().transpose(0, 1)
    yield torch.stack((x, x), -1)[..., 0]
    yield torch.cat((x, x), 1)[:, : x.shape[1]].contiguous(memory_format=torch.channels_last)
    yield torch.cat((x, x), 1).contiguous(memory_format=torch.channels_last)[:, : x.shape[1]]
    yield x[:1, :1, :1].expand(x.shape)
    yield x[:, :, :, :1].expand(x.shape)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 1, 4, 5), (1, 3, 4, 5), (2, 3, 1, 1), (2, 1, 1, 1), (0, 3, 4, 5)])
def test_layouts(shape: tuple[int, ...]) -> None:
    """Inputs of any strides are read without a copy, and results have the strides of torch's results."""
    for mode in ("bilinear", "nearest"):
        how = (mode, False, (None, None), False)
        for a in layouts(image(*shape)):
            out, right = resize(a, (3, 6), *how), prims.resize(a, (3, 6), *how)
            assert out.stride() == right.stride()
            torch.testing.assert_close(out, right)
        for g in layouts(image(*shape)):
            found = resize_backward(g, (*shape[:2], 2, 3), *how)
            right = prims.resize_backward(g, (*shape[:2], 2, 3), *how)
            assert found.stride() == right.stride()
            torch.testing.assert_close(found, right)


@pytest.mark.parametrize("channels", [6, 8])
def test_vectors_of_channels(channels: int) -> None:
    """Even numbers of channels, of which a program reads vectors, also in a part of a larger image."""
    memory = image(2, channels + 4, 5, 3, dtype=torch.float16).contiguous(memory_format=torch.channels_last)
    for a in (memory[:, :channels], memory[:, 1 : 1 + channels]):
        check(a, (13, 7), "bilinear")
        check(a, (2, 5), "nearest")
    whole = memory[:, :channels].contiguous(memory_format=torch.channels_last)
    check(whole, (13, 7), "bilinear")
    units = [module._unit(*how) for how in ((whole, whole, True), (memory[:, :channels], whole, True))]
    assert units == {6: [2, 2], 8: [8, 4]}[channels] and module._unit(whole, whole, False) == 1


def test_rows_of_a_program() -> None:
    """A program has as many rows as leave enough programs, and at most those of the image."""
    images.tiles.cache_clear()
    for height, programs, rows in ((64, 1, 4), (64, 32, 2), (3, 1, 3)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(images, "_PROGRAMS", programs)
            images.tiles.cache_clear()
            found = images.tiles(1, 1, 1, height, 8, False, images.Limits(elements=64, steps=4, lengths=(16, 8)))
            assert (found[0], found[3]) == (-(-height // rows), rows)


def test_strides_of_volumes() -> None:
    """Results for volumes may be channels-last, results for sequences are not."""
    a = image(2, 3, 4, 2, 3)
    for x in (a, a.contiguous(memory_format=torch.channels_last_3d), a.transpose(1, 4).contiguous().transpose(1, 4)):
        for mode in ("trilinear", "nearest"):
            how = (mode, False, (None, None, None), False)
            assert resize(x, (3, 3, 4), *how).stride() == prims.resize(x, (3, 3, 4), *how).stride()
            shape = (2, 3, 2, 5, 1)
            right = prims.resize_backward(x, shape, *how)
            assert resize_backward(x, shape, *how).stride() == right.stride()
    x = image(2, 5, 3).transpose(1, 2)
    how = ("linear", False, (None,), False)
    assert resize(x, (8,), *how).stride() == prims.resize(x, (8,), *how).stride() == (24, 8, 1)


def test_what_is_not_finite_stays_with_its_readers() -> None:
    """An infinite gradient reaches no other elements, also where it is in the range of positions of others."""
    g = torch.ones(1, 1, 12, 15, device=DEVICE)
    g[0, 0, 5, 8] = torch.inf
    how = ("bilinear", False, (None, None), False)
    found = resize_backward(g, (1, 1, 4, 5), *how)
    reads = expected(g.isinf(), [weights(n, m, "bilinear", False, None) for n, m in ((4, 12), (5, 15))], True) > 0
    assert torch.equal(found.isfinite().cpu(), ~reads)
    a = torch.zeros(1, 1, 2, 2, device=DEVICE)
    a[0, 0, 1, 1] = torch.nan
    out = resize(a, (4, 4), "nearest", False, (None, None), False)
    assert out[..., 2:, 2:].isnan().all() and out.isnan().sum() == 4


def test_repeated_runs_are_equal() -> None:
    """The order of additions is fixed."""
    g = image(2, 3, 13, 17, dtype=torch.bfloat16)
    how = ("bilinear", False, (None, None), False)
    assert torch.equal(resize_backward(g, (2, 3, 4, 5), *how), resize_backward(g, (2, 3, 4, 5), *how))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_in_a_program(memory_format: torch.memory_format) -> None:
    """`interpolate` runs the kernels in both directions, and second derivatives too."""
    a = image(2, 3, 4, 5).contiguous(memory_format=memory_format).requires_grad_()

    def f(a: Any) -> Any:
        return F.interpolate(a * 2, scale_factor=2.5, mode="bilinear").relu()

    jitted = thunder.jit(f)
    out, right = jitted(a), f(a)
    assert out.stride() == right.stride()
    torch.testing.assert_close(out, right)
    g = torch.randn_like(out)
    (found,), (wanted,) = torch.autograd.grad(out, a, g), torch.autograd.grad(right, a, g)
    assert found.stride() == wanted.stride()
    torch.testing.assert_close(found, wanted)
    assert "triton_resize(" in str(thunder.last_traces(jitted)[-1])
    assert "triton_resize_backward(" in str(thunder.last_backward_traces(jitted)[-1])


@pytest.mark.skipif(DEVICE == "cpu", reason="CUDA graphs need a GPU")
def test_in_a_graph() -> None:
    """The launches wait for nothing, so that a CUDA graph can contain them."""
    a, g = image(2, 3, 4, 5), image(2, 3, 9, 10)
    how = ("bilinear", False, (None, None), False)

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        return resize(a, (9, 10), *how), resize_backward(g, a.shape, *how)

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run()
    a.mul_(2)
    g.mul_(3)
    graph.replay()
    for each, right in zip(found, run()):
        assert torch.equal(each, right)


def test_gradient_of_the_gradient() -> None:
    """Resampling is linear, so it is the gradient of its gradient."""
    g = image(2, 3, 8, 7).requires_grad_()
    how = ("bilinear", True, (None, None), False)
    jitted = thunder.jit(lambda g: prims.resize_backward(g, (2, 3, 4, 5), *how))
    v = image(2, 3, 4, 5)
    (found,) = torch.autograd.grad(jitted(g), g, v)
    torch.testing.assert_close(found, prims.resize(v, (8, 7), *how))
    assert "triton_resize(" in str(thunder.last_backward_traces(jitted)[-1])


def test_symbolic_sizes_are_left_to_torch() -> None:
    """One program runs all sizes."""
    jitted = thunder.jit(lambda a: F.interpolate(a, scale_factor=2, mode="nearest") + 1, cache="symbolic values")
    for n in (3, 4, 6):
        a = image(2, 3, n, n + 1)
        torch.testing.assert_close(jitted(a), F.interpolate(a, scale_factor=2, mode="nearest") + 1)


def test_what_is_left_to_torch() -> None:
    """Modes and dtypes without kernels, copies, and scale factors that contradict the sizes."""

    class Like:
        """What is asked of a proxy."""

        def __init__(self, *shape: int, dtype: Any = thunder.dtypes.float32):
            self.shape, self.dtype = shape, dtype
            self.device = torch.device(DEVICE)

    def takes(*how: Any, a: Any = None, ends: Any = (8, 10)) -> Any:
        forward = module._takes_forward(a or Like(2, 3, 4, 5), ends, *how)
        g = Like(2, 3, *ends, dtype=a.dtype if a else thunder.dtypes.float32)
        assert module._takes_backward(g, (2, 3, 4, 5), *how) == forward
        return forward

    none = (None, None)
    assert takes("bilinear", False, none, False) is True
    assert takes("nearest", False, (2.0, 2.1), False) is True
    assert "antialias" in takes("bilinear", False, none, True)
    assert "bicubic" in takes("bicubic", False, none, False)
    assert "float64" in takes("bilinear", False, none, False, a=Like(2, 3, 4, 5, dtype=thunder.dtypes.float64))
    assert "scale factor" in takes("bilinear", False, (3.0, 2.0), False)
    assert "does not change" in takes("bilinear", False, none, False, ends=(4, 5))
    assert "symbolic scale" in takes("bilinear", False, (object(), 2.0), False)
    assert "symbolic sizes" in takes("bilinear", False, none, False, ends=(object(), 10))
