# SPDX-License-Identifier: Apache-2.0
"""Collectives are merged into buckets where nothing needs their results in between, and results keep their bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from communicating import STARTS, claimed, programs, results
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import float_tensor, record

import thunder
from thunder.core import devices, dtypes, prims
from thunder.core.groups import BUCKETS, UNITS, Group
from thunder.core.proxies import TensorProxy
from thunder.core.trace import Trace
from thunder.core.verify import verify
from thunder.execution.memory_estimate import predicted_peaks
from thunder.passes.bucketing import Bucket, bucketed, on_one_rank

PAIR, FOUR = Group("1", (0, 1)), Group("2", range(4))
MUCH = 1 << 20


def predicted(trace: Trace) -> list[int]:
    return predicted_peaks(claimed(trace))


def merged(trace: Trace, **options: Any) -> list[str]:
    """Return the collectives with the shapes of their operands after the pass."""
    out = verify(bucketed(trace, predicted, **{"limit": MUCH, **options}))
    return [f"{op.sym.name} {list(op.args[0].shape)}" for op in out.bound_symbols if op.sym.name in STARTS]


def one_by_one(group: Group, *dtypes_: Any, op: str = "sum") -> Trace:
    """Reduce tensors one by one, and use each result at once."""
    given = [TensorProxy(f"x{i}", shape=(2, i + 1), device=devices.cpu, dtype=d) for i, d in enumerate(dtypes_)]

    def program(*xs: Any) -> Any:
        return tuple([prims.neg(prims.wait(prims.all_reduce(x, op, group))) for x in xs])

    return record(program, given, unpack=True)


@given(programs(), st.sampled_from([40, 80, 100, MUCH]))
@settings(max_examples=80, deadline=None)
def test_results_keep_their_bits(trace: Trace, limit: int) -> None:
    expected = results(claimed(trace))
    found = results(claimed(verify(bucketed(trace, predicted, limit=limit, reassociate=True))))
    assert all(torch.equal(x, y) and x.shape == y.shape for x, y in zip(found, expected))


F32, F64, I64 = dtypes.float32, dtypes.float64, dtypes.int64


@pytest.mark.parametrize(
    ("trace", "options", "expected"),
    [
        (one_by_one(PAIR, F32, F32, F32), {}, ["all_reduce [12]"]),
        (one_by_one(PAIR, F32, F32, F32), {"limit": 24}, ["all_reduce [6]", "all_reduce [2, 3]"]),
        (one_by_one(PAIR, F32, F64, F32, F64), {}, ["all_reduce [8]", "all_reduce [12]"]),
        (one_by_one(FOUR, F32, F32), {}, ["all_reduce [2, 1]", "all_reduce [2, 2]"]),  # the order of sums has changed
        (one_by_one(FOUR, F32, F32), {"reassociate": True}, ["all_reduce [6]"]),
        (one_by_one(FOUR, I64, I64), {}, ["all_reduce [6]"]),
        (one_by_one(FOUR, I64, I64, op="avg"), {}, ["all_reduce [2, 1]", "all_reduce [2, 2]"]),
        (one_by_one(PAIR, F32, F32, op="max"), {}, ["all_reduce [2, 1]", "all_reduce [2, 2]"]),  # NaN, 0.0 and -0.0
    ],
)
def test_what_is_merged(trace: Trace, options: dict[str, Any], expected: list[str]) -> None:
    assert merged(trace, **options) == expected


@given(programs(), st.sampled_from([0, 36, 100, 200, 400]))
@settings(max_examples=60, deadline=None)
def test_the_predicted_peak_stays_within_the_budget(trace: Trace, allowance: int) -> None:
    found = verify(bucketed(trace, predicted, allowance, limit=MUCH, reassociate=True))
    assert max(predicted(found)) <= max(predicted(trace)) + allowance
    assert all(map(torch.equal, results(claimed(found)), results(claimed(trace))))


def freed_one_by_one(count: int, n: int = 256) -> Trace:
    """Compute, reduce and sum up tensors of a kilobyte, of which four are alive at the same time."""

    def program(x: Any) -> Any:
        total = x
        for _ in range(count):
            total = prims.add(total, prims.wait(prims.all_reduce(prims.sin(x), "sum", PAIR)))
        return total

    return record(program, [float_tensor("x", n)], unpack=True)


@pytest.mark.parametrize(
    ("allowance", "sizes"), [(None, [8]), (20 << 10, [8]), (10 << 10, [4, 4]), (4 << 10, [2] * 4), (0, [1] * 8)]
)
def test_buckets_that_raise_the_predicted_peak_too_much_are_smaller(allowance: int | None, sizes: list[int]) -> None:
    trace = freed_one_by_one(8)
    found = verify(bucketed(trace, predicted, allowance, limit=MUCH))
    assert [op.args[0].shape[0] // 256 for op in found.bound_symbols if op.sym.name == "all_reduce"] == sizes
    report = found.info[BUCKETS]
    assert [count for count, _ in report.merged.values()] == [n for n in sizes if n > 1]
    assert all(copied == n << 10 for n, copied in report.merged.values())
    assert (len(sizes) > 1) == any("overlap_memory" in line for line in report.report())


def test_all_groups_get_the_limits_on_which_their_ranks_agree() -> None:
    trace = freed_one_by_one(8)
    asked = []

    def agree(trace: Trace, limit: int, plan: Any) -> list[Bucket]:
        asked.append(limit)
        return on_one_rank(trace, 2 << 10, plan)  # that of another rank

    found = bucketed(trace, predicted, 20 << 10, limit=MUCH, agree=agree)
    assert asked == [MUCH]
    assert [op.args[0].shape[0] // 256 for op in found.bound_symbols if op.sym.name == "all_reduce"] == [2] * 4
    assert "at most 2048 bytes" in found.info[BUCKETS].report()[1]


def test_collectives_that_need_each_other_are_not_merged() -> None:
    def program(x: Any, y: Any) -> Any:
        first = prims.wait(prims.all_reduce(x, "sum", PAIR))
        return prims.wait(prims.all_reduce(first, "sum", PAIR)), prims.wait(prims.all_reduce(y, "sum", PAIR))

    trace = record(program, [float_tensor("x", 2), float_tensor("y", 3)], unpack=True)
    assert merged(trace) == ["all_reduce [5]", "all_reduce [2]"]


def test_different_reductions_groups_and_roots_are_not_merged() -> None:
    other = Group("3", (0, 2))
    starts = [
        lambda x: prims.all_reduce(x, "sum", PAIR),
        lambda x: prims.all_reduce(x, "product", PAIR),
        lambda x: prims.all_reduce(x, "sum", other),
        lambda x: prims.broadcast(x, 0, PAIR),
        lambda x: prims.broadcast(x, 1, PAIR),
    ]

    def program(x: Any) -> Any:
        flying = [start(x) for start in starts]
        return tuple([prims.wait(each) for each in flying])

    trace = record(program, [float_tensor("x", 2)], unpack=True)
    assert bucketed(trace, predicted, limit=MUCH) is trace


def test_units_are_not_mixed() -> None:
    trace = one_by_one(PAIR, *[F32] * 4)
    names = [op.out_names[0] for op in trace.bound_symbols if op.sym.name == "all_reduce"]
    trace.info[UNITS] = {names[0]: "a", names[2]: "a", names[1]: "b"}
    assert sorted(merged(trace)) == ["all_reduce [2, 2]", "all_reduce [2, 4]", "all_reduce [8]"]


def test_a_barrier_ends_all_buckets() -> None:
    def program(x: Any, y: Any) -> Any:
        first = prims.wait(prims.all_reduce(x, "sum", PAIR))
        prims.wait(prims.synchronize_ranks(PAIR))
        return first, prims.wait(prims.all_reduce(y, "sum", PAIR))

    trace = record(program, [float_tensor("x", 2), float_tensor("y", 3)], unpack=True)
    assert bucketed(trace, predicted, limit=MUCH) is trace


def test_ranks_that_do_not_agree_merge_nothing() -> None:
    seen: list[Bucket] = []

    def refuse(trace: Trace, limit: int, plan: Any) -> list[Bucket]:
        seen.extend(plan({PAIR: limit}))
        return []

    trace = one_by_one(PAIR, F32, F32)
    assert bucketed(trace, predicted, limit=MUCH, agree=refuse) is trace
    assert [bucket.describe() for bucket in seen] == ["all_reduce of [[2, 1], [2, 2]] float32"]


def test_a_loop_over_parameters_reduces_the_last_layers_first() -> None:
    """Their gradients are computed first, so that their bucket starts while backward goes on."""
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(4)])

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        for p in model.parameters():
            torch.distributed.all_reduce(p.grad)
        return loss.detach()

    with thunder.examine.fake_ranks(2):
        jitted = thunder.jit(step, bucketing="exact", bucket_bytes=600)
        jitted(torch.randn(4, 8))
        names = [op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols]
    last = max(i for i, name in enumerate(names) if name == "matmul")
    assert names.count("all_reduce") == 2
    assert names.index("all_reduce") < last < names.index("wait")


@pytest.mark.parametrize("start", ["all_reduce", "all_gather", "reduce_scatter"])
def test_results_of_a_program_share_no_memory(start: str) -> None:
    """They are written to by their owner, also if autograd records it."""
    whole = Group("0", (0, 1))  # the default group
    starts = {
        "all_reduce": lambda x: prims.all_reduce(x, "sum", whole),
        "all_gather": lambda x: prims.all_gather(x, whole),
        "reduce_scatter": lambda x: prims.reduce_scatter(x, "sum", whole),
    }

    def program(*xs: torch.Tensor) -> Any:
        return [torch.flatten(prims.wait(starts[start](x * 2))) for x in xs]

    with thunder.examine.fake_ranks(2):
        jitted = thunder.jit(program, bucketing="exact")
        for needs_grad in (False, True):
            results = jitted(*[torch.ones(n, 1, requires_grad=needs_grad) for n in (2, 4, 2)])
            for y in results:
                y.mul_(2)
                assert y.is_contiguous()
                assert y.untyped_storage().nbytes() == 4 * y.numel()
        names = [op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols]
        assert names.count(start) == 1
        assert names.count("clone") == 3  # each result is copied once


def test_shards_are_cast_before_the_bucket_that_gathers_them() -> None:
    """To cast all of them before the first bucket would need the memory of all."""

    def program(x: Any, *shards: Any) -> Any:
        for shard in shards:
            whole = prims.wait(prims.all_gather(prims.convert_element_type(shard, F64), PAIR))
            x = prims.matmul(x, prims.convert_element_type(whole, F32))
        return x

    inputs = [float_tensor("x", 4, 4), *[float_tensor(f"s{i}", 2, 4) for i in range(4)]]
    out = verify(bucketed(record(program, inputs, unpack=True), predicted, limit=256))
    names = [op.sym.name for op in out.bound_symbols]
    first, second = [i for i, name in enumerate(names) if name == "all_gather"]
    assert names[:first].count("convert_element_type") == 2
    assert "matmul" in names[first:second]


def test_the_options_are_checked() -> None:
    with pytest.raises(ValueError, match="bucketing is one of 'never', 'exact', 'any'"):
        thunder.jit(lambda x: x, bucketing="always")
    with pytest.raises(ValueError, match="bucket_bytes is an int of at least 1"):
        thunder.jit(lambda x: x, bucket_bytes=0)
    with pytest.raises(ValueError, match="overlap_memory is None or a number of bytes"):
        thunder.jit(lambda x: x, overlap_memory=-1)
