# SPDX-License-Identifier: Apache-2.0
"""Weights in eight bits: how they are rounded, where they are made again, how they are saved."""

from __future__ import annotations

import copy
import importlib
import importlib.machinery
import importlib.util
import pickle
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import thunder
from thunder.transforms import LoRATransform, QuantizationTransform
from thunder.transforms.quantization import dequantize, quantize_float8, quantize_int8


class Model(nn.Module):
    """Two layers and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8, bias=False)])
        self.head = nn.Linear(8, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens to logits."""
        x = self.embed(tokens)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x)


TOKENS = torch.tensor([[1, 2, 9]])


def quantized_by_hand(model: nn.Module, *names: str) -> nn.Module:
    """A copy with weights rounded to what int8 can say."""
    out = copy.deepcopy(model)
    for name in names:
        weight = out.get_submodule(name).weight
        scale = weight.abs().amax(1, keepdim=True) / 127
        weight.data = (weight / scale).round() * scale
    return out


@given(st.integers(0, 1000), st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))
def test_rounding(seed: int, dtype: torch.dtype) -> None:
    """To the nearest of 255 values; the largest of each row and rows of zeros are exact."""
    weight = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed)).to(dtype)
    weight[1] = 0
    integers, scale = quantize_int8(weight)
    assert integers.dtype is torch.int8 and scale.dtype is dtype and scale.shape == (4, 1)
    found = dequantize(integers, scale)
    assert found.dtype is dtype
    assert (integers.abs().amax(1) == torch.tensor([127, 0, 127, 127])).all()
    slack = 1.02 if dtype is torch.bfloat16 else 1.0001
    error = (found.double() - weight.double()).abs()
    step = scale.double().expand_as(error)
    bound = step / 2 * slack + (weight.double().abs() * 2**-7 if dtype is torch.bfloat16 else 0)
    assert (error <= bound).all()


@given(st.integers(0, 1000), st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]))
def test_rounding_to_float8(seed: int, dtype: torch.dtype) -> None:
    """Within half of the distance of numbers with four significant bits; rows of zeros are exact."""
    weight = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed)).to(dtype)
    weight[1] = 0
    numbers, scale = quantize_float8(weight)
    assert numbers.dtype is torch.float8_e4m3fn and scale.dtype is dtype and scale.shape == (4, 1)
    found, exact = dequantize(numbers, scale).double(), weight.double()
    assert found.isfinite().all() and (found[1] == 0).all()
    # Half a unit in the last place, half of the smallest subnormal number, and the rounding of scales and products.
    bound = exact.abs() * (2**-4 + 2 * torch.finfo(dtype).eps) + scale.double() * 2**-10 * 1.01
    assert ((found - exact).abs() <= bound).all()


def test_float8() -> None:
    """Results of the dequantized weights, and state in the layout of the original module."""
    torch.manual_seed(0)
    model = Model()
    fast = thunder.jit(model, transforms=[QuantizationTransform("float8")])
    by_hand = copy.deepcopy(model)
    for name in ("layers.0", "layers.1", "head"):
        assert fast.get_submodule(name).weight_float8.dtype is torch.float8_e4m3fn
        weight = by_hand.get_submodule(name).weight
        weight.data = dequantize(*quantize_float8(weight))
    torch.testing.assert_close(fast(TOKENS), by_hand(TOKENS))
    torch.testing.assert_close(dict(fast.state_dict()), dict(by_hand.state_dict()))
    other = Model()
    fast.load_state_dict(other.state_dict())
    by_hand.head.weight.data = dequantize(*quantize_float8(other.head.weight))
    torch.testing.assert_close(fast.state_dict()["head.weight"], by_hand.head.weight.detach())


