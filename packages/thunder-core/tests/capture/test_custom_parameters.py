# SPDX-License-Identifier: Apache-2.0
"""`torch.autograd.Function` of a module's parameter, which the program may meet there first."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

import thunder


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return g @ weight * 2, g.t() @ x * 3  # neither is what the forward's operations would give


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Linear.apply(x, self.weight)


def test_a_parameter_that_is_first_met_there() -> None:
    torch.manual_seed(0)
    layer, x = Layer(), torch.randn(5, 3, requires_grad=True)
    jitted = thunder.jit(layer)
    for _ in range(2):
        result, expected = jitted(x), layer(x)
        torch.testing.assert_close(result, expected)
        grads = torch.autograd.grad(result.sin().sum(), (x, layer.weight))
        torch.testing.assert_close(grads, torch.autograd.grad(expected.sin().sum(), (x, layer.weight)))
    assert thunder.cache_misses(jitted) == 1
