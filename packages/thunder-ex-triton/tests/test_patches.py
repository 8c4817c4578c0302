# SPDX-License-Identifier: Apache-2.0
"""Convolutions of patches as products, compared with torch in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import thunder

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Embedding(nn.Module):
    """The first layers of a vision transformer."""

    def __init__(self, channels: int, size: Any, bias: bool, **how: Any):
        super().__init__()
        self.projection = nn.Conv2d(channels, 32, size, bias=bias, **{"stride": size, **how})
        self.norm = nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> Any:
        """Return normalized tokens, and the image of which they are."""
        image = self.projection(x)
        return self.norm(image.flatten(2).transpose(1, 2)), image * 2, image


def made(*args: Any, **how: Any) -> Embedding:
    return Embedding(*args, **how).to(DEVICE, torch.float16)


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("size", [(4, 4), (2, 8)])
@pytest.mark.parametrize("shape", [(2, 3, 16, 24), (3, 2, 19, 26)])
@pytest.mark.parametrize("bias", [True, False])
def test_values_gradients_and_layouts(memory: Any, size: tuple[int, int], shape: tuple[int, ...], bias: bool) -> None:
    """Images of whole patches and others, in both layouts. Results have the strides of eager mode."""
    x = torch.randn(shape).to(DEVICE, torch.float16).contiguous(memory_format=memory)
    model = made(shape[1], size, bias)
    right = Embedding(shape[1], size, bias).to(DEVICE, torch.float64)
    right.load_state_dict(model.state_dict())
    jitted = thunder.jit(model, cuda_graphs="never")
    found, eager, wanted = jitted(x), model(x), right(x.double())
    gradients = [torch.randn_like(y) for y in eager]
    for ours, theirs, exact in zip(found, eager, wanted):
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours.double(), exact, rtol=5e-3, atol=5e-3)
    ours = torch.autograd.grad(found, [*model.parameters()], gradients)
    exact = torch.autograd.grad(wanted, [*right.parameters()], [g.double() for g in gradients])
    for parameter, a, b in zip(model.parameters(), ours, exact):
        assert a.stride() == parameter.stride()
        torch.testing.assert_close(a.double(), b, rtol=1e-2, atol=1e-2 * float(b.abs().max()))
    for trace in (thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1]):
        assert "convolution" not in str(trace) and "conv2d" not in str(trace)


@pytest.mark.parametrize(
    ("channels", "size", "how"),
    [
        (3, 4, {"stride": 3}), (3, 4, {"padding": 1}), (3, 2, {"dilation": 2, "stride": 2}), (16, 4, {}),
        (4, 4, {"groups": 2}), (3, 3, {}),
    ],
)  # fmt: skip
def test_other_convolutions(channels: int, size: int, how: dict[str, Any]) -> None:
    """Windows that overlap or have padding, groups, many channels, and rows that begin at odd addresses."""
    x = torch.randn(2, channels, 16, 24).to(DEVICE, torch.float16)
    model = made(channels, size, True, **how)
    jitted = thunder.jit(model, cuda_graphs="never", triton_channels_last=True)
    for ours, theirs in zip(jitted(x), model(x)):
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)
    assert "linear" not in str(thunder.last_traces(jitted)[-1])


def test_gradients_of_images() -> None:
    """The gradient of the input stays a convolution's."""
    x = torch.randn(2, 3, 8, 8).to(DEVICE, torch.float16).requires_grad_()
    model = made(3, 4, True)
    jitted = thunder.jit(model, cuda_graphs="never")
    (ours,) = torch.autograd.grad(jitted(x)[1].sum(), x)
    (theirs,) = torch.autograd.grad(model(x)[1].sum(), x)
    assert ours.stride() == theirs.stride()
    torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)
