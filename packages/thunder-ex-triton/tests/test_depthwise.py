# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolutions: kernels against float64, which programs contain them, their layout, and the choice."""

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
from thunder_ex_triton.depthwise import rule
from thunder_ex_triton.depthwise.launches import Columns, Tile, convolution, input_gradient, parts_of, weight_gradient
from thunder_ex_triton.images import is_channels_last

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.float16  # Triton's interpreter rounds bfloat16 differently
ON_DEVICE = torch.float16 if DEVICE == "cpu" else torch.bfloat16
TOLERANCES = {torch.float16: 2e-3, torch.float32: 3e-6, torch.bfloat16: 1.6e-2}
FORWARD, INPUT, WEIGHT = [f"triton_depthwise_{name}" for name in ("convolution", "input_grad", "weight_grad")]

# (shape, size of the kernel, stride, padding)
CASES: list[tuple[Any, ...]] = [
    ((1, 3, 5, 8), (7, 7), (1, 1), (3, 3)),
    ((2, 5, 7, 6), (3, 3), (2, 2), (1, 1)),
    ((1, 16, 7, 4), (5, 2), (3, 2), (0, 1)),
    ((2, 3, 2, 4), (2, 3), (1, 1), (3, 3)),
    ((2, 5, 19), (4,), (1,), (3,)),
    ((2, 5, 19), (3,), (2,), (0,)),
]


def random(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


def ordered(x: torch.Tensor, layout: str) -> torch.Tensor:
    """Return an image in a layout: contiguous, channels last, or a view with gaps."""
    if layout == "channels-last":
        return x.movedim(1, -1).contiguous().movedim(-1, 1)
    return torch.stack((x, x), -1)[..., 0] if layout == "gaps" else x


def torch_gradients(g: Any, a: Any, weight: Any, stride: Any, padding: Any) -> Any:
    n = len(stride)
    how = [*stride], [*padding], [1] * n, False, [0] * n, a.shape[1], [True] * 3
    return torch.ops.aten.convolution_backward(g, a, weight, [a.shape[1]], *how)


def check(found: Any, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert found.dtype is dtype
    scale = max(1.0, expected.abs().max().item())
    torch.testing.assert_close(found.double(), expected, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype] * scale)


# -- kernels ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "layout, dtype",
    [("contiguous", HALF), ("channels-last", torch.float32), ("gaps", HALF), ("channels-last", ON_DEVICE)],
)
@pytest.mark.parametrize("shape, size, stride, padding", CASES)
def test_kernels(shape: Any, size: Any, stride: Any, padding: Any, layout: str, dtype: torch.dtype) -> None:
    a, weight, bias = ordered(random(*shape, dtype=dtype), layout), random(shape[1], 1, *size, dtype=dtype), None
    for bias in (None, random(shape[1], dtype=dtype)):
        wide = None if bias is None else bias.double()
        expected = (F.conv2d if len(size) == 2 else F.conv1d)(
            a.double(), weight.double(), wide, stride, padding, 1, shape[1]
        )
        found = convolution(a, weight, bias, stride, padding, Columns(3, 64, 1))
        check(found, expected, dtype)
        assert is_channels_last(found) == (layout == "channels-last" and a.ndim == 4)
    g = ordered(random(*expected.shape, dtype=dtype), layout)
    of_input, of_weight, of_bias = torch_gradients(g.double(), a.double(), weight.double(), stride, padding)
    check(input_gradient(g, a, weight, stride, padding, Columns(4, 64, 1)), of_input, dtype)
    gradients = weight_gradient(g, a, weight, stride, padding, True, Tile(3, 16, 4, 1))
    check(gradients[0], of_weight, dtype)
    check(gradients[1], of_bias, dtype)
    assert weight_gradient(g, a, weight, stride, padding, False, Tile(3, 16, 4, 1))[1] is None


