# SPDX-License-Identifier: Apache-2.0
"""Results of higher-order functions share memory with their arguments, and are the same objects, as in eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder


class View(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g


class ValueAndRow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        return y, y[0]

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return 2 * g


def identity(t: torch.Tensor) -> torch.Tensor:
    return t


RESULTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "vmap": lambda x: (torch.vmap(identity)(x),),
    "vmap, in place": lambda x: (torch.vmap(torch.Tensor.acos_)(x),),
    "vmap, view": lambda x: (torch.vmap(lambda t: t[0])(x),),
    "vmap, reshape": lambda x: (torch.vmap(lambda t: t.reshape(3, 1))(x),),
    "vmap, moved": lambda x: (torch.vmap(identity, in_dims=1)(x),),
    "vmap, one result twice": lambda x: torch.vmap(lambda t: (lambda s: (s, s))(t * 2))(x),
    "vmap, a result and its part": lambda x: torch.vmap(lambda t: (lambda s: (s, s[0]))(t * 2))(x),
    "vmap, captured": lambda x: torch.vmap(lambda t: (x, t * 2), out_dims=(None, 0))(x),
    "vmap of vmap": lambda x: (torch.vmap(torch.vmap(lambda t: t.view(1)))(x),),
    "vmap, new": lambda x: (torch.vmap(lambda t: t * 2)(x),),
    "grad, aux": lambda x: (torch.func.grad(lambda t: (t.sum(), x), has_aux=True)(x)[1],),
    "vjp": lambda x: (torch.func.vjp(identity, x)[0],),
    "vjp, view": lambda x: (torch.func.vjp(lambda t: t[0], x)[0],),
    "jvp": lambda x: torch.func.jvp(identity, (x,), (x * 2,)),
    "jvp, tangent": lambda x: torch.func.jvp(identity, (x,), (x,))[::-1],
    "autograd.Function": lambda x: (View.apply(x),),
    "autograd.Function, two results": lambda x: ValueAndRow.apply(x),
    "operator": lambda x: (torch.ops.aten.alias(x),),
    "operator, part": lambda x: (torch.ops.aten.slice.Tensor(x, 0, 1),),
    "operator, parts": lambda x: torch.ops.aten.split.Tensor(x, 1),
    "operator, new": lambda x: (torch.ops.aten.add(x, 1),),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_write_to_a_result(name: str) -> None:
    def fn(x: torch.Tensor) -> Any:
        results = RESULTS[name](x)
        results[0].add_(1)
        return [[a is b for a in (x, *results)] for b in (x, *results)], *(r * 1 for r in results)

    outcomes = []
    for f in (fn, thunder.jit(fn, sharp_edges="allow")):
        x = torch.arange(6.0).view(2, 3) / 10
        outcomes.append((*f(x), x))
    (same, *tensors), (same_by_thunder, *tensors_by_thunder) = outcomes[0], outcomes[1]
    assert same == same_by_thunder
    torch.testing.assert_close(tensors_by_thunder, tensors)


def test_a_write_to_the_argument() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        row = torch.vmap(lambda t: t[0])(x)
        x.add_(1)
        return row * 1

    expected, found = (f(torch.zeros(2, 3)) for f in (fn, thunder.jit(fn, sharp_edges="allow")))
    assert torch.equal(found, expected) and found[0] == 1


def test_writes_that_no_other_tensor_sees_are_compiled() -> None:
    def fn(x: torch.Tensor) -> Any:
        y = torch.vmap(lambda t: t * 2)(x).add_(1)
        z = View.apply(x * 3).add_(1)
        (g,) = torch.func.vjp(lambda t: t.sin().sum(), x)[1](torch.ones(()))
        return y, z, g.mul_(2)

    jitted = thunder.jit(fn, sharp_edges="error")
    x = torch.rand(2, 3)
    torch.testing.assert_close(jitted(x), fn(x))
