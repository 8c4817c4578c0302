# SPDX-License-Identifier: Apache-2.0
"""The gradients of a convolution are one call of torch, with eager mode's values."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import thunder

JOINED, OF_INPUT = "convolution_grads", "convolution_input_grad"
OF_WEIGHT, OF_PARAMETERS = "convolution_weight_grad", "convolution_parameters_grad"


def gradients(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    out = module(x)
    wanted = [y for y in (x, *module.parameters()) if y.requires_grad]
    return [out, *torch.autograd.grad(out.square().sum(), wanted)]


def check(module: nn.Module, *shape: int, of_input: bool = True, dtype: torch.dtype = torch.float32) -> list[str]:
    """Compare with eager mode to the bit, and return the names of the operations of convolutions."""
    torch.manual_seed(0)
    module = module.to(dtype)
    x = torch.randn(*shape, dtype=dtype, requires_grad=of_input)
    jitted = thunder.jit(copy.deepcopy(module))
    found, expected = gradients(jitted, x), gradients(module, x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert [y.stride() for y in found] == [y.stride() for y in expected]
    names = [op.sym.name for op in thunder.last_backward_traces(jitted)[-1].bound_symbols]
    return [name for name in names if name.startswith("convolution")]


CONVOLUTIONS: list[tuple[nn.Module, tuple[int, ...]]] = [
    (nn.Conv1d(3, 4, 3), (2, 3, 9)),
    (nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=1), (2, 3, 7, 6)),
    (nn.Conv2d(4, 6, 3, groups=2, dilation=2), (2, 4, 8, 7)),
    (nn.Conv3d(2, 3, 2), (1, 2, 4, 3, 5)),
    (nn.ConvTranspose1d(3, 4, 3, stride=2, output_padding=1), (2, 3, 5)),
    (nn.ConvTranspose2d(4, 6, 3, groups=2), (2, 4, 5, 4)),
]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("module, shape", CONVOLUTIONS)
def test_convolutions(module: nn.Module, shape: tuple[int, ...], bias: bool) -> None:
    module = copy.deepcopy(module)
    if not bias:
        module.bias = None
    assert check(module, *shape) == [JOINED]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64])
def test_dtypes(dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 6, 6, dtype=dtype, requires_grad=True)
    module = nn.Conv2d(3, 4, 3, bias=False).to(dtype)
    found = torch.autograd.grad(thunder.jit(module)(x).abs().sum(), [x, *module.parameters()])
    expected = torch.autograd.grad(module(x).abs().sum(), [x, *module.parameters()])
    torch.testing.assert_close(found, expected)


def test_several_layers() -> None:
    """The first one has no gradient of its input."""
    module = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1))
    assert check(module, 2, 3, 8, 8, of_input=False) == [JOINED, JOINED, OF_WEIGHT]


def test_one_of_the_gradients() -> None:
    assert check(nn.Conv2d(3, 4, 3), 2, 3, 5, 5, of_input=False) == [OF_PARAMETERS]
    assert check(nn.Conv2d(3, 4, 3).requires_grad_(False), 2, 3, 5, 5) == [OF_INPUT]


def test_other_arguments_are_not_joined() -> None:
    """Gradients of two convolutions beside each other."""
    how = (1, 1), (0, 0), (1, 1), False, (0, 0), 1

    def names(fn: Any) -> list[str]:
        jitted = thunder.jit(fn)
        jitted(torch.randn(1, 2, 3, 3), torch.randn(1, 2, 5, 5), torch.randn(2, 2, 3, 3), torch.randn(2, 2, 3, 3))
        return [op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols]

    def of_input(g: Any, a: Any, v: Any) -> Any:
        return thunder.prims.convolution_input_grad(g, a, v, *how)

    def of_weight(g: Any, a: Any, v: Any) -> Any:
        return thunder.prims.convolution_weight_grad(g, a, v, *how)

    assert JOINED in names(lambda g, a, v, w: (of_input(g, a, v), of_weight(g, a, v)))
    assert JOINED in names(lambda g, a, v, w: (of_weight(g, a, v), of_input(g, a, v)))
    assert JOINED not in names(lambda g, a, v, w: (of_input(g, a, v), of_weight(g, a, w)))
    assert JOINED not in names(lambda g, a, v, w: (of_input(g, a, v), of_weight(g + 1, a, v)))
