# SPDX-License-Identifier: Apache-2.0
"""Two processes: the bits of eager mode with merged collectives, and errors where ranks do not decide alike."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import reports

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="a torch without gloo")

# Earlier versions of torch form a first bucket of 1 MiB also with a smaller `bucket_cap_mb`.
BUCKETS = 2 if hasattr(torch.nn.parallel.distributed, "_BucketCapacityConfig") else 1
CASES = {
    "hand_written": (["all_reduce"] * 8, ["all_reduce"]),
    "data_parallel": (["all_reduce"] * BUCKETS, ["all_reduce"] * BUCKETS),  # its buckets stay as they are
    "sharded": (["all_gather"] * 3 + ["reduce_scatter"] * 3, ["all_gather"] + ["reduce_scatter"]),
    "scattered": (["reduce_scatter"] * 3 + ["all_reduce"] * 2, ["reduce_scatter", "all_reduce"]),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return reports("ranks_buckets.py", 2, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", CASES)
def test_results_are_equal_to_the_bit(found: list[dict[str, Any]], name: str) -> None:
    for report in found:
        assert report[name]["reason"] is None
        assert report[name]["equal"] == [True, True]
        assert (report[name]["before"], report[name]["after"]) == CASES[name]


def test_ranks_with_other_budgets_of_memory_merge_alike(found: list[dict[str, Any]]) -> None:
    """Rank 1 alone would merge all eight, and takes the limit of rank 0, which compiles first."""
    for report in found:
        assert report["budgets"]["equal"]
        assert report["budgets"]["after"] == ["all_reduce"] * 4
        assert "have at most 2048 bytes" in report["budgets"]["explained"]


def test_ranks_that_merge_otherwise_are_an_error(found: list[dict[str, Any]]) -> None:
    """Rank 0 merges two collectives, and rank 1 cannot."""
    expected = "RankMismatchError: thunder.jit(needs_it_on_one) merges collectives in Group("
    errors = [report["needs_it_on_one"] for report in found]
    assert all(errors)  # the rank that compiles first waits for the other one, until the timeout of the group
    assert any(error.startswith(expected) for error in errors)


def test_a_rank_that_runs_eagerly_after_another_one_merged_is_an_error(found: list[dict[str, Any]]) -> None:
    assert re.search(
        "Timed out|timeout", found[0]["eager_second"]
    )  # it waits for rank 1, until the timeout of the group
    assert found[1]["eager_second"].startswith("RankMismatchError: thunder.jit(eager_second) runs eagerly in this call")
    assert "manual_seed" in found[1]["eager_second"] and "and not on rank 0 within 0.9 s" in found[1]["eager_second"]


def test_nothing_is_merged_after_a_rank_ran_eagerly(found: list[dict[str, Any]]) -> None:
    for report in found:
        assert report["eager_first"] == ""
        assert report["sum"] == [9.0] * 3


@pytest.fixture(scope="module")
def with_eager_calls(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return reports("ranks_eager.py", 2, tmp_path_factory.mktemp("ranks"))


def test_all_ranks_may_run_a_sharded_call_eagerly(with_eager_calls: list[dict[str, Any]]) -> None:
    for report in with_eager_calls:
        assert report["together"]["found"] is True, report


def test_a_rank_that_compiles_follows_one_that_cannot(with_eager_calls: list[dict[str, Any]]) -> None:
    reasons = [report["follows"]["reason"] for report in with_eager_calls]
    assert [report["follows"]["found"] for report in with_eager_calls] == [True, True], with_eager_calls
    assert "manual_seed" in reasons[0] and reasons[1].startswith("rank 0 cannot compile it")


@pytest.mark.parametrize(("name", "eager"), [("alone", 1), ("alone with DTensors", 0)])
def test_a_rank_that_falls_back_alone_is_an_error(
    with_eager_calls: list[dict[str, Any]], name: str, eager: int
) -> None:
    """The other rank waits in a collective, until the timeout of the group."""
    assert re.search("(?i)timed out|timeout|closed", with_eager_calls[1 - eager][name]["found"])
    error = with_eager_calls[eager][name]["found"]
    assert error.startswith("RankMismatchError: thunder.jit(alone")
    assert "manual_seed" in error and f"and not on rank {1 - eager} within 0.9 s" in error
