# SPDX-License-Identifier: Apache-2.0
"""Measured collectives of a process group with two ranks: as curves of a machine, and in a profile."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist
from processes import reports

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="a torch without gloo")

SIZES = [1 << 10, 1 << 16]
LINES = [["all_reduce", 1 << 14], ["all_gather", 1 << 15]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return reports("ranks_measured.py", 2, tmp_path_factory.mktemp("ranks"))


def test_each_kind_has_a_curve(found: list[dict[str, Any]]) -> None:
    kinds = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]
    for report in found:
        assert report["curves"] == [[kind, 2, SIZES] for kind in kinds]
        assert report["positive"]


def test_a_simulation_uses_the_curves(found: list[dict[str, Any]]) -> None:
    for report in found:
        assert report["simulated"] == [[*line, True] for line in LINES]


def test_a_profile_measures_collectives(found: list[dict[str, Any]]) -> None:
    for report in found:
        assert report["profiled"] == [[*line, True] for line in LINES]
        assert report["is_profiled"]
        assert "ranks_measured.py:" in report["text"]
