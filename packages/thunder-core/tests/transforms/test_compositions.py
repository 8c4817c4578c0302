# SPDX-License-Identifier: Apache-2.0
"""Transforms together, in any order: the program stays what it is, forward and backward."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._inductor
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import thunder
from thunder import transforms
from thunder.core.errors import ThunderError


class Model(nn.Module):
    """With weights that int8 can say, constants, something to fuse, statistics and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(6, 8, bias=False), nn.Linear(6, 8)
        self.down = nn.Linear(8, 6)
        self.norm = nn.BatchNorm1d(6)
        generator = torch.Generator().manual_seed(0)
        for layer in (self.gate, self.up, self.down):
            weight = torch.randint(-100, 100, layer.weight.shape, generator=generator).float()
            weight[:, 0] = 127
            layer.weight.data = weight / 128
            if layer.bias is not None:
                layer.bias.data.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One block."""
        position = torch.arange(6, dtype=x.dtype, device=x.device).mul(0.1).cos()
        h = self.norm(x + position)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def gated() -> Any:
    """A pattern whose replacement is the same in other words."""

    @thunder.pattern
    def pattern(a: Any, b: Any) -> Any:
        return F.silu(a) * b

    @pattern.replacement
    def _(a: Any, b: Any) -> Any:
        return a * torch.sigmoid(a) * b

    return pattern


MAKERS: dict[str, Callable[[], Any]] = {
    "folding": transforms.ConstantFoldingTransform,
    "profile": lambda: transforms.ProfileTransform(nvtx=False),
    "debug": lambda: transforms.debug(lambda op, values: None),
    "graphs": transforms.CUDAGraphTransform,
    "pattern": gated,
    "quantization": transforms.QuantizationTransform,
    "lora": lambda: transforms.LoRATransform(rank=2, modules=["up", "down"]),
    "function": lambda: lambda trace, executors: trace,
}


@settings(max_examples=8)
@given(st.lists(st.sampled_from(sorted(MAKERS)), unique=True, max_size=6), st.booleans())
def test_any_of_them(names: list[str], inductor: bool) -> None:
    """Results, gradients of what is trained, statistics, and the state dict's layout are the original's."""
    if "lora" in names and "quantization" in names[names.index("lora") :]:
        names = [n for n in names if n != "quantization"]  # adapters come after what they are beside
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch._inductor, "compile", lambda graph, inputs: graph)
        model, original = Model(), Model()
        executors = ["torch_compile"] if inductor else None
        fast = thunder.jit(model, executors=executors, transforms=[MAKERS[name]() for name in names])
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        for _ in range(2):
            found, expected = fast(ours), original(theirs)
            torch.testing.assert_close(found, expected)
            found.square().sum().backward()
            expected.square().sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-4)
        wanted = dict(original.named_parameters())
        for name, parameter in fast.named_parameters():
            if parameter.grad is not None and name in wanted:
                torch.testing.assert_close(parameter.grad, wanted[name].grad, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(fast.norm.running_mean, original.norm.running_mean)
        assert list(fast.state_dict()) == list(original.state_dict())
        again = copy.deepcopy(original)
        again.load_state_dict(fast.state_dict())
        torch.testing.assert_close(again(x), fast(x))


def test_adapters_come_after_quantization() -> None:
    """The other way round says so."""
    with pytest.raises(ThunderError, match="Put QuantizationTransform before LoRATransform"):
        thunder.jit(Model(), transforms=[transforms.LoRATransform(rank=2), transforms.QuantizationTransform()])