def test_results() -> None:
    """Those of the rounded weights; the user's module is as it was."""
    torch.manual_seed(0)
    model = Model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fast = thunder.jit(model, transforms=[QuantizationTransform(skip=["head"])])
    expected = quantized_by_hand(model, "layers.0", "layers.1")
    torch.testing.assert_close(fast(TOKENS), expected(TOKENS))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert type(model.layers[0]) is nn.Linear
    assert isinstance(fast.layers[0], nn.Linear) and type(fast.layers[0]).__name__ == "Int8Linear"
    assert type(fast.head) is nn.Linear
    assert fast.layers[0].weight_int8.dtype is torch.int8
    assert "layers.0.weight" not in dict(fast.named_parameters())
    text = str(thunder.last_traces(fast)[0])
    assert "ltorch.to(t_layers_0_weight_int8, " in text and 'i8[8, 8]"' in text


def test_what_is_chosen() -> None:
    """Names, patterns, last parts of names; other modules with weights by name only."""
    model = Model()
    for modules, expected in (
        (["head"], {"head"}),
        (["layers.*"], {"layers.0", "layers.1"}),
        (["0", "embed"], {"layers.0", "embed"}),
        (None, {"layers.0", "layers.1", "head"}),
    ):
        fast = thunder.jit(model, transforms=[QuantizationTransform(modules=modules)])
        found = {name for name, m in fast.named_modules() if type(m).__name__.startswith("Int8")}
        assert found == expected
        fast(TOKENS)
    with pytest.raises(
        ValueError,
        match=r"no module with a weight is called 'haed'\. The available names are: embed, layers\.0, layers\.1",
    ):
        thunder.jit(model, transforms=[QuantizationTransform(modules=["haed"])])
    with pytest.raises(ValueError, match=r"there is no torch\.nn\.Linear in this Embedding"):
        thunder.jit(nn.Embedding(3, 2), transforms=[QuantizationTransform()])
    with pytest.raises(ValueError, match="kind is one of int8, float8, nf4, not 'int4'"):
        QuantizationTransform("int4")


def test_state_dict() -> None:
    """In the original layout, both ways; what does not fit is said as torch says it."""
    torch.manual_seed(0)
    model, other = Model(), Model()
    fast = thunder.jit(model, transforms=[QuantizationTransform()])
    state = fast.state_dict()
    assert list(state) == list(model.state_dict())
    assert [v.dtype for v in state.values()] == [v.dtype for v in model.state_dict().values()]
    again = Model()
    again.load_state_dict(state)
    torch.testing.assert_close(again(TOKENS), fast(TOKENS))
    fast.load_state_dict(other.state_dict())
    torch.testing.assert_close(fast(TOKENS), quantized_by_hand(other, "layers.0", "layers.1", "head")(TOKENS))
    assert thunder.cache_misses(fast) == 1, "the program is the same"
    short = {name: value for name, value in other.state_dict().items() if name != "head.weight"}
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "head.weight"'):
        fast.load_state_dict(short)
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "head.wieght"'):
        fast.load_state_dict({**other.state_dict(), "head.wieght": torch.ones(1)})
    with pytest.raises(RuntimeError, match=r"while loading head: weight has the shape \(2, 8\), not \(5, 8\)"):
        fast.load_state_dict({**other.state_dict(), "head.weight": torch.ones(2, 8)})
    fast.load_state_dict(short, strict=False)