@pytest.mark.parametrize("shape, size, stride, padding", [CASES[1], CASES[3], *CASES[4:]])
def test_operands_of_different_layouts(shape: Any, size: Any, stride: Any, padding: Any) -> None:
    """A gradient has another layout than the image, or an image another one than the result."""
    weight = random(shape[1], 1, *size, dtype=torch.float32)
    how, layouts = (stride, padding), ("contiguous", "channels-last")
    for of_a, of_g in zip(layouts, reversed(layouts)):
        a = ordered(random(*shape, dtype=torch.float32), of_a)
        expected = torch.ops.aten.convolution(a, weight, None, *how, [1] * len(size), False, [0] * len(size), shape[1])
        check(convolution(a, weight, None, *how, Columns(3, 64, 1)), expected.double(), torch.float32)
        g = ordered(random(*expected.shape, dtype=torch.float32), of_g)
        of_input, of_weight, _ = torch_gradients(g.double(), a.double(), weight.double(), *how)
        check(input_gradient(g, a, weight, *how, Columns(4, 64, 1)), of_input, torch.float32)
        for tile in (Tile(3, 16, 4, 1), Tile(3, 16, 1, 1)):
            check(weight_gradient(g, a, weight, *how, False, tile)[0], of_weight, torch.float32)


@settings(max_examples=8)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(2, 5), st.integers(1, 9), st.integers(1, 9)),
    size=st.tuples(st.integers(1, 4), st.integers(1, 4)), stride=st.integers(1, 2), padding=st.integers(0, 2),
    rows=st.integers(1, 3), last=st.booleans(),
)  # fmt: skip
def test_any_size(shape: Any, size: Any, stride: int, padding: int, rows: int, last: bool) -> None:
    """Small integers are exact in every order."""
    if any(k > n + 2 * padding for k, n in zip(size, shape[2:])):
        return

    def whole(*shape: int) -> torch.Tensor:
        count = torch.Size(shape).numel()
        return ((torch.arange(count, device=DEVICE) * 7 % 11).reshape(shape) - 5).float()

    a, weight = ordered(whole(*shape), "channels-last" if last else "contiguous"), whole(shape[1], 1, *size)
    how = (stride, stride), (padding, padding)
    expected = F.conv2d(a, weight, None, *how, 1, shape[1])
    g = whole(*expected.shape)
    of_input, of_weight, of_bias = torch_gradients(g, a, weight, *how)
    torch.testing.assert_close(convolution(a, weight, None, *how, Columns(rows, 32, 1)), expected, rtol=0, atol=0)
    torch.testing.assert_close(input_gradient(g, a, weight, *how, Columns(rows, 32, 1)), of_input, rtol=0, atol=0)
    found = weight_gradient(g, a, weight, *how, True, Tile(rows, 4, 2, 1))
    torch.testing.assert_close(found, (of_weight, of_bias), rtol=0, atol=0)


