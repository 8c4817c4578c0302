# SPDX-License-Identifier: Apache-2.0
"""Collectives on two processes: as eager on both ranks, compiled, in order, whichever results a rank uses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import BACKEND, reports

import thunder

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="a torch without gloo")

# The collectives of the programs without the waits: those of the forward program, then those of the backward.
COMPILED: dict[str, tuple[str, ...]] = {
    "used": ("all_reduce",),
    "unused_on_one_rank": ("all_reduce",) * 2,
    "equal_calls": ("all_reduce",) * 2,
    "raw_operators": ("all_reduce",) * 2,
    "two_in_flight": ("all_reduce", "all_gather"),
    "result_in_flight": ("all_reduce",) * 2,
    "coalesced": ("all_reduce", "all_gather", "all_reduce"),  # of concatenations, as gloo does it
    "rank_is_read": (),
    "in_place_operator": ("all_reduce",),
    "gradient": ("all_reduce",) * 2,
    "gathered": ("all_gather", "reduce_scatter", "all_gather", "reduce_scatter"),
    "in_other_dimensions": ("all_gather", "reduce_scatter", "all_gather", "reduce_scatter"),
    "exchanged": ("all_to_all",) * 2,
    "permuted": ("all_to_all",) * 2,
    "with_own_autograd": ("all_gather", "reduce_scatter", "all_to_all", "all_to_all", "all_gather", "reduce_scatter"),
    "second_derivative": ("all_reduce",) * 2,
    "autograd_function": ("all_reduce",) * 2,
    "checkpointed": ("all_reduce",) * 3,
    "nn_all_reduce": ("all_reduce",) * 2,
    "nn_all_gather": ("all_gather", "scatter_from", "scatter_from"),
    "nn_reduce_scatter": ("reduce_scatter", "all_gather"),
    "nn_broadcast": ("broadcast", "reduce"),
    "nn_reduce": ("reduce", "broadcast"),
    "nn_all_to_all": ("all_to_all",) * 2,
    "in_place": ("all_reduce",),
    "input_in_place": ("all_reduce",),
    "a_view_in_place": ("all_reduce",),
    "asynchronous": ("all_reduce",),
    "several_at_once": ("all_reduce", "all_gather"),
    "slices_at_once": ("all_reduce",) * 2,
    "work_class": ("all_reduce",),
    "channels_last": ("all_reduce",),
    "lists": ("all_gather", "reduce_scatter"),
    "into_tensors": ("all_gather", "reduce_scatter"),
    "from_one_rank": ("broadcast", "reduce"),
    "uneven_parts": ("all_to_all",),
    "other_dtypes": ("all_reduce",) * 2,
    "through_one_rank": ("gather_to", "scatter_from"),
    "barrier": ("synchronize_ranks",),
    "functional_then_barrier": ("all_reduce", "synchronize_ranks"),
    "sent": ("send", "receive"),  # by rank
    "exchanged_pairwise": ("send", "receive"),
    "in_a_group": ("all_reduce",) * 2,
    "batched": ("all_gather",),
    "module": ("all_reduce",),
}
EAGER = {
    "read_in_flight": "before it waits for it",
    "not_waited_for": "does not wait for it",
    "read_before_wait": "before it waits for the collective that writes it",
    "written_before_wait": "before it waits for the collective that writes it",
    "one_column": "not contiguous",
    "new_group": "creates or destroys a process group",
    "gathered_objects": "Pickler",
    "decided": "data-dependent",
}
FAILING: tuple[str, ...] = ()
if BACKEND == "nccl":
    # It concatenates nothing, `dist.nn` uses other collectives, and P2P operations are grouped.
    COMPILED["coalesced"] = ("all_reduce", "all_reduce", "all_gather", "all_gather", "all_reduce", "all_reduce")
    COMPILED["nn_all_gather"] = ("all_gather", "reduce_scatter")
    del COMPILED["exchanged_pairwise"], EAGER["one_column"]
    EAGER["exchanged_pairwise"] = "_start_coalescing"
    FAILING = ("one_column",)  # NCCL rejects tensors that are not contiguous


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The reports of two ranks that have run all cases."""
    return reports("ranks.py", 2, tmp_path_factory.mktemp("ranks"))


def test_each_case_is_expected(found: list[dict[str, Any]]) -> None:
    assert list(found[0]) == list(found[1]) and set(found[0]) == {*COMPILED, *EAGER, *FAILING}


@pytest.mark.parametrize("name", [*COMPILED, *EAGER, *FAILING])
def test_collectives_are_as_eager_on_each_rank(found: list[dict[str, Any]], name: str) -> None:
    for report in found:
        assert report[name]["jitted"] == report[name]["eager"]
        assert all(isinstance(x, str) == (name in FAILING) for x in report[name]["eager"])


@pytest.mark.parametrize("name", COMPILED)
def test_collectives_are_compiled_and_cached(found: list[dict[str, Any]], name: str) -> None:
    for rank, report in enumerate(found):
        assert (report[name]["misses"], report[name]["hits"]) == (1, 2), report[name]["reason"]
        expected = COMPILED[name] if name != "sent" else COMPILED[name][rank : rank + 1]
        calls = report[name]["collectives"]
        assert tuple([call for call in calls if call != "wait"]) == expected
        assert calls.count("wait") == len(expected) + (name == "batched")  # the batching rule waits, too


