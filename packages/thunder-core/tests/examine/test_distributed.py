# SPDX-License-Identifier: Apache-2.0
"""The simulator: counts and bytes of collectives by formula for many ranks, times by hand, and its printed results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from recording import float_tensor, record
from torch.nn.parallel import DistributedDataParallel

import thunder
from thunder.core import prims
from thunder.core.errors import ThunderError
from thunder.core.groups import Group
from thunder.examine import Curve, Hardware, Link

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="a torch without torch.distributed")

WIDTH, LAYERS = 16, 3
PAIR = Group("1", (0, 1), "pair")
# A line takes a second for each kilobyte, and a collective 10 seconds and another for each kilobyte.
SLOW = Hardware("slow", 1e3, {"float32": 1e9}, 0.0, Link(0.0, 1e3), Link(0.0, 1e3), 8, reached=(1.0, 1.0))
TIMED = SLOW.with_curves([Curve("all_reduce", 2, ((0, 10.0), (10**6, 1010.0)))])


def data_parallel() -> tuple[Any, ...]:
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.0001)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = ddp(x).square().mean()
        loss.backward()
        return loss.detach()

    return step, torch.randn(4, WIDTH)


def sharded() -> tuple[Any, ...]:
    """Gather each weight, over the second dimension of a mesh, and reduce the result over the first."""
    count = dist.get_world_size()
    mesh = dist.init_device_mesh("cpu", (count // 4, 4), mesh_dim_names=("replicate", "shard"))

    def forward(x: torch.Tensor, *shards: torch.Tensor) -> torch.Tensor:
        for shard in shards:
            x = torch.relu(x @ functional.all_gather_tensor(shard, 0, mesh.get_group("shard")))
        return functional.all_reduce(x, "sum", mesh.get_group("replicate"))

    return forward, torch.randn(4, WIDTH), *[torch.randn(WIDTH // 4, WIDTH) for _ in range(LAYERS)]


@pytest.mark.parametrize("count", [8, 256, 1024])
def test_gradients_of_many_ranks_are_reduced_once(count: int) -> None:
    found = thunder.examine.scaling(data_parallel, [count]).reports[count]
    assert {line.kind for line in found.lines} == {"all_reduce"}
    assert {line.group.ranks for line in found.lines} == {tuple(range(count))}
    assert sum(line.bytes for line in found.lines) == LAYERS * (WIDTH * WIDTH + WIDTH) * 4
    assert len(found.lines) == LAYERS  # a bias and a weight fill a bucket of a hundred bytes
    assert found.ranks == count


@pytest.mark.parametrize("count", [8, 256, 1024])
def test_dimensions_of_a_mesh_are_groups(count: int) -> None:
    found = thunder.examine.scaling(sharded, [count]).reports[count]
    gathers = [line for line in found.lines if line.kind == "all_gather"]
    assert [(line.bytes, line.group.ranks) for line in gathers] == [(WIDTH * WIDTH * 4, (0, 1, 2, 3))] * LAYERS
    (reduction,) = [line for line in found.lines if line.kind == "all_reduce"]
    assert (reduction.bytes, reduction.group.ranks) == (4 * WIDTH * 4, tuple(range(0, count, 4)))


def simulated(program: Any, *shapes: tuple[int, ...], **options: Any) -> Any:
    inputs = [float_tensor(f"x{i}", *shape) for i, shape in enumerate(shapes)]
    return thunder.examine.distributed(record(program, inputs, unpack=True), executors=["torch"], **options)


def test_a_collective_is_hidden_by_the_lines_before_its_wait() -> None:
    """It takes 10 s and 4 s for its 4000 bytes, and the line between 8 s, so that 6 s are exposed."""

    def program(x: Any, y: Any) -> Any:
        flying = prims.all_reduce(x, "sum", PAIR)
        z = prims.sin(y)
        return prims.wait(flying), z

    found = simulated(program, (1000,), (1000,), hardware=TIMED)
    (line,) = found.lines
    assert (line.begin, line.end, line.bytes, line.hidden_by) == (0.0, 14.0, 4000, ["sin"])
    assert line.exposed == found.exposed == 6.0
    assert found.seconds == 14.0
    assert (found.compute, found.communication) == (8.0, 14.0)


def test_a_group_runs_one_collective_after_another_and_groups_run_together() -> None:
    other = Group("2", (0, 1), "other")

    def program(x: Any) -> Any:
        flying = [prims.all_reduce(x, "sum", group) for group in (PAIR, PAIR, other)]
        return tuple([prims.wait(each) for each in flying])

    found = simulated(program, (1000,), hardware=TIMED)
    assert [(line.begin, line.end) for line in found.lines] == [(0.0, 14.0), (14.0, 28.0), (0.0, 14.0)]
    assert found.exposed == found.seconds == 28.0


def test_times_beyond_what_was_measured_are_a_range() -> None:
    def program(x: Any) -> Any:
        return prims.wait(prims.all_reduce(x, "sum", Group("1", range(4))))

    found = simulated(program, (1000,), hardware=TIMED)
    (line,) = found.lines
    assert found.is_extrapolated
    assert found.low < found.seconds < found.high
    assert line.seconds == 10.0 * 3 + 4.0 * 1.5  # three times the latency, and 2 * 3/4 instead of 2 * 1/2 of the bytes
    assert "extrapolated" in str(found)


def test_lines_of_a_profile_have_their_measured_times() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) @ x

    x = torch.randn(64, 64)
    profile = thunder.examine.profile(program, x, rounds=1)
    found = thunder.examine.distributed(program, x, hardware="cpu", profile=profile)
    assert found.compute == found.seconds == profile.seconds
    assert found.is_profiled
    assert not found.is_extrapolated
    assert profile.communication is None


def test_merged_collectives_are_shown_with_the_bytes_that_they_copy() -> None:
    def step(*tensors: torch.Tensor) -> torch.Tensor:
        alone, *results = [functional.all_reduce(x * 2, "sum", dist.group.WORLD) for x in tensors]
        return sum(results) * alone.sum()

    tensors = torch.ones(3, dtype=torch.float64), *[torch.ones(n) for n in (300, 1, 300)]
    with thunder.examine.fake_ranks(2):
        found = thunder.examine.distributed(thunder.jit(step, bucketing="exact"), *tensors, hardware=TIMED)
    assert [(line.bytes, line.merged, line.copied) for line in found.lines] == [(24, 1, 0), (2404, 3, 2404)]
    assert "merged" in found.table().splitlines()[0] and "3, copies 2404 bytes" in found.table()
    assert found.lines[1].to_dict()["copied"] == 2404


def test_the_streams_are_written_for_perfetto(tmp_path: Path) -> None:
    def program(x: Any, y: Any) -> Any:
        flying = prims.all_reduce(x, "sum", PAIR)
        return prims.wait(flying), prims.sin(y)

    found = simulated(program, (1000,), (1000,), hardware=TIMED)
    found.chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert {(names[e["tid"]], e["name"]) for e in events if e["ph"] == "X"} == {
        ("compute", "sin"), ("group pair", "all_reduce"),
    }  # fmt: skip
    assert json.loads(json.dumps(found.to_dict()))["lines"][0]["bytes"] == 4000


def test_the_report_of_examine_lists_collectives() -> None:
    with thunder.examine.fake_ranks(8):
        fn, *args = data_parallel()
        found = thunder.examine(fn, *args)
        assert [line.kind for line in found.communication.lines] == ["all_reduce"] * LAYERS
        assert "hidden by" in str(found)
        assert "test_distributed.py:" in str(found)
    assert thunder.examine(torch.sin, torch.ones(2)).communication is None


def test_a_table_compares_numbers_of_ranks() -> None:
    found = thunder.examine.scaling(data_parallel, [2, 16], hardware="h200")
    assert [row.split()[0] for row in str(found).splitlines()] == ["ranks", "2", "16"]
    assert found.reports[2].peak == found.reports[16].peak
    assert found.reports[2].communication < found.reports[16].communication


def test_fake_ranks_need_a_process_without_groups() -> None:
    with thunder.examine.fake_ranks(4, rank=3):
        assert (dist.get_world_size(), dist.get_rank()) == (4, 3)
        with pytest.raises(ThunderError, match="already belongs to a process group"), thunder.examine.fake_ranks(2):
            pass
    assert not dist.is_initialized()
