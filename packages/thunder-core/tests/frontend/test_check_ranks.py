# SPDX-License-Identifier: Apache-2.0
"""`check_ranks`: ranks whose collectives differ raise an error instead of hanging, and name the lines."""

from __future__ import annotations

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


def test_the_option_is_checked() -> None:
    with pytest.raises(ValueError, match="check_ranks is True, False or None"):
        thunder.jit(lambda x: x, check_ranks="always")
