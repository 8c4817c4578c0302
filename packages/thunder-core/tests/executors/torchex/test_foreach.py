# SPDX-License-Identifier: Apache-2.0
"""Steps of optimizers with `foreach=True` have eager mode's values, and write to parameters and state in few calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import thunder
from thunder.capture.dispatch import foreach as capturing
from thunder.core.proxies import TensorProxy
from thunder.executors.torchex.foreach import FOREACH, FUNCTIONS

optim = torch.optim
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "Adam": lambda p: optim.Adam(p, foreach=True),
    "AdamW": lambda p: optim.AdamW(p, amsgrad=True, foreach=True),
    "SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "NAdam": lambda p: optim.NAdam(p, foreach=True),
    "RAdam": lambda p: optim.RAdam(p, foreach=True),
    "RMSprop": lambda p: optim.RMSprop(p, centered=True, foreach=True),
    "Adagrad": lambda p: optim.Adagrad(p, foreach=True),
    "Adadelta": lambda p: optim.Adadelta(p, foreach=True),
    "Adamax": lambda p: optim.Adamax(p, foreach=True),
    "ASGD": lambda p: optim.ASGD(p, foreach=True),
    "Rprop": lambda p: optim.Rprop(p, foreach=True),
}


@pytest.fixture(autouse=True)
def lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record calls for lists on the CPU, too, as on a GPU."""
    monkeypatch.setattr(capturing, "_MULTI_TENSOR", {"cpu"})


def trained(make: Any, dtype: torch.dtype, jit: Callable[[Any], Any]) -> tuple[Any, list[torch.Tensor]]:
    """Return the jitted step, and losses, parameters and state after 5 calls."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)
    optimizer = make(net.parameters())

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1, foreach=True)
        optimizer.step()
        return loss.detach()

    run = jit(step)
    losses = [run(torch.randn(4, 6, dtype=dtype)) for _ in range(5)]
    state = [v for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    return run, [*losses, *net.parameters(), *state]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_steps_of_optimizers(make: Any, dtype: torch.dtype) -> None:
    jitted, found = trained(make, dtype, lambda f: thunder.jit(f, executors=["torch"], fullgraph=True))
    _, expected = trained(make, dtype, lambda f: f)
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))
    calls = [op for op in thunder.last_traces(jitted)[-1].bound_symbols if op.sym.name.startswith("foreach")]
    assert calls and all(len(op.output) == 6 for op in calls)


def test_a_step_in_place() -> None:
    """Each operation is one call for all parameters, and only step counts are copied."""
    jitted, _ = trained(OPTIMIZERS["AdamW"], torch.float32, lambda f: thunder.jit(f, executors=["torch"]))
    operations = thunder.last_traces(jitted)[-1].bound_symbols
    assert Counter(op.sym.name for op in operations if op.sym.name.startswith("foreach")) == {
        "foreach_norm": 1, "foreach_mul": 1,  # clipping
        "foreach_add": 1,  # step counts
        "foreach_mul_": 2, "foreach_lerp_": 1, "foreach_addcmul_": 1, "foreach_maximum_": 1, "foreach_sqrt": 1,
        "foreach_div_": 1, "foreach_add_": 1, "foreach_addcdiv_": 1,
    }  # fmt: skip
    copies = [op for op in operations if op.sym.name == "copy_"]
    assert all(p.ndim == 0 for op in copies for p in op.flat_args if isinstance(p, TensorProxy))


def test_other_strides_are_not_written_in_place() -> None:
    """Torch computes such tensors one by one; the result has the strides of the first operand."""
    call = lambda xs, ys: torch._foreach_add_(xs, ys)  # noqa: E731
    x, y = torch.rand(3, 4), torch.rand(4, 3).t()
    ours, theirs = [x.clone(), x.t().clone().t()], [x.clone(), x.t().clone().t()]
    jitted = thunder.jit(call, executors=["torch"])
    for _ in range(2):
        jitted(ours, [y, y])
        call(theirs, [y, y])
        assert all(map(torch.equal, ours, theirs))
        assert [a.stride() for a in ours] == [a.stride() for a in theirs]


def test_every_function_has_an_operation() -> None:
    assert set(FOREACH) == {name for name in FUNCTIONS if hasattr(torch, f"_foreach_{name}")}


def test_operations_on_real_tensors() -> None:
    (x,) = FOREACH["div"]([torch.ones(2)], [4.0])
    assert x.tolist() == [0.25, 0.25]


def test_sizes_that_change() -> None:
    def call(x: Any, y: Any) -> Any:
        torch._foreach_add_([x], [y])
        return torch._foreach_mul([x, y, x + y], 3)

    jitted = thunder.jit(call, executors=["torch"], cache="symbolic values", fullgraph=True)
    for n in (3, 4, 5, 6):
        x, y = torch.rand(n, 2), torch.rand(n, 2)
        assert all(map(torch.equal, jitted(x.clone(), y), call(x.clone(), y)))
    assert thunder.cache_misses(jitted) < 4
