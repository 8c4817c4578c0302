# SPDX-License-Identifier: Apache-2.0
"""Convolutions as products, grouped and narrow: kernels against float64, which programs contain them, the choice."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import thunder
from thunder.extend import TensorProxy, dtypes
from thunder.toolkit.testing import deterministic_algorithms, measured_times, new_process, repeats
from thunder_ex_triton.convolutions.family import Convolution, Row
from thunder_ex_triton.convolutions.operators import FAMILIES
from thunder_ex_triton.grouped import rule
from thunder_ex_triton.grouped.launches import Tile, convolution, input_gradient, parts_of, weight_gradient
from thunder_ex_triton.images import is_channels_last, new_convolved

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.float16
ON_DEVICE = torch.float16 if DEVICE == "cpu" else torch.bfloat16  # the interpreter has no products in bfloat16
TOLERANCES = {torch.float16: 2e-3, torch.float32: 3e-6, torch.bfloat16: 1.6e-2}
FORWARD, INPUT, WEIGHT = [f"triton_grouped_{name}" for name in ("convolution", "input_grad", "weight_grad")]
NARROW = [name.replace("grouped", "narrow") for name in (FORWARD, INPUT, WEIGHT)]
TILE = Tile(16, 16, 16, 2, 1)

# (shape, filters, groups, size of the kernel, stride, padding)
CASES: list[tuple[Any, ...]] = [
    ((2, 24, 19), 24, 4, (8,), (1,), (4,)),
    ((2, 40, 11), 4, 2, (3,), (2,), (0,)),
    ((2, 6, 9, 8), 10, 2, (3, 3), (1, 1), (1, 1)),
    ((2, 8, 9, 8), 8, 4, (3, 3), (2, 2), (1, 1)),
    ((1, 6, 7, 9), 66, 3, (5, 2), (3, 2), (0, 1)),
    ((1, 4, 5, 3), 8, 4, (2, 3), (1, 1), (3, 3)),
    ((1, 4, 2, 3), 4, 2, (2, 3), (2, 3), (0, 0)),
    ((2, 3, 11, 9), 20, 1, (7, 7), (2, 2), (3, 3)),
    ((2, 1, 23), 5, 1, (10,), (5,), (0,)),
]


def random(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


def ordered(x: torch.Tensor, layout: str) -> torch.Tensor:
    """Return a tensor in a layout: contiguous, channels last, or a view with gaps of which no stride is 1."""
    if layout == "channels-last":
        return x.movedim(1, -1).contiguous().movedim(-1, 1)
    return torch.stack((x, x), -1)[..., 0] if layout == "gaps" else x


def torch_gradients(g: Any, a: Any, weight: Any, stride: Any, padding: Any) -> Any:
    n = len(stride)
    how = [*stride], [*padding], [1] * n, False, [0] * n, a.shape[1] // weight.shape[1], [True, True, False]
    return torch.ops.aten.convolution_backward(g, a, weight, [weight.shape[0]], *how)[:2]


def check(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert found.dtype is dtype
    scale = max(1.0, expected.abs().max().item())
    torch.testing.assert_close(found.double(), expected, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype] * scale)


# -- kernels ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "layouts, dtype",
    [
        (("contiguous", "channels-last", "contiguous"), HALF), (("channels-last", "gaps", "channels-last"), HALF),
        (("gaps", "contiguous", "gaps"), torch.float32), (("channels-last", "contiguous", "contiguous"), ON_DEVICE),
    ],
)  # fmt: skip
@pytest.mark.parametrize("shape, filters, groups, size, stride, padding", CASES)
def test_kernels(
    shape: Any, filters: int, groups: int, size: Any, stride: Any, padding: Any, layouts: Any, dtype: torch.dtype
) -> None:
    """The layouts are those of the input, of the gradient and of the weight."""
    a = ordered(random(*shape, dtype=dtype), layouts[0])
    weight = ordered(random(filters, shape[1] // groups, *size, dtype=dtype), layouts[2])
    how = stride, padding
    convolve = F.conv2d if len(size) == 2 else F.conv1d
    for bias in (None, random(filters, dtype=dtype)):
        wide = None if bias is None else bias.double()
        expected = convolve(a.double(), weight.double(), wide, *how, 1, groups)
        found = convolution(a, weight, bias, *how, TILE)
        check(found, expected, dtype)
        assert is_channels_last(found) == (a.ndim == 4 and "channels-last" in (layouts[0], layouts[2]))
    g = ordered(random(*expected.shape, dtype=dtype), layouts[1])
    of_input, of_weight = torch_gradients(g.double(), a.double(), weight.double(), *how)
    check(input_gradient(g, a, weight, *how, TILE), of_input, dtype)
    found = weight_gradient(g, a, weight, *how, TILE)
    check(found, of_weight, dtype)
    assert found.is_contiguous()


@pytest.mark.parametrize("order", ["contiguous", "transposed weight", "transposed input", "both transposed"])
@pytest.mark.parametrize("groups", [1, 3])
def test_layouts_of_sequences(order: str, groups: int) -> None:
    """Results have the strides of torch's, which computes images of height one."""
    a, weight = random(2, 6, 9, dtype=HALF), random(6, 6 // groups, 4, dtype=HALF)
    a = ordered(a, "channels-last") if order in ("transposed input", "both transposed") else a
    weight = ordered(weight, "channels-last") if order in ("transposed weight", "both transposed") else weight
    assert new_convolved((2, 6, 6), a, weight).stride() == F.conv1d(a, weight, groups=groups).stride()


@settings(max_examples=10)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)), groups=st.integers(1, 3),
    channels=st.integers(1, 5), filters=st.integers(2, 5), size=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)), padding=st.integers(0, 2), last=st.booleans(),
)  # fmt: skip
def test_any_size(
    shape: Any, groups: int, channels: int, filters: int, size: Any, stride: Any, padding: int, last: bool
) -> None:
    """Small integers are exact in every order."""
    how = tuple(min(s, k) for s, k in zip(stride, size)), (padding, padding)
    if any(k > n + 2 * padding for k, n in zip(size, shape[1:])):
        return

    def whole(*shape: int) -> torch.Tensor:
        count = torch.Size(shape).numel()
        return ((torch.arange(count, device=DEVICE) * 7 % 11).reshape(shape) - 5).float()

    a = ordered(whole(shape[0], groups * channels, *shape[1:]), "channels-last" if last else "contiguous")
    weight = whole(groups * filters, channels, *size)
    expected = F.conv2d(a, weight, None, *how, 1, groups)
    g = whole(*expected.shape)
    of_input, of_weight = torch_gradients(g, a, weight, *how)
    torch.testing.assert_close(convolution(a, weight, None, *how, TILE), expected, rtol=0, atol=0)
    torch.testing.assert_close(input_gradient(g, a, weight, *how, TILE), of_input, rtol=0, atol=0)
    torch.testing.assert_close(weight_gradient(g, a, weight, *how, TILE), of_weight, rtol=0, atol=0)


