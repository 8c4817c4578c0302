# SPDX-License-Identifier: Apache-2.0
"""torch's fused optimizer kernels write to parameters and state themselves, where nothing reads old values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, fused=True, amsgrad=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, fused=True),
}


def parameters() -> list[Any]:
    g = torch.Generator().manual_seed(0)
    return [torch.randn(n, 3, generator=g).requires_grad_() for n in (2, 4)]


def program(jitted: Any) -> str:
    return str(thunder.last_traces(jitted)[-1].python(depth=0))


def trained(make: Any, step: Callable[..., Any], jit: Any) -> tuple[Any, list[Any]]:
    """Return the jitted step, and all that 5 calls leave."""
    params = parameters()
    optimizer = make(params)
    run, left = jit(lambda x: step(params, optimizer, x)), []
    for k in range(5):
        left.append(run(torch.full((3,), k + 1.0)))
        left += [p.detach().clone() for p in params]
        left += [v.clone() for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    return run, [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in left]


def compared(make: Any, step: Callable[..., Any]) -> str:
    _, expected = trained(make, step, lambda f: f)
    jitted, found = trained(make, step, lambda f: thunder.jit(f, fullgraph=True))
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    return program(jitted)


def update(params: Any, optimizer: Any, x: Any) -> None:
    optimizer.zero_grad()
    sum((p * x).sigmoid().sum() for p in params).backward()
    optimizer.step()


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_everything_is_written_in_place(make: Any) -> None:
    text = compared(make, update)
    assert "'self': 'all'" in text and "clone" not in text and "copy_" not in text


def test_old_values_that_are_read_later() -> None:
    """One parameter's old value is returned: it is copied before, and the kernel writes in place."""

    def step(params: Any, optimizer: Any, x: Any) -> Any:
        before = params[0].detach() * 1
        update(params, optimizer, x)
        return before + params[0].detach()

    compared(OPTIMIZERS["AdamW"], step)


def test_a_branch_after_the_update() -> None:
    """The call may start again on another path, so nothing is written before the branch is decided."""

    def step(params: Any, optimizer: Any, x: Any) -> Any:
        update(params, optimizer, x)
        total = params[0].detach().sum()
        return total * 2 if total.item() > 0.5 else total

    compared(OPTIMIZERS["SGD"], step)


def test_gradients_are_divided_by_a_scale() -> None:
    """Then they are results, too. The kernels of the scaler keep nothing from being in place."""

    def make(params: Any) -> Any:
        optimizer = OPTIMIZERS["AdamW"](params)
        optimizer.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        return optimizer

    def step(params: Any, optimizer: Any, x: Any) -> Any:
        optimizer.zero_grad()
        optimizer.scaler.scale(sum((p * x).sigmoid().sum() for p in params)).backward()
        optimizer.scaler.step(optimizer)
        optimizer.scaler.update()
        return params[0].grad

    text = compared(make, step)
    assert "'self': 'all'" in text and "amp_update_scale_(" in text and "opaque" not in text
