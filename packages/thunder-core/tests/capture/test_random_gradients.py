# SPDX-License-Identifier: Apache-2.0
"""Random programs of views, writes, regions, hooks and gradients inside: their results and gradients are eager's."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import thunder

Step = Callable[[Any, Any, Any], Any]  # of two earlier values and a parameter


def _written(x: Any, y: Any, w: Any) -> Any:
    z = x.clone()
    z[1:].add_(y[:-1])
    return z


def _written_through_views(x: Any, y: Any, w: Any) -> Any:
    z = x * 1
    z.t()[0].sin_()
    return z


def _constant_factor(x: Any, y: Any, w: Any) -> Any:
    with torch.no_grad():
        factor = x.sum()
    return factor * y


def _hooked(x: Any, y: Any, w: Any) -> Any:
    z = x * 1.0
    if z.requires_grad:
        z.register_hook(lambda g: g * 2)
    return z


def _gradient_inside(x: Any, y: Any, w: Any) -> Any:
    return torch.autograd.grad((x * x.sin() * w).sum(), x, create_graph=True)[0] if x.requires_grad else x


def _region(x: Any, y: Any, w: Any) -> Any:
    return checkpoint(lambda x, y: F.dropout(x * y, 0.3).tanh() @ w, x, y, use_reentrant=False)


STEPS: Sequence[Step] = (
    lambda x, y, w: x * y,
    lambda x, y, w: x @ w,
    lambda x, y, w: x.t(),
    lambda x, y, w: torch.softmax(x, -1) * y,
    lambda x, y, w: torch.where(x > y, x, y.exp().clamp(max=3)),
    lambda x, y, w: x.sort(-1)[0].flip(0),
    lambda x, y, w: F.dropout(x, 0.3),
    lambda x, y, w: x.contiguous().reshape(2, 8).reshape(4, 4),
    lambda x, y, w: torch.cat([x[:2], y[2:]]),
    lambda x, y, w: x.split(2)[0].repeat(2, 1),
    lambda x, y, w: x.max(0, keepdim=True)[0] + y,
    lambda x, y, w: (x + y).detach() * x,
    lambda x, y, w: x.expand(2, 4, 4)[1],
    lambda x, y, w: torch.stack([x, y])[1].diagonal_scatter(y.diagonal() * 2),
    _written, _written_through_views, _constant_factor, _hooked, _gradient_inside, _region,
)  # fmt: skip


def program(seed: int) -> Callable[[Any, Any], Any]:
    """Some steps on values that earlier ones gave, of which three are returned."""
    choose = random.Random(seed)
    plan = [(choose.choice(STEPS), choose.random(), choose.random()) for _ in range(choose.randint(2, 6))]
    results = [choose.random() for _ in range(3)]

    def run(x: Any, w: Any) -> Any:
        values = [x, w]
        for step, one, other in plan:
            values.append(step(values[int(one * len(values))], values[int(other * len(values))], w))
        return tuple([values[int(at * len(values))] for at in results])

    return run


def outcome(run: Callable[[Any, Any], Any], seed: int, *, twice: bool) -> list[torch.Tensor]:
    """What a program gives, the gradients of some of that, and with `twice` the gradients of those."""
    torch.manual_seed(seed)
    x, w = (torch.randn(4, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    given = [torch.randn(4, 4, dtype=torch.float64, requires_grad=twice) for _ in range(3)]
    found = run(x, w)
    flowing = [(out, g) for out, g in zip(found, given) if out.requires_grad][: 1 + seed % 3]
    if not flowing:
        return [out.detach() for out in found]
    outs, cotangents = zip(*flowing)
    first = torch.autograd.grad(outs, [x, w], cotangents, create_graph=twice, materialize_grads=True)
    second: Sequence[torch.Tensor] = ()
    total = sum((g**3).sum() for g in first)
    if twice and isinstance(total, torch.Tensor) and total.requires_grad:
        second = torch.autograd.grad(total, [x, w, *cotangents], materialize_grads=True)
    return [x.detach() for x in (*found, *first, *second)]


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("remat", ["auto", "all"])
def test_gradients_of_random_programs(remat: str, twice: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of first and of second order, at once and in stages, whatever is computed again."""
    for seed in range(20):
        monkeypatch.setattr("thunder.frontend.differentiable.MIN_STAGE_BYTES_CPU", 1 if seed % 2 else 1 << 20)
        run = program(seed)
        expected = outcome(run, seed, twice=twice)
        jitted = thunder.jit(run, remat=remat)
        for _ in range(2):
            found = outcome(jitted, seed, twice=twice)
            torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9, msg=lambda text: f"{seed}: {text}")
