# SPDX-License-Identifier: Apache-2.0
"""Collectives in traces: every pass keeps all of them, in order, and only `wait` reads a result in flight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import float_tensor, record

import thunder
from thunder.core import prims
from thunder.core.errors import FallbackWarning, TraceVerificationError
from thunder.core.groups import ONE_RANK, Group
from thunder.core.symbol import OpTags
from thunder.core.trace import Trace
from thunder.core.verify import verify
from thunder.execution.regions import fused, partition
from thunder.passes.cse import cse
from thunder.passes.dce import dce

PAIR = Group("5", (0, 2), "mesh_dp")


@pytest.mark.parametrize(
    ("ranks", "text"),
    [((0, 1), "(0, 1)"), (range(8), "range(0, 8)"), ((1, 3, 5), "range(1, 6, 2)"), ((0, 1, 5), "(0, 1, 5)"),
     ((2, 1, 0), "(2, 1, 0)"), ((3,), "(3,)")],
)  # fmt: skip
def test_a_group_prints_as_code(ranks: Any, text: str) -> None:
    group = Group("7", ranks, "mesh")
    assert repr(group) == f"Group('7', {text}, 'mesh')"
    assert eval(repr(group)) == group


def test_metadata() -> None:
    found: list[Any] = []

    def program(a: Any) -> Any:
        found.append(prims.wait(prims.all_gather(a, PAIR)))
        found.append(prims.wait(prims.reduce_scatter(a, "sum", PAIR)))
        found.append(prims.wait(prims.all_to_all(a, [1, 5], [3, 1], PAIR)))
        return found

    record(program, [float_tensor("a", 4, 3)])
    assert [x.shape for x in found] == [(8, 3), (2, 3), (6, 3)]


STEPS: dict[str, Callable[[Any], Any]] = {
    "add": lambda a: prims.add(a, a),
    "exp": prims.exp,
    "sin": prims.sin,  # not fused
    "all_reduce": lambda a: prims.all_reduce(a, "sum", PAIR),
    "broadcast": lambda a: prims.broadcast(a, 0, PAIR),
    "barrier": lambda a: prims.synchronize_ranks(PAIR),
}


@st.composite
def programs(draw: Any) -> Trace:
    """A program in which starts and waits are mixed with other operations, and few results are used."""
    steps = draw(st.lists(st.tuples(st.sampled_from([*STEPS, "wait"]), st.integers(0, 9)), min_size=1, max_size=30))

    def program(a: Any) -> Any:
        values, flying = [a], []
        for name, i in steps:
            if name == "wait":
                if flying:
                    done = prims.wait(flying.pop(i % len(flying)))
                    values += [done] if done.shape == (4,) else []
                continue
            made = STEPS[name](values[i % len(values)])
            (values if name in ("add", "exp", "sin") else flying).append(made)
        for left in flying:
            prims.wait(left)
        return values[-1]

    return record(program, [float_tensor("a", 4)])


def collectives(trace: Trace) -> list[str]:
    return [f"{op.sym.name} {op.out_names}" for op in trace.bound_symbols if OpTags.COLLECTIVE in op.sym.tags]


@given(programs())
@settings(max_examples=60, deadline=None)
def test_passes_keep_all_collectives_in_order(trace: Trace) -> None:
    verify(trace)
    expected = collectives(trace)
    for run in (dce, cse):
        trace = verify(run(trace))
        assert [name.split()[0] for name in collectives(trace)] == [name.split()[0] for name in expected]
    expected = collectives(trace)
    parts = partition(trace, lambda op: op.sym.name in ("add", "exp"))
    assert collectives(verify(fused(trace, parts, lambda region: None, "Regions"))) == expected


def test_computation_around_a_collective_is_one_region() -> None:
    """A collective is no barrier for operations that do not depend on it."""

    def program(a: Any) -> Any:
        b = prims.exp(a)
        flying = prims.all_reduce(a, "sum", PAIR)
        c = prims.add(b, b)
        return prims.add(prims.wait(flying), c)

    trace = record(program, [float_tensor("a", 4)])
    parts = partition(trace, lambda op: op.sym.name in ("add", "exp"))
    assert ["exp", "add", "add"] in [[op.sym.name for op in getattr(part, "operations", ())] for part in parts]


def test_only_wait_reads_a_result_in_flight() -> None:
    def program(a: Any) -> Any:
        flying = prims.all_reduce(a, "sum", PAIR)
        b = prims.exp(flying)
        prims.wait(flying)
        return b

    trace = record(program, [float_tensor("a", 4)])
    with pytest.raises(TraceVerificationError, match="exp reads a result of a collective that is in flight"):
        verify(trace)


def test_backward_runs_the_transposed_collectives() -> None:
    def program(x: torch.Tensor) -> Any:
        every = prims.wait(prims.all_gather(x, ONE_RANK))
        return prims.wait(prims.all_reduce(every * 2, "avg", ONE_RANK))

    jf = thunder.jit(program)
    x = torch.randn(3, requires_grad=True)
    jf(x).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))
    names = [name.split()[0] for name in collectives(thunder.last_backward_traces(jf)[-1])]
    assert names == ["all_reduce", "wait", "reduce_scatter", "wait"]


def test_reductions_without_a_gradient_say_so() -> None:
    x = torch.randn(3, requires_grad=True)
    jf = thunder.jit(lambda x: prims.wait(prims.all_reduce(x, "max", ONE_RANK)))
    with pytest.warns(FallbackWarning, match="the gradient of all_reduce exists for the reductions sum and avg"):
        jf(x)
