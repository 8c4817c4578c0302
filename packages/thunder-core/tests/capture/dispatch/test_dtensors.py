# SPDX-License-Identifier: Apache-2.0
"""Tensor and sequence parallelism on two and four processes: as on one device, with the expected collectives."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch.distributed as dist
from processes import reports

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="a torch without gloo")

# The collectives of forward and backward together.
EXPECTED = {
    "tensor": {"all_reduce": 4},  # eager mode has 7
    "sequence": {"all_gather": 4, "reduce_scatter": 4},
    "model": {"all_reduce": 5, "all_gather": 2},
}


@pytest.fixture(scope="module", params=[2, 4])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The reports of the ranks that have run all cases."""
    return reports("ranks_tp.py", request.param, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", EXPECTED)
def test_models(found: list[dict[str, Any]], name: str) -> None:
    for rank in found:
        report = rank[name]
        assert report["eager_calls"] == [] and report["hits"] == 1
        assert report["single"] < 1e-5 and report["eager"] < 1e-5
        counts = Counter(report["collectives"])
        assert {k: n for k, n in counts.items() if k != "wait"} == EXPECTED[name]
        for parameter, (ours, eager) in report["gradients"].items():
            assert ours == eager, parameter


def test_random_programs(found: list[dict[str, Any]]) -> None:
    for rank in found:
        wrong = {seed: report for seed, report in rank["random"].items() if report["difference"] > 1e-9}
        assert not wrong
        assert sum(not report["eager_calls"] for report in rank["random"].values()) >= 20


def test_losses_of_sharded_classes(found: list[dict[str, Any]]) -> None:
    """As eager `loss_parallel`, with two all-reduces, and another one for a mean of sharded rows."""
    for rank in found:
        for name, report in rank["losses"].items():
            assert report["eager_calls"] == [], name
            assert report["difference"] < (1e-2 if name == "autocast" else 1e-6), name
            # Under autocast, eager mode rounds the gradients twice. Four ranks add in another order, in fewer steps.
            assert report["equal"] or name == "autocast" or len(found) > 2, name
            assert report["dtype"] == "torch.float32", name
            counts = {k: n for k, n in Counter(report["collectives"]).items() if k != "wait"}
            assert counts == {"all_reduce": 3 if name == "mean of sharded rows" else 2}, name
