# SPDX-License-Identifier: Apache-2.0
"""Collectives start early and are waited for late, in their order, as far as the predicted memory allows."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from communicating import claimed, programs, results, starts
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import float_tensor, record

from thunder.core import prims
from thunder.core.groups import ONE_RANK, Group
from thunder.core.trace import Trace
from thunder.core.verify import verify
from thunder.execution.memory_estimate import predicted_peaks
from thunder.passes.overlap import overlapped, start_early

PAIR = Group("5", (0, 2), "mesh_dp")
LAYERS, WIDTH = 5, 64
SHARD = WIDTH * WIDTH * 4  # the bytes of a gathered weight


@given(programs(), st.sampled_from([None, 0, 36, 72, 1 << 20]))
@settings(max_examples=60, deadline=None)
def test_results_and_the_order_of_starts_stay(trace: Trace, allowance: int | None) -> None:
    program = claimed(trace)
    moved = verify(overlapped(program, predicted_peaks, allowance))
    assert starts(moved) == starts(program)
    assert {str(op) for op in moved.bound_symbols} == {str(op) for op in program.bound_symbols}
    assert len(moved.bound_symbols) == len(program.bound_symbols)
    assert all(torch.equal(x, y) for x, y in zip(results(moved), results(program)))


@given(programs(), st.sampled_from([0, 36, 72]))
@settings(max_examples=60, deadline=None)
def test_the_predicted_peak_stays_within_the_budget(trace: Trace, allowance: int) -> None:
    """The bytes that a work keeps alive count from the start on, so the peak before may be higher than predicted."""
    program = claimed(trace)
    kept = sum(36 for op in program.bound_symbols if op.sym.name in ("all_gather", "reduce_scatter"))
    moved = overlapped(program, predicted_peaks, allowance)
    assert max(predicted_peaks(moved)) <= max(predicted_peaks(program)) + allowance + kept


def layers(a: Any, *shards: Any) -> Any:
    """Gather each weight right before its use."""
    for shard in shards:
        a = prims.sin(prims.matmul(a, prims.wait(prims.all_gather(shard, ONE_RANK))))
    return a


def gathers(allowance: int) -> str:
    """Return the gathers (G), waits (w) and products (.) of the layers."""
    shards = [float_tensor(f"s{i}", WIDTH, WIDTH) for i in range(LAYERS)]
    program = claimed(record(layers, [float_tensor("a", 2, WIDTH), *shards], unpack=True))
    moved = overlapped(program, predicted_peaks, allowance)
    assert max(predicted_peaks(moved)) <= max(predicted_peaks(program)) + allowance
    marks = {"all_gather": "G", "wait": "w", "matmul": "."}
    return "".join(marks.get(op.sym.name, "") for op in moved.bound_symbols)


@pytest.mark.parametrize(
    ("allowance", "expected"),
    [(0, "Gw." * 5), (SHARD, "GGw.Gw.Gw.Gw.w."), (3 * SHARD, "GGGGw.Gw.w.w.w."), (1 << 30, "GGGGGw.w.w.w.w.")],
)
def test_the_allowance_decides_how_many_gathers_are_in_flight(allowance: int, expected: str) -> None:
    assert gathers(allowance) == expected


def test_a_small_program_is_not_predicted() -> None:
    """All of its collectives may be in flight at the same time."""

    def fail(trace: Trace) -> Any:
        raise AssertionError

    shards = [float_tensor(f"s{i}", WIDTH, WIDTH) for i in range(LAYERS)]
    program = claimed(record(layers, [float_tensor("a", 2, WIDTH), *shards], unpack=True))
    assert [name.split()[0] for name in starts(overlapped(program, fail))] == ["all_gather"] * LAYERS


def test_an_operand_that_a_work_keeps_ends_the_move_of_a_wait() -> None:
    """A gradient that is scattered stays in memory until the wait."""

    def program(a: Any) -> Any:
        done = prims.wait(prims.reduce_scatter(prims.matmul(a, a), "sum", ONE_RANK))
        b = prims.matmul(a, a)
        c = prims.matmul(b, b)
        return prims.matmul(c, b), done

    trace = claimed(record(program, [float_tensor("a", WIDTH, WIDTH)], unpack=True))
    last = {}
    for allowance in (0, SHARD):
        moved = overlapped(trace, predicted_peaks, allowance)
        names = [op.sym.name for op in moved.bound_symbols]
        last[allowance] = names.index("wait")
    assert last[0] < last[SHARD]


def test_a_collective_starts_early_and_is_waited_for_late() -> None:
    """With what packs its operands, but not with other work that these need."""

    def program(a: Any) -> Any:
        b = prims.matmul(a, a)
        c = prims.matmul(b, b)
        packed = prims.cat([prims.mul(b, b), b], 0)
        done = prims.wait(prims.all_reduce(packed, "sum", PAIR))
        d = prims.sin(c)
        return prims.wait(prims.all_reduce(d, "sum", PAIR)), done

    trace = overlapped(record(program, [float_tensor("a", 4, 4)]), predicted_peaks)
    names = [op.sym.name for op in trace.bound_symbols if op.sym.name not in ("unpack_trivial", "python_return")]
    assert names == ["matmul", "mul", "cat", "all_reduce", "matmul", "sin", "all_reduce", "wait", "wait"]


def test_nothing_moves_across_a_write() -> None:
    def program(a: Any, b: Any) -> Any:
        c = prims.exp(a)
        prims.copy_(c, b)
        flying = prims.all_reduce(prims.mul(b, b), "sum", PAIR)
        return prims.wait(flying)

    trace = record(program, [float_tensor("a", 4), float_tensor("b", 4)])
    moved = overlapped(trace, predicted_peaks)
    assert [str(op) for op in moved.bound_symbols] == [str(op) for op in trace.bound_symbols]


def test_a_wait_moves_with_the_views_of_its_result() -> None:
    """Gradients of shards are views of a reduced tensor: they are made where a gradient is used."""

    def program(a: Any) -> Any:
        part = prims.reshape(prims.wait(prims.all_reduce(prims.matmul(a, a), "sum", PAIR)), (2, 8))
        squares = prims.mul(part, part)
        b = prims.matmul(a, a)
        return prims.matmul(prims.transpose(squares, (1, 0)), part), b

    moved = overlapped(record(program, [float_tensor("a", 4, 4)]), predicted_peaks)
    names = [op.sym.name for op in moved.bound_symbols if op.sym.name not in ("unpack_trivial", "python_return")]
    assert names == ["matmul", "all_reduce", "matmul", "wait", "reshape", "mul", "transpose", "matmul"]


def sharded_backward(a: Any, *shards: Any, replicas: bool = False) -> Any:
    """Gather each weight, use it, and reduce its gradient, as the backward of units with `fully_shard` does."""
    gradients = []
    for shard in shards:
        weight = prims.wait(prims.gather_shards(shard, ONE_RANK))
        b = prims.matmul(a, weight)
        gradient, a = prims.matmul(prims.transpose(a, (1, 0)), b), b
        total = prims.wait(prims.reduce_scatter(gradient, "sum", ONE_RANK))
        if replicas:
            total = prims.wait(prims.all_reduce(total, "sum", ONE_RANK))
        gradients.append(prims.reshape(total, (WIDTH * WIDTH,)))
    return a, gradients


@pytest.mark.parametrize(
    ("replicas", "allowance", "expected"),
    [
        (False, 0, "Gw..RGww..RGww..RGww..Rw"),
        (False, 3 * SHARD, "GGw..RGw..RGww..Rww..Rww"),
        (False, 1 << 30, "GGw..RGw..RGw..Rw..Rwwww"),
        # The sum of replicas starts when the next gradient is reduced, so that nothing waits for its operand.
        (True, 1 << 30, "GGw..RGw..wARGw..wARw..wARwAwwww"),
        (True, 0, "Gw..RwAGww..RwAGww..RwAGww..RwAw"),
    ],
)
def test_shards_are_gathered_one_ahead(replicas: bool, allowance: int, expected: str) -> None:
    """The next gather starts before the gradient of this weight is reduced, and a reduction has a weight's time."""
    shards = [float_tensor(f"s{i}", WIDTH, WIDTH) for i in range(4)]
    backward = functools.partial(sharded_backward, replicas=replicas)
    program = claimed(record(backward, [float_tensor("a", WIDTH, WIDTH), *shards], unpack=True))
    moved = verify(overlapped(program, predicted_peaks, allowance))
    marks = {"gather_shards": "G", "wait": "w", "matmul": ".", "reduce_scatter": "R", "all_reduce": "A"}
    assert "".join(marks.get(op.sym.name, "") for op in moved.bound_symbols) == expected
    values = [torch.randn(WIDTH, WIDTH) for _ in program.args]
    before, after = (trace.python_callable()(*values) for trace in (program, moved))
    assert torch.equal(before[0], after[0])
    assert all(torch.equal(x, y) for x, y in zip(before[1], after[1]))


@pytest.mark.parametrize(("most", "expected"), [(SHARD, "GwG.wG.w."), (2 * SHARD, "GGwG.w.w."), (1 << 30, "GGGw.w.w.")])
def test_few_shards_are_gathered_at_the_same_time(most: int, expected: str) -> None:
    """Otherwise the parameters of all units would be packed before the first unit computes."""

    def program(a: Any, *shards: Any) -> Any:
        for shard in shards:
            a = prims.matmul(a, prims.wait(prims.gather_shards(shard, ONE_RANK)))
        return a

    shards = [float_tensor(f"s{i}", WIDTH, WIDTH) for i in range(3)]
    trace = record(program, [float_tensor("a", 2, WIDTH), *shards], unpack=True)
    marks = {"gather_shards": "G", "wait": "w", "matmul": "."}
    moved = start_early(trace.bound_symbols, most_gathered=most)
    assert "".join(marks.get(op.sym.name, "") for op in moved) == expected