@pytest.mark.parametrize("name", EAGER)
def test_other_collectives_run_eagerly_and_the_reason_is_given(found: list[dict[str, Any]], name: str) -> None:
    for report in found:
        assert EAGER[name] in report[name]["reason"]


def test_work_overlaps_with_communication(found: list[dict[str, Any]]) -> None:
    """Starts and waits are operations of their own, and keep the order of the program."""
    for report in found:
        assert report["several_at_once"]["collectives"] == ["all_reduce", "all_gather", "wait", "wait"]


def test_a_trace_keeps_collectives_in_order() -> None:
    """One process is enough to see the text: unused and equal collectives stay, and plain tensors are waited for."""
    import torch.distributed._functional_collectives as functional

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:

        def f(x: torch.Tensor) -> torch.Tensor:
            functional.all_reduce(x, "sum", dist.group.WORLD)
            functional.all_reduce(x, "max", dist.group.WORLD)
            functional.all_reduce(x, "sum", dist.group.WORLD)
            return x + 1

        jf = thunder.jit(f)
        x = torch.ones(3)
        assert torch.equal(jf(x), f(x))
        lines = thunder.last_traces(jf)[-1].python(depth=0).splitlines()
        calls = [line.split("= ")[1].split("(")[0] for line in lines if " = " in line]
        assert sorted(calls) == ["torch.add"] + ["torchex.all_reduce"] * 3 + ["torchex.wait"] * 3
        started = [line.split("(x, ")[1].split(",")[0] for line in lines if "= torchex.all_reduce(" in line]
        assert started == ["'sum'", "'max'", "'sum'"]
        assert any("all_reduce(x, 'max', Group('0', (0,), 'default_pg'))" in line for line in lines)
    finally:
        dist.destroy_process_group()


def test_the_number_of_processes_is_guarded() -> None:
    import torch.distributed._functional_collectives as functional
    import torch.testing._internal.distributed.fake_pg  # registers the backend "fake"

    jf = thunder.jit(lambda x: functional.all_gather_tensor(x, 0, dist.group.WORLD))
    for fake_size in (2, 4, 4):
        dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=fake_size)
        try:
            assert jf(torch.ones(3)).shape == (3 * fake_size,)
        finally:
            dist.destroy_process_group()
    assert thunder.cache_misses(jf) == 2


def test_the_rank_and_the_ranks_of_groups_are_guarded() -> None:
    """A program of one rank never runs as the program of another, nor in a group of other processes."""
    import torch.testing._internal.distributed.fake_pg  # registers the backend "fake"

    def f(x: torch.Tensor, group: Any) -> torch.Tensor:
        out = x.clone()
        dist.all_reduce(out, group=group)
        return out * dist.get_rank()

    jf = thunder.jit(f)
    for rank, ranks, misses in ((0, [0, 1], 1), (1, [0, 1], 2), (1, [1, 2], 3)):
        dist.init_process_group("fake", store=dist.HashStore(), rank=rank, world_size=4)
        try:
            group = dist.new_group(ranks)
            for _ in range(2):
                assert torch.equal(jf(torch.ones(3), group), torch.full((3,), float(rank)))
        finally:
            dist.destroy_process_group()
        assert thunder.cache_misses(jf) == misses


def test_a_group_that_is_gone_is_not_used() -> None:
    """Without process groups the prologue does not accept the call, and eager mode's error is raised."""
    import torch.testing._internal.distributed.fake_pg  # registers the backend "fake"

    def f(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x

    jf = thunder.jit(f)
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=2)
    try:
        jf(torch.ones(3))
    finally:
        dist.destroy_process_group()
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        jf(torch.ones(3))


def test_nothing_communicates_while_a_program_is_compiled() -> None:
    """On the fake backend's process group, a counting method sees the collectives that run: none before the run."""
    import torch.testing._internal.distributed.fake_pg  # registers the backend "fake"

    ran: list[str] = []

    class Noted(thunder.Transform):
        """Notes that compilation has reached the last phase."""

        def transform_execution(self, trace: Any, context: Any) -> Any:
            ran.append("compiled")
            return trace

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        dist.barrier()
        return y

    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=2)
    group: Any = torch._C._distributed_c10d.ProcessGroup
    before = vars(group)["allreduce"]  # as it is, not bound

    def counted(*args: Any) -> Any:
        ran.append("all_reduce")
        return before.__get__(args[0])(*args[1:])

    group.allreduce = counted
    try:
        jf = thunder.jit(f, transforms=[Noted()])
        for _ in range(2):
            jf(torch.ones(3))
    finally:
        group.allreduce = before
        dist.destroy_process_group()
    assert ran == ["compiled", "all_reduce", "all_reduce"]


def test_a_collective_is_seen_while_a_profiler_runs() -> None:
    """The profiler takes the place of thunder's own hook of calls."""
    import cProfile

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:

        def f(x: torch.Tensor) -> torch.Tensor:
            dist.barrier()
            return x * 2

        jf = thunder.jit(f)
        with cProfile.Profile():
            assert torch.equal(jf(torch.ones(3)), torch.full((3,), 2.0))
        calls = [op.sym.name for op in thunder.last_traces(jf)[-1].bound_symbols if op.sym.name != "python_del"]
        assert "synchronize_ranks" in calls
    finally:
        dist.destroy_process_group()