@given(
    shape=st.tuples(st.integers(1, 300), st.integers(1, 3000), st.integers(1, 300), st.integers(1, 300)),
    tile=st.sampled_from([*rule.TILES[True].values(), *rule.TILES[False].values()]),
)
def test_parts(shape: Any, tile: Tile) -> None:
    """Parts cover all tiles, and none is empty."""
    n, _, h, w = shape
    number = -(-h // tile.rows) * -(-n * w // tile.positions)
    parts, per_part = parts_of(shape, tile)
    assert (parts - 1) * per_part < number <= parts * per_part


def test_values_that_are_not_finite() -> None:
    """They do not spread beyond the elements that they are a part of."""
    a, weight = random(1, 3, 9, 9, dtype=torch.float32), random(3, 1, 3, 3, dtype=torch.float32)
    a[0, 1, 4, 4] = float("nan")
    found = convolution(a, weight, None, (1, 1), (1, 1), Columns(4, 32, 1))
    assert found.isnan().sum() == 9 and found[0, 1, 3:6, 3:6].isnan().all()


def test_repeats() -> None:
    a, weight, g = random(1, 8, 5, 9), random(8, 1, 3, 3), random(1, 8, 5, 9)
    assert parts_of(g.shape, Tile(2, 4, 8, 1))[0] > 1
    how = (1, 1), (1, 1), False, Tile(2, 4, 8, 1)
    assert repeats(lambda x: weight_gradient(g, x, weight, *how)[0], a, times=2)


def test_empty() -> None:
    a, weight = random(0, 3, 5, 5), random(3, 1, 3, 3)
    found = convolution(a, weight, None, (1, 1), (1, 1), Columns(4, 32, 1))
    assert found.shape == a.shape
    assert input_gradient(found, a, weight, (1, 1), (1, 1), Columns(4, 32, 1)).shape == a.shape
    assert input_gradient(found, a, weight, (2, 2), (1, 1), Columns(4, 32, 1)).shape == a.shape
    of_weight, of_bias = weight_gradient(found, a, weight, (1, 1), (1, 1), True, Tile(4, 8, 4, 1))
    assert of_bias is not None and not of_weight.any() and not of_bias.any()


# -- programs ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """All depthwise convolutions are computed by the kernels."""
    family = rule.DEPTHWISE
    monkeypatch.setattr(family, "default_of", lambda call: next(iter(family.tiles(call.operation, call.channels_last))))


class Block(nn.Module):
    """A block of ConvNeXt between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 1)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.norm, self.linear = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        y = self.linear(self.norm(self.depthwise(x).permute(0, 2, 3, 1)))
        return self.last(x + y.permute(0, 3, 1, 2))


def compare(fn: Any, *inputs: torch.Tensor, **options: Any) -> Any:
    """Compare with eager mode: the result's strides exactly, values and gradients by their distance to float64."""
    jitted = thunder.jit(copy.deepcopy(fn), cuda_graphs="never", **options)
    found, like, wide = [], [], []
    for to, call in ((found, jitted), (like, fn), (wide, copy.deepcopy(fn).double())):
        used = [(x.double() if to is wide else x).detach().requires_grad_() for x in inputs]
        out = call(*used)
        parameters = [p for p in call.parameters() if p.requires_grad]
        g = torch.linspace(-1, 1, out.numel(), device=out.device).reshape(out.shape).to(out.dtype)
        to += [out, *torch.autograd.grad(out, [*used, *parameters], g)]
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
    return [name for name in names if name in (FORWARD, INPUT, WEIGHT)]


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_channels_last_programs(memory: torch.memory_format, always: None) -> None:
    torch.manual_seed(0)
    block = Block().to(DEVICE, HALF)
    x = random(2, 16, 7, 9).contiguous(memory_format=memory)
    jitted = compare(block, x)
    assert operators(jitted) == [FORWARD, INPUT, WEIGHT]
    (call,) = [op for op in thunder.last_traces(jitted)[-1].bound_symbols if op.sym.name == FORWARD]
    assert call.args[2] is None  # the bias is part of a fusion
    assert call.args[5] in rule.COLUMNS[True]


@pytest.mark.parametrize("dtype", [HALF, torch.float32])
@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
@pytest.mark.parametrize("bias", [True, False])
def test_one_dimension(bias: bool, layout: str, dtype: torch.dtype, always: None) -> None:
    """Mamba's causal convolution, of a transposed view."""
    module = nn.Conv1d(6, 6, 4, padding=3, groups=6, bias=bias).to(DEVICE, dtype)
    jitted = compare(module, ordered(random(2, 6, 17, dtype=dtype), layout))
    assert operators(jitted) == [FORWARD, INPUT, WEIGHT]


def test_strides(always: None) -> None:
    module = nn.Conv2d(6, 6, 3, padding=1, stride=2, groups=6).to(DEVICE, HALF)
    assert operators(compare(module, random(2, 6, 9, 8))) == [FORWARD, INPUT, WEIGHT]


def test_frozen_parameters(always: None) -> None:
    module = nn.Conv2d(6, 6, 3, padding=1, groups=6).to(DEVICE, HALF).requires_grad_(False)
    assert operators(compare(module, random(2, 6, 9, 8))) == [FORWARD, INPUT]


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(6, 6, 3), nn.Conv2d(6, 6, 3, groups=3), nn.Conv2d(6, 12, 3, groups=6),
        nn.Conv2d(6, 6, 3, groups=6, dilation=2), nn.ConvTranspose2d(6, 6, 3, groups=6),
        nn.Conv2d(6, 6, 8, groups=6, padding=4), nn.Conv2d(6, 6, 1, stride=2, groups=6),
    ],
)  # fmt: skip
def test_other_convolutions(module: nn.Module, always: None) -> None:
    assert operators(compare(module.to(DEVICE, HALF), random(2, 6, 9, 8))) == []