class Counted(nn.Linear):
    """A linear layer of the user's, with a buffer that is saved and one that is not."""

    def __init__(self) -> None:
        super().__init__(4, 2)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("table", torch.ones(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Counts."""
        self.calls.add_(1)
        return super().forward(x)


@pytest.mark.parametrize("adapters", [False, True])
def test_classes_of_the_user(adapters: bool) -> None:
    """They run their own forward, and save and load all that is theirs."""
    more = [LoRATransform(rank=2)] if adapters else []
    module = Counted()
    fast = thunder.jit(copy.deepcopy(module), transforms=[QuantizationTransform(), *more])
    x = torch.randn(2, 4)
    torch.testing.assert_close(fast(x), quantized_by_hand(nn.ModuleDict({"a": module}), "a")["a"](x))
    fast(x)
    state = fast.state_dict()
    assert sorted(state) == ["bias", "calls", "weight"] and state["calls"] == 2
    again = Counted()
    again.load_state_dict(state)
    fast.load_state_dict({**state, "calls": torch.tensor(7.0)})
    assert fast.calls == 7


def test_training_the_rest() -> None:
    """Quantized weights are frozen; gradients flow through them to what is not."""
    torch.manual_seed(0)
    model = Model()
    expected = quantized_by_hand(model, "layers.0", "layers.1", "head")
    fast = thunder.jit(model, transforms=[QuantizationTransform()])
    fast(TOKENS).sum().backward()
    expected(TOKENS).sum().backward()
    torch.testing.assert_close(fast.embed.weight.grad, expected.embed.weight.grad)
    torch.testing.assert_close(fast.head.bias.grad, expected.head.bias.grad)


def test_copies_and_pickles() -> None:
    """Of a quantized module are quantized."""
    fast = thunder.jit(Model(), transforms=[QuantizationTransform()])
    expected = fast(TOKENS)
    for other in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        torch.testing.assert_close(other(TOKENS), expected)
        assert other.head.weight_int8.dtype is torch.int8


def test_nf4_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="needs bitsandbytes: pip install bitsandbytes, or use 'int8'"):
        QuantizationTransform("nf4")


# The sixteen numbers of NormalFloat.
NF4 = torch.tensor([
    -1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0,
])  # fmt: skip


def nearest(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The index of the nearest of them for each number, and the scale of each block of 64."""
    blocks = weight.float().reshape(-1, 64)
    scales = blocks.abs().amax(1)
    return ((blocks / scales[:, None])[..., None] - NF4).abs().argmin(-1).flatten(), scales


@pytest.fixture
def bitsandbytes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The library, or its two operators written out where it is not installed."""
    if importlib.util.find_spec("bitsandbytes") is not None:
        importlib.import_module("bitsandbytes")
        yield
        return
    module = types.ModuleType("bitsandbytes")
    module.__spec__ = importlib.machinery.ModuleSpec("bitsandbytes", None)
    monkeypatch.setitem(sys.modules, "bitsandbytes", module)
    library = torch.library.Library("bitsandbytes", "DEF")
    library.define(
        "quantize_4bit(Tensor A, int blocksize, str quant_type, ScalarType quant_storage) -> (Tensor, Tensor)"
    )
    library.define(
        "dequantize_4bit(Tensor A, Tensor absmax, int blocksize, str quant_type, int[] shape, ScalarType dtype) "
        "-> Tensor"
    )

    def pack(weight: torch.Tensor, *options: Any) -> Any:
        index, scales = nearest(weight)
        return (index[::2] * 16 + index[1::2]).to(torch.uint8)[:, None], scales

    def unpack(packed: Any, scales: Any, block: int, kind: str, shape: Any, dtype: Any) -> Any:
        flat = packed.flatten().long()
        values = NF4[torch.stack([flat // 16, flat % 16], 1).flatten()]
        return (values.reshape(-1, block) * scales[:, None]).reshape(shape).to(dtype)

    library.impl("quantize_4bit", pack, "CPU")
    library.impl("dequantize_4bit", unpack, "CPU")
    torch.library.register_fake(
        "bitsandbytes::dequantize_4bit", lambda A, s, b, q, shape, dtype: A.new_empty(shape, dtype=dtype), lib=library
    )
    yield
    library._destroy()


def test_nf4(bitsandbytes: None) -> None:
    """To the nearest of sixteen numbers in each block of 64; saved and loaded in the original layout."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    fast = thunder.jit(model, transforms=[QuantizationTransform("nf4")])
    expected = copy.deepcopy(model)
    for layer in (expected[0], expected[2]):
        index, scales = nearest(layer.weight.data)
        layer.weight.data = (NF4[index].reshape(-1, 64) * scales[:, None]).reshape(layer.weight.shape)
    x = torch.randn(3, 64)
    torch.testing.assert_close(fast(x), expected(x))
    assert fast.get_submodule("0").weight_nf4.numel() == 64 * 64 // 2
    assert list(fast.state_dict()) == list(model.state_dict())
    torch.testing.assert_close(fast.state_dict()["2.weight"], expected[2].weight.data)
    fast.load_state_dict(model.state_dict())
    torch.testing.assert_close(fast(x), expected(x))
