# SPDX-License-Identifier: Apache-2.0
"""`DistributedDataParallel` in jitted training steps on two processes: the bits of eager mode, with the collectives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import reports

import thunder

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="a torch without gloo")

BUFFERS = ("broadcast", "broadcast")  # float statistics, and counts of batches
COMPILED: dict[str, tuple[str, ...]] = {
    "plain": (*BUFFERS, "all_reduce"),
    "adamw": (*BUFFERS, "all_reduce"),
    "jitted_inside": (*BUFFERS, "all_reduce"),
    "small_buckets": (*BUFFERS, *["all_reduce"] * 4),
    "without_buffers": ("all_reduce",),
    "bucket_views": (*BUFFERS, "all_reduce"),
    "finds_unused": (*BUFFERS, "all_reduce", "all_reduce"),  # with the parameters that each rank uses
    "frozen": (*BUFFERS, "all_reduce"),
    "tied": (*BUFFERS, "all_reduce"),
    "accumulating": (*BUFFERS, "all_reduce"),  # no buffers are broadcast after a forward under no_sync
    "twice_without_zeroing": (*BUFFERS, "all_reduce") * 2,
    "sharded_optimizer": (*BUFFERS, "all_reduce", *["broadcast"] * 9),  # of each parameter, by its owner
    "order_by_rank": ("all_reduce",),
}
PARTLY_EAGER = {
    "unused": "2 parameters of a DistributedDataParallel module get no gradient",
    "hooked": "hooks",
    "unfrozen": "parameters (un)frozen afterwards",
    "replaced": "parameters were replaced or added afterwards",
    "outside_finds_unused": "find_unused_parameters=True, and leaves backward() to its caller",
}
# With `backward()` outside of the program: forwards whose gradients are reduced, and others, with and without buffers
# that are broadcast, and without gradients.
PROGRAMS = {
    "outside": 4, "outside_of_module": 4, "outside_no_sync_inside": 4, "outside_two_calls": 4,
    "outside_small_buckets": 4, "outside_bucket_views": 4, "outside_frozen_and_tied": 4, "outside_hooked": 4,
}  # fmt: skip
OTHERS = ("used_on_one_rank", "outside_of_inner", "outside_eager_beside")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The reports of two ranks that have run all cases."""
    return reports("ranks_ddp.py", 2, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", [*COMPILED, *PARTLY_EAGER, *PROGRAMS, *OTHERS])
def test_training_is_equal_to_the_bit(found: list[dict[str, Any]], name: str) -> None:
    """Losses, parameters and buffers after each step, on each rank."""
    for report in found:
        assert all(report[name]["equal"]), report[name]


@pytest.mark.parametrize("name", COMPILED)
def test_the_step_is_one_program_with_its_collectives(found: list[dict[str, Any]], name: str) -> None:
    for report in found:
        assert report[name]["reason"] is None
        assert report[name]["misses"] == (2 if name == "finds_unused" else 1)  # that compiles a step without state
        assert tuple([call for call in report[name]["collectives"] if call != "wait"]) == COMPILED[name]


@pytest.mark.parametrize("name", ["beside_from_the_start", "beside_later", "beside_without_thunder"])
def test_a_compiled_rank_beside_an_eager_one(found: list[dict[str, Any]], name: str) -> None:
    """Compiled steps and DDP's own run the same collectives, so a rank may leave the program in any step."""
    assert all(found[0][name]["equal"]) and all(found[1][name]["equal"])
    assert found[0][name]["hits"] == 5 and found[0][name]["reason"] is None
    assert found[1][name]["hits"] == {"beside_from_the_start": 0, "beside_later": 1}.get(name)


def test_the_first_two_steps_run_eagerly_and_explain_says_so(found: list[dict[str, Any]]) -> None:
    for report in found:
        assert "DistributedDataParallel forms its buckets in its first two steps" in report["plain"]["explained"]
        assert "(2 times)" in report["plain"]["explained"]


def test_a_group_of_one_rank_compiles_at_once() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
        jitted = thunder.jit(lambda x: ddp(x).sum().backward())
        jitted(torch.ones(2, 3))
        assert thunder.compile_stats(jitted).cache_misses == 1
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("name", PROGRAMS)
def test_torch_reduces_gradients_if_the_caller_calls_backward(found: list[dict[str, Any]], name: str) -> None:
    for report in found:
        assert (report[name]["reason"], report[name]["misses"]) == (None, PROGRAMS[name])


def test_gradients_are_reduced_while_backward_goes_on() -> None:
    """The first bucket is on its way before the last matrix multiplication."""
    import torch.testing._internal.distributed.fake_pg  # registers the backend "fake"

    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=2)
    try:
        model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(3)])
        ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.0001)

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = ddp(x).square().mean()
            loss.backward()
            return loss.detach()

        jitted = thunder.jit(step)
        jitted(torch.randn(4, 8))
        names = [op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols]
        last = max(i for i, name in enumerate(names) if name in ("matmul", "mm", "linear", "addmm"))
        assert names.index("all_reduce") < last < names.index("wait")
    finally:
        dist.destroy_process_group()


def test_four_ranks_reduce_in_the_buckets_of_eager_mode(tmp_path: Path) -> None:
    """Which element of a bucket a gradient is decides in which order gloo adds the values of four ranks."""
    names = ("plain", "small_buckets", "accumulating")
    for report in reports("ranks_ddp.py", 4, tmp_path, *names):
        assert {name: all(report[name]["equal"]) for name in names} == dict.fromkeys(names, True)
        assert all(report[name]["reason"] is None for name in names)


@pytest.mark.parametrize("name", PARTLY_EAGER)
def test_what_is_not_supported_runs_eagerly_and_says_so(found: list[dict[str, Any]], name: str) -> None:
    for report in found:
        assert PARTLY_EAGER[name] in report[name]["reason"]


def test_a_rank_that_runs_ddp_eagerly_communicates_with_a_compiled_one(found: list[dict[str, Any]]) -> None:
    """With `find_unused_parameters`, also elements that are not contiguous meet their own on the other rank."""
    assert found[0]["used_on_one_rank"]["reason"] is None
    assert "get no gradient" in found[1]["used_on_one_rank"]["reason"]
