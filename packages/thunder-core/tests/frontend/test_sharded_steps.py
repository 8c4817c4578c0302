# SPDX-License-Identifier: Apache-2.0
"""Whole steps with `fully_shard` on two and four processes: one program, with the bits of eager mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from processes import reports

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="a torch without gloo")

COMPILED = (
    "adamw_100_steps", "adamw_foreach", "adamw_fused", "adam_kept", "kept_in_part", "zeros", "bfloat16",
    "frozen_and_tied", "no_sync", "no_sync_bfloat16", "no_sync_all_bfloat16", "no_sync_outside",
    "no_sync_by_the_program", "forward_after_update", "second_dimension", "units_checkpointed", "resharding_by_hand",
    "unsharding_by_hand", "evaluated_between", "grouped", "hooks",
)  # fmt: skip
PARTLY_EAGER = {
    "left_whole": "leaves its parameters whole", "unused": "2 parameters of a sharded module",
    "no_sync_by_torch": "with gradients that are not reduced yet", "two_backwards": "calls backward() twice",
}  # fmt: skip

RANDOM = tuple([f"random{seed}" for seed in range(5)])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The reports of two ranks that have run all cases."""
    return reports("ranks_sharded_steps.py", 2, tmp_path_factory.mktemp("ranks"), "all", *RANDOM)


@pytest.mark.parametrize("name", [*COMPILED, *PARTLY_EAGER])
def test_steps_are_equal_to_the_bit(found: list[dict[str, Any]], name: str) -> None:
    """Losses, norms, gradients, parameters and the optimizer's state after each step, on each rank."""
    for report in found:
        assert all(report[name]["equal"]), report[name]


@pytest.mark.parametrize("name", COMPILED)
def test_the_step_is_one_program(found: list[dict[str, Any]], name: str) -> None:
    for report in found:
        assert report[name]["reason"] is None
        assert report[name]["misses"] <= 3  # for the first step, for those with state, and for each kind of step


def test_collectives(found: list[dict[str, Any]]) -> None:
    """The program gathers and reduces as torch does, and needs one reduction for the norm of all gradients."""
    for report in found:
        run = report["adamw_100_steps"]["collectives"]
        assert run.count("all_gather") + run.count("gather_shards") == 5  # two blocks are gathered again
        assert run.count("reduce_scatter") == 3
        assert run.count("all_reduce") == 1
        run = report["kept_in_part"]["collectives"]
        assert run.count("all_gather") + run.count("gather_shards") == 8  # one block is gathered again in each part
        assert report["no_sync"]["collectives"].count("reduce_scatter") == 3  # of the last of three parts


@pytest.mark.parametrize("name", PARTLY_EAGER)
def test_what_is_not_supported_runs_eagerly_and_says_so(found: list[dict[str, Any]], name: str) -> None:
    for report in found:
        assert PARTLY_EAGER[name] in report[name]["reason"], report[name]


def test_distributed_checkpoints(found: list[dict[str, Any]]) -> None:
    """Eager steps continue from a checkpoint of jitted ones, and the other way round."""
    for report in found:
        assert report["checkpoints"] == {"eager_to_jitted": True, "jitted_to_eager": True}


def test_four_ranks(tmp_path: Path) -> None:
    """The order in which gloo adds the values of four ranks is eager mode's, also with replicas of shards."""
    names = ("adamw_foreach", "no_sync_bfloat16", "hybrid")
    for report in reports("ranks_sharded_steps.py", 4, tmp_path, *names):
        assert {name: all(report[name]["equal"]) for name in names} == dict.fromkeys(names, True)
        assert all(report[name]["reason"] is None for name in names)


@pytest.mark.parametrize("name", RANDOM)
def test_random_steps(found: list[dict[str, Any]], name: str) -> None:
    """Combinations of frozen and tied parameters, groups, checkpoints, hooks, precisions, accumulation and clipping."""
    for report in found:
        assert report[name]["reason"] is None
        assert all(report[name]["equal"])