@given(
    positions=st.integers(1, 300_000), groups=st.integers(1, 64), channels=st.integers(1, 64),
    taps=st.integers(1, 128), tile=st.sampled_from([*rule.WEIGHT_TILES.values()]),
)  # fmt: skip
def test_parts(positions: int, groups: int, channels: int, taps: int, tile: Tile) -> None:
    """Parts cover all tiles, and none is empty."""
    number = -(-positions // tile.positions)
    channels *= groups
    parts, per_part = parts_of((1, channels, positions), channels, (channels, channels // groups, taps), tile)
    assert (parts - 1) * per_part < number <= parts * per_part


@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul")  # the interpreter
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite(value: float) -> None:
    """They do not spread beyond the group and the windows that they are a part of."""
    a, weight = random(1, 6, 9, 9, dtype=torch.float32), random(6, 2, 3, 3, dtype=torch.float32)
    g, how = random(1, 6, 9, 9, dtype=torch.float32), ((1, 1), (1, 1), TILE)
    a[0, 3, 4, 4] = g[0, 3, 4, 4] = value
    for found in (convolution(a, weight, None, *how), input_gradient(g, a, weight, *how)):
        assert (~found.isfinite()).sum() == 18 and not found[0, 2:4, 3:6, 3:6].isfinite().any()
    found = weight_gradient(random(1, 6, 9, 9, dtype=torch.float32), a, weight, *how)
    assert (~found.isfinite()).sum() == 18 and not found[2:4, 1].isfinite().any()


def test_repeats() -> None:
    a, weight, g = random(1, 8, 19, 9), random(8, 2, 3, 3), random(1, 8, 19, 9)
    assert parts_of(g.shape, 8, weight.shape, TILE)[0] > 1
    how = (1, 1), (1, 1), TILE
    assert repeats(lambda x: weight_gradient(g, x, weight, *how), a, times=2)


def test_empty() -> None:
    a, weight, how = random(0, 6, 5, 5), random(6, 2, 3, 3), ((1, 1), (1, 1), TILE)
    found = convolution(a, weight, None, *how)
    assert found.shape == a.shape
    assert input_gradient(found, a, weight, *how).shape == a.shape
    assert not weight_gradient(found, a, weight, *how).any()


# -- programs ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """All grouped and narrow convolutions are computed by the kernels."""
    for family in (rule.GROUPED, rule.NARROW):
        monkeypatch.setattr(family, "default_of", lambda call: next(iter(rule.GROUPED.tiles(call.operation, False))))


class Positions(nn.Module):
    """Wav2Vec2's embedding of positions: a weight-normalized convolution of a transposed sequence."""

    def __init__(self) -> None:
        super().__init__()
        convolution = nn.Conv1d(12, 12, 8, padding=4, groups=3)
        self.convolution = nn.utils.parametrizations.weight_norm(convolution, dim=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.convolution(x.transpose(1, 2))
        return x + F.gelu(y[:, :, :-1]).transpose(1, 2)


class Bottleneck(nn.Module):
    """A block like those of ResNeXt, with activations that rounding does not switch on and off."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 1)
        self.grouped = nn.Conv2d(16, 16, 3, padding=1, stride=2, groups=4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.silu(self.grouped(F.silu(self.first(x)))))


def compare(fn: Any, *inputs: torch.Tensor, **options: Any) -> Any:
    """Compare with eager mode: strides exactly, values and gradients by their distance to float64."""
    jitted = thunder.jit(copy.deepcopy(fn), cuda_graphs="never", **options)
    found, like, wide = [], [], []
    for to, call in ((found, jitted), (like, fn), (wide, copy.deepcopy(fn).double())):
        used = [(x.double() if to is wide else x).detach().requires_grad_(x.requires_grad) for x in inputs]
        out = call(*used)
        of = [x for x in (*used, *call.parameters()) if x.requires_grad]
        g = torch.linspace(-1, 1, out.numel(), device=out.device).reshape(out.shape).to(out.dtype)
        to += [out, *torch.autograd.grad(out, of, g)]
    assert found[0].stride() == like[0].stride()
    for x, y, z in zip(found, like, wide):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        scale = max(1.0, z.abs().max().item())
        assert (x.double() - z).abs().max() <= 2 * (y.double() - z).abs().max() + TOLERANCES[HALF] * scale / 4
    return jitted


def operators(jitted: Any) -> list[str]:
    """Return the names of the operators in the program and its gradient."""
    traces = thunder.last_traces(jitted)[-1], *thunder.last_backward_traces(jitted)[-1:]
    names = [op.sym.name for trace in traces for op in trace.bound_symbols]
    return [name for name in names if name in (FORWARD, INPUT, WEIGHT, *NARROW)]


def image(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return random(*shape, dtype=dtype).requires_grad_()


def test_transposed_sequences(always: None) -> None:
    module = Positions().to(DEVICE, HALF)
    assert operators(compare(module, image(2, 17, 12))) == [FORWARD, INPUT, WEIGHT]


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_images(memory: torch.memory_format, always: None) -> None:
    module = Bottleneck().to(DEVICE, HALF)
    x = random(2, 16, 7, 9).contiguous(memory_format=memory).requires_grad_()
    assert operators(compare(module, x)) == [FORWARD, INPUT, WEIGHT]


def test_frozen_weights(always: None) -> None:
    module = nn.Conv1d(6, 6, 3, padding=1, groups=2).to(DEVICE, HALF).requires_grad_(False)
    assert operators(compare(module, image(2, 6, 9))) == [FORWARD, INPUT]


def test_inputs_without_gradients(always: None) -> None:
    module = nn.Conv1d(6, 6, 3, padding=1, groups=2).to(DEVICE, HALF)
    assert operators(compare(module, random(2, 6, 9))) == [FORWARD, WEIGHT]


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(6, 6, 1), nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 6, 3, groups=2, dilation=2),
        nn.ConvTranspose2d(6, 6, 3, groups=2), nn.Conv2d(6, 6, 1, stride=2, groups=2),
        nn.Conv2d(6, 6, 5, stride=5, groups=2), nn.Conv2d(6, 6, 3, dilation=2), nn.ConvTranspose2d(6, 6, 3),
    ],
)  # fmt: skip
def test_other_convolutions(module: nn.Module, always: None) -> None:
    assert operators(compare(module.to(DEVICE, HALF), image(2, 6, 9, 8))) == []


class Stem(nn.Module):
    """The start of a model for sound or images, whose results have odd sizes."""

    def __init__(self, *convolutions: nn.Module) -> None:
        super().__init__()
        self.first, self.second = convolutions

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.gelu(self.first(x)))


@pytest.mark.parametrize(
    "module, shape",
    [
        (Stem(nn.Conv1d(5, 7, 3, padding=1), nn.Conv1d(7, 6, 3, stride=2, padding=1)), (2, 5, 18)),
        (Stem(nn.Conv1d(1, 6, 10, stride=5, bias=False), nn.Conv1d(6, 4, 3, stride=2)), (2, 1, 43)),
        (Stem(nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False), nn.Conv2d(8, 5, 3)), (2, 3, 15, 13)),
        (Stem(nn.Conv2d(1, 1, 3), nn.Conv2d(1, 4, (3, 2), stride=(2, 1))), (1, 1, 12, 9)),
    ],
)  # fmt: skip
def test_narrow_convolutions(module: nn.Module, shape: Any, always: None) -> None:
    forward, input_grad, weight_grad = NARROW
    module = copy.deepcopy(module).to(DEVICE, HALF)
    expected = [forward, forward, input_grad, weight_grad, weight_grad]
    assert sorted(operators(compare(module, random(*shape)))) == sorted(expected)
    assert operators(compare(module, random(*shape), triton_narrow=False)) == []


def test_wide_convolutions_stay_with_torch(always: None) -> None:
    assert operators(compare(nn.Conv1d(129, 4, 2).to(DEVICE, HALF), image(1, 129, 5))) == []


def test_several_filters_of_single_channels(always: None) -> None:
    module = nn.Conv2d(6, 12, 3, groups=6).to(DEVICE, HALF)
    assert operators(compare(module, image(2, 6, 9, 8))) == [FORWARD, INPUT, WEIGHT]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_dtypes(dtype: torch.dtype, always: None) -> None:
    module = nn.Conv2d(6, 6, 3, groups=2).to(DEVICE, dtype)
    assert operators(compare(module, image(2, 6, 9, 8, dtype=dtype))) == []


def test_three_dimensions(always: None) -> None:
    module = nn.Conv3d(6, 6, 2, groups=2).to(DEVICE, HALF)
    assert operators(compare(module, image(1, 6, 3, 3, 3))) == []


def test_symbolic_sizes(always: None) -> None:
    module = nn.Conv1d(6, 6, 3, groups=2).to(DEVICE, HALF)
    assert operators(compare(module, image(2, 6, 9), cache="symbolic values")) == []


def test_the_options(always: None) -> None:
    module = nn.Conv2d(6, 6, 3, groups=2).to(DEVICE, HALF)
    assert operators(compare(module, image(2, 6, 9, 8), triton_grouped=False)) == []
    assert operators(compare(module, image(2, 6, 9, 8), triton_depthwise=False)) == [FORWARD, INPUT, WEIGHT]


# -- the choice -------------------------------------------------------------------------------------------------------
def test_small_convolutions_stay_with_torch() -> None:
    module = nn.Conv1d(32, 32, 64, padding=32, groups=2).to(DEVICE, HALF)
    assert operators(compare(module, image(1, 32, 9))) == []


def test_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is for a number of channels in a group, besides what rows of all families are for."""
    module = nn.Conv2d(6, 6, 3, groups=2).to(DEVICE, HALF)
    row = Row("forward", False, 2, range(9, 26), (1, 2), 2 * 6 * 9 * 8, "64x64x64x4", range(3, 4))
    for changed, expected in (({}, [FORWARD]), ({"channels": range(4, 9)}, []), ({"taps": range(8)}, [])):
        monkeypatch.setattr(rule.GROUPED, "defaults", (row._replace(**changed),))
        assert operators(compare(module, image(2, 6, 9, 8))) == expected


@pytest.mark.parametrize("option", FAMILIES)
def test_tiles_of_the_tables(option: str) -> None:
    """Every row names a tile of its operation and layout."""
    for row in FAMILIES[option].defaults:
        assert row.tile in FAMILIES[option].tiles(row.operation, row.channels_last)


def call_of(
    operation: str, shape: Any, groups: int, size: Any, stride: int = 1, dtype: torch.dtype = HALF
) -> Convolution:
    a = TensorProxy("a", shape=shape, device=DEVICE, dtype=dtypes.to_dtype(dtype))
    weight = TensorProxy("w", shape=(shape[1], shape[1] // groups, *size), device=DEVICE, dtype=a.dtype)
    padding = tuple(k // 2 for k in size)
    return Convolution(operation, a, None, weight, None, (stride,) * len(size), padding, len(size) == 2)


@pytest.mark.parametrize(
    "shape, groups, size, stride, dtype, expected",
    [
        ((8, 768, 249), 16, (128,), 1, HALF, ["128x64x64x3", "128x64x64x3", "64x64x128x3"]),
        ((1, 768, 499), 16, (128,), 1, HALF, ["64x64x64x4", "64x64x64x4", "64x64x128x3"]),
        ((8, 1024, 249), 16, (128,), 1, HALF, ["128x64x64x3", "128x64x64x3", "torch"]),
        ((16, 512, 1000), 8, (7,), 1, HALF, ["128x64x64x3", "torch", "torch"]),
        ((64, 896, 14, 14), 16, (3, 3), 1, HALF, ["128x64x32x4", "128x64x32x4", "64x64x64x4"]),
        ((64, 896, 14, 14), 16, (3, 3), 2, HALF, ["torch", "torch", "torch"]),
        ((64, 512, 28, 28), 32, (3, 3), 1, HALF, ["torch", "torch", "torch"]),
        ((64, 512, 28, 28), 32, (3, 3), 2, HALF, ["torch", "128x64x32x4", "torch"]),
        ((8, 768, 249), 16, (128,), 1, torch.float32, ["torch", "torch", "torch"]),
        ((8, 768, 249), 16, (3,), 1, HALF, ["torch", "torch", "torch"]),
    ],
)
def test_defaults(shape: Any, groups: int, size: Any, stride: int, dtype: torch.dtype, expected: list[str]) -> None:
    """The choices that were measured, and torch for others."""
    calls = [call_of(name, shape, groups, size, stride, dtype) for name in ("forward", "input", "weight")]
    assert [rule.GROUPED.default_of(call) for call in calls] == expected


@pytest.mark.parametrize(
    "shape, size, stride, expected",
    [
        ((8, 1, 80000), (10,), 5, "64x64x64x4"),  # Wav2Vec2
        ((8, 3, 128, 128), (3, 3), 1, "128x64x32x4"),  # U-Net
        ((4, 3, 512, 512), (7, 7), 4, "128x64x32x4"),  # SegFormer
        ((64, 3, 224, 224), (7, 7), 2, "torch"),  # ResNet
        ((8, 64, 128, 128), (3, 3), 1, "torch"),
        ((8, 80, 3000), (3,), 1, "torch"),
    ],
)
def test_narrow_defaults(shape: Any, size: Any, stride: int, expected: str) -> None:
    """The first convolutions of models that were measured. Gradients are left to torch."""
    calls = [call_of(name, shape, 1, size, stride) for name in ("forward", "input", "weight")]
    assert [rule.NARROW.default_of(call) for call in calls] == [expected, "torch", "torch"]


def test_too_many_positions() -> None:
    """The kernels number positions with 32 bits: those of operands, and of results with much padding."""
    assert rule.GROUPED.supports(call_of("forward", (8, 4, 9), 2, (3,)))
    assert not rule.GROUPED.supports(call_of("forward", (1 << 26, 4, 9), 2, (3,)))
    wide = call_of("forward", (1, 4, 9), 2, (3,))._replace(padding=(1 << 28,))
    assert not rule.GROUPED.supports(wide)


def test_measurements_decide() -> None:
    module = nn.Conv1d(4, 4, 2, groups=2).to(DEVICE, HALF)
    tiles = *rule.TILES, *rule.WEIGHT_TILES
    times = {**dict.fromkeys(tiles, 2.0), "torch": 1.0, "256x64x64x3": 0.5}
    with measured_times(times):
        new_process()
        jitted = compare(module, image(1, 4, 5), measured="first call")
        assert operators(jitted) == [FORWARD, INPUT]
        choices = {choice.operation: (choice.default, choice.chosen) for choice in thunder.examine.choices(jitted)}
        assert choices["grouped convolution, forward"] == ("torch", "256x64x64x3")
        assert choices["grouped convolution, weight"] == ("torch", "torch")
        with deterministic_algorithms():
            assert operators(compare(module, image(1, 4, 5), measured=True)) == []
    new_process()
