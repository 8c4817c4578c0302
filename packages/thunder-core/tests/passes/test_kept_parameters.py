# SPDX-License-Identifier: Apache-2.0
"""Gathered parameters that backward keeps within a budget, beginning with the last units."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import thunder
from thunder.core import devices, dtypes, prims
from thunder.core.groups import Group
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.trace import Trace
from thunder.passes.kept_parameters import KeptParameters

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="a torch without torch.distributed")

UNITS, WIDTH, RANKS = 3, 8, 2
NUMEL = WIDTH * WIDTH + WIDTH  # of a unit's parameters


@pytest.fixture(autouse=True, scope="module")
def _simulated() -> Iterator[None]:
    with thunder.examine.fake_ranks(RANKS):
        yield


def model(**options: Any) -> nn.Module:
    """Units, and a root without parameters of its own."""
    from torch.distributed.fsdp import fully_shard

    module = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(UNITS)])
    for unit in module:
        fully_shard(unit, **options)
    return fully_shard(module)


def gathers(trace: Trace) -> int:
    return sum(op.sym.name == "gather_shards" for op in trace.bound_symbols)


def explained(jitted: Any) -> list[str]:
    return [line for line in str(thunder.explain(jitted)).split("\n") if line.startswith("backward keeps")]


@pytest.mark.parametrize(
    ("budget", "kept"),
    [(0, 0), (4 * NUMEL - 1, 0), (4 * NUMEL, 1), ("auto", 1), (12 * NUMEL - 1, 2), (1 << 30, 3)],
)
def test_the_last_units_are_kept(budget: Any, kept: int) -> None:
    module = model()
    jitted = thunder.jit(module, kept_parameters=budget)
    x = torch.randn(4, WIDTH, requires_grad=True)
    jitted(x).sum().backward()
    assert gathers(thunder.last_traces(jitted)[-1]) == UNITS
    assert gathers(thunder.last_backward_traces(jitted)[-1]) == UNITS - kept
    if budget != 0:
        (line,) = explained(jitted)
        assert line.startswith(f"backward keeps the parameters of {kept} of 3 units")
        assert line.split("; ")[1:] == [f"{name}: {4 * NUMEL} bytes" for name in ("2", "1", "0")[:kept]]

    def step(x: torch.Tensor) -> None:
        module(x).sum().backward()

    jitted = thunder.jit(step, kept_parameters=budget)
    jitted(x)
    assert gathers(thunder.last_traces(jitted)[-1]) == 2 * UNITS - kept


def test_the_dtype_of_the_gather_counts() -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    jitted = thunder.jit(model(mp_policy=MixedPrecisionPolicy(torch.bfloat16)), kept_parameters=4 * NUMEL)
    jitted(torch.randn(4, WIDTH, requires_grad=True)).sum().backward()
    assert gathers(thunder.last_backward_traces(jitted)[-1]) == UNITS - 2


@pytest.mark.parametrize(("together", "kept"), [(False, 2), (True, 1)])
def test_backward_parts_share_the_budget_while_they_overlap(together: bool, kept: int) -> None:
    one, other = model(), model()

    def step(x: torch.Tensor) -> None:
        if together:
            first, second = one(x).sum(), other(x).sum()
            first.backward()
            second.backward()
        else:
            one(x).sum().backward()
            other(x).sum().backward()

    jitted = thunder.jit(step, kept_parameters=4 * NUMEL)
    jitted(torch.randn(4, WIDTH, requires_grad=True))
    assert gathers(thunder.last_traces(jitted)[-1]) == 4 * UNITS - kept
    assert len(explained(jitted)) == (2 if together else 1)


@given(st.lists(st.integers(1, 9), max_size=6), st.lists(st.integers(1, 9), max_size=6), st.data())
@settings(max_examples=50, deadline=None)
def test_the_budget_holds_at_all_times(one: list[int], other: list[int], data: st.DataObject) -> None:
    """Two backward parts of a step: the parameters of the second one are gathered before or after the first ends."""
    budget = data.draw(st.integers(0, 30))
    places = st.lists(st.integers(0, 9), min_size=len(other), max_size=len(other), unique=True)
    parts, end = (list(enumerate(one)), list(zip(data.draw(places), other))), 5
    chosen = KeptParameters(4 * budget, {})
    trace = Trace("step")
    with tracectx(trace):
        found = [[(i, _gather(trace, n)) for i, n in part] for part in parts]
    first, second = frozenset("a"), frozenset("b")
    kept = [chosen.choose(found[0], first), chosen.choose(found[1], second, {first: end})]
    held = [[(i, op.output.shape[0]) for i, op in part if op in mine] for part, mine in zip(found, kept)]
    for t in range(10):
        # The parameters of the first part are there from its first gather to its end.
        live = sum(n for _, n in held[0]) * (t < end) + sum(n for i, n in held[1] if i <= t)
        assert live <= budget


def _gather(trace: Trace, numel: int) -> Any:
    shard = TensorProxy(trace.make_name("x"), shape=(numel,), device=devices.cpu, dtype=dtypes.float32)
    prims.gather_shards(shard, Group("0", (0,)))
    return trace.bound_symbols[-1]


def test_the_option_is_checked() -> None:
    options: list[Any] = [-1, "2 GiB", True, None]
    for wrong in options:
        with pytest.raises(ValueError, match='kept_parameters is a number of bytes or "auto"'):
            thunder.jit(lambda x: x, kept_parameters=wrong)
