# SPDX-License-Identifier: Apache-2.0
"""`check_ranks`: ranks whose collectives differ raise an error instead of hanging, and name the lines."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch.distributed as dist
from processes import reports

import thunder

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="a torch without gloo")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return reports("ranks_differ.py", 2, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "order",
            ("rank 0: all_reduce(float32[3], 'sum')  at ", "rank 1: all_gather(float32[3])  at ", "at number 1:"),
        ),
        ("count", ("rank 0: all_reduce(float32[3], 'max')  at ", "rank 1: nothing", "at number 2:")),
        ("gradient", ("rank 0: all_reduce(float32[3], 'sum')  at ", "rank 1: nothing", "at number 2:")),
    ],
)
def test_the_first_difference_is_an_error_on_each_rank(found: Any, name: str, lines: tuple[str, ...]) -> None:
    for report in found:
        assert report[name].startswith(
            f"RankMismatchError: the collectives of thunder.jit({name}) differ between ranks"
        )
        assert all(line in report[name] for line in lines)
        assert report[name].count("ranks_differ.py:") == sum(" at " in line and "rank" in line for line in lines)


def test_a_rank_that_runs_eagerly_is_named(found: list[dict[str, Any]]) -> None:
    message = (
        "thunder.jit(eager_on_one) is compiled on rank 0, and runs eagerly on rank 1: the program calls torch.manual_"
    )
    assert message in found[0]["eager_on_one"]
    assert found[1]["eager_on_one"] == ""


def test_a_rank_that_compiles_again_waits_for_nobody(found: list[dict[str, Any]]) -> None:
    """Parts of different lengths, and what one rank sends to another, are no difference either."""
    assert [report["misses"] for report in found] == [1, 3]  # the third changed number is an input


def test_decisions_that_differ_later_are_named_on_both_ranks(found: list[dict[str, Any]]) -> None:
    """Rank 0 waits in a collective that rank 1 does not start, until the timeout of the group."""
    for report in found:
        assert report["decided_alike"] == ""
        assert report["decided"].startswith(
            "RankMismatchError: thunder.jit(decided) starts different collectives on two ranks"
        )
        for line in (
            "rank 0: all_reduce(float32[3], 'sum'), 1 of 1 in its program  at ",
            "rank 1: all_reduce(float32[3], 'sum'), 1 of 2 in its program  at ",
            "where u0 is True, at ",
            "where u0 is False, at ",
        ):
            assert line in report["decided"]


def test_a_program_with_more_collectives_of_the_same_kind_is_an_error(found: list[dict[str, Any]]) -> None:
    for report in found:
        first, second = report["other_number"]
        assert first == ""
        assert "rank 0: all_reduce(float32[3], 'sum'), 1 of 1 in its program" in second
        assert "rank 1: all_reduce(float32[3], 'sum'), 1 of 2 in its program" in second


def test_a_rank_may_run_the_same_collectives_eagerly(found: list[dict[str, Any]]) -> None:
    """Their comparison ends, and the numbers are right."""
    for report in found:
        assert report["eager_later"] == [[4.0, 8.0, 12.0]] * 3


def test_a_condition_may_be_reduced(found: list[dict[str, Any]]) -> None:
    assert [report["reduced_condition"] for report in found] == [[[0.0] * 3] * 2 + [[-1.0, -2.0, -3.0]]] * 2


def test_a_rank_that_waits_alone_gets_an_error_with_its_line(found: list[dict[str, Any]]) -> None:
    assert re.search("Timed out|timeout", found[0]["alone"])
    assert "ranks_differ.py:" in found[0]["alone"]


def test_the_option_is_checked() -> None:
    with pytest.raises(ValueError, match="check_ranks is True, False or None"):
        thunder.jit(lambda x: x, check_ranks="always")