def test_other_dtypes(always: None) -> None:
    module = nn.Conv2d(6, 6, 3, groups=6).to(DEVICE, torch.float64)
    assert operators(compare(module, random(2, 6, 9, 8, dtype=torch.float64))) == []


def test_symbolic_sizes(always: None) -> None:
    module = nn.Conv1d(6, 6, 3, groups=6).to(DEVICE, HALF)
    assert operators(compare(module, random(2, 6, 9), cache="symbolic values")) == []


def test_the_option(always: None) -> None:
    module = nn.Conv2d(6, 6, 3, groups=6).to(DEVICE, HALF)
    assert operators(compare(module, random(2, 6, 9, 8), triton_depthwise=False)) == []


# -- the choice -------------------------------------------------------------------------------------------------------
def test_small_convolutions_stay_with_torch() -> None:
    module = nn.Conv2d(6, 6, 3, groups=6).to(DEVICE, HALF)
    assert operators(compare(module, random(2, 6, 9, 8))) == []


def test_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is for one operation, layout and number of dimensions, for sizes of kernels, strides and elements."""
    module = nn.Conv2d(6, 6, 3, groups=6).to(DEVICE, HALF)
    row = Row("forward", False, 2, range(9, 26), (1, 2), 2 * 6 * 9 * 8, "1x512")
    for changed, expected in (
        ({}, [FORWARD]), ({"operation": "weight", "tile": "1x256x1"}, [WEIGHT]), ({"channels_last": True}, []),
        ({"spatial": 1}, []), ({"taps": range(8)}, []), ({"strides": (2,)}, []), ({"fewest": 2 * 6 * 9 * 8 + 1}, []),
    ):  # fmt: skip
        monkeypatch.setattr(rule.DEPTHWISE, "defaults", (row._replace(**changed),))
        assert operators(compare(module, random(2, 6, 9, 8))) == expected


def test_tiles_of_the_table() -> None:
    """Every row names a tile of its operation and layout."""
    for row in rule.DEFAULTS:
        assert row.tile in rule.DEPTHWISE.tiles(row.operation, row.channels_last)


@pytest.mark.parametrize(
    "shape, size, stride, dtype, expected",
    [
        ((64, 96, 56, 56), 7, 1, HALF, ["7x512", "7x512", "torch"]),
        ((4, 256, 128, 128), 3, 1, HALF, ["8x512", "8x512", "4x8x64"]),
        ((64, 144, 56, 56), 3, 1, HALF, ["8x512", "8x512", "torch"]),
        ((64, 96, 112, 112), 3, 2, HALF, ["8x512", "8x512", "4x8x32"]),
        ((64, 96, 56, 56), 7, 2, HALF, ["torch", "torch", "torch"]),
        ((64, 96, 56, 56), 7, 1, torch.float32, ["torch", "torch", "torch"]),
    ],
)
def test_defaults(shape: Any, size: int, stride: int, dtype: torch.dtype, expected: list[str]) -> None:
    """The choices for channels-last images that were measured, and torch for others."""
    a = TensorProxy("a", shape=shape, device="cpu", dtype=dtypes.to_dtype(dtype))
    weight = TensorProxy("w", shape=(shape[1], 1, size, size), device="cpu", dtype=a.dtype)
    names = "forward", "input", "weight"
    calls = [Convolution(name, a, None, weight, None, (stride,) * 2, (1, 1), True) for name in names]
    assert [rule.DEPTHWISE.default_of(call) for call in calls] == expected


def test_measurements_decide() -> None:
    module = nn.Conv2d(2, 2, 2, groups=2).to(DEVICE, HALF)
    x = random(1, 2, 4, 3)
    tiles = *rule.COLUMNS[False], *rule.TILES[False]
    times = {**dict.fromkeys(tiles, 2.0), "torch": 1.0, "1x512": 0.5}
    with measured_times(times):
        new_process()
        jitted = compare(module, x, measured="first call")
        assert operators(jitted) == [FORWARD, INPUT]
        choices = {choice.operation: (choice.default, choice.chosen) for choice in thunder.examine.choices(jitted)}
        assert choices["depthwise convolution, forward"] == ("torch", "1x512")
        assert choices["depthwise convolution, weight"] == ("torch", "torch")
        with deterministic_algorithms():
            assert operators(compare(module, x, measured=True)) == []
    new_process()
