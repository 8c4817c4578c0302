# SPDX-License-Identifier: Apache-2.0
"""Modules sharded by `fully_shard` on two and four processes: the bits of eager mode, in one program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from processes import reports

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="a torch without gloo")

COMPILED = (
    "resharded", "kept", "kept_in_part", "bfloat16", "bfloat16_reduced", "float16", "float64", "frozen", "tied",
    "checkpointed", "called_twice", "called_without_gradients_first", "units_checkpointed", "all_checkpointed",
    "second_dimension", "factor", "accumulating", "accumulating_later", "accumulating_bfloat16",
    "accumulating_all_bfloat16", "flag_set_before_backward", "accumulating_whole", "unsharded_by_hand", "grouped",
    "grouped_bfloat16", "hooks_before", "hooks_after", "prefetching", "settings_change", "forward_method",
)  # fmt: skip
# Without gradients, and with gradients that are reduced, that are not, and that are reduced with those before.
PROGRAMS = {
    "accumulating": 3, "accumulating_later": 4, "accumulating_bfloat16": 3, "accumulating_all_bfloat16": 3,
    "accumulating_whole": 3, "settings_change": 3,
}  # fmt: skip
PARTLY_EAGER = {
    "unused": "2 parameters of a sharded module", "offloaded": "offload policy",
    "grouped_in_part": "some, but not all modules that one call of fully_shard shards together",
}  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The reports of two ranks that have run all cases."""
    return reports("ranks_sharded.py", 2, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", [*COMPILED, *PARTLY_EAGER])
def test_training_is_equal_to_the_bit(found: list[dict[str, Any]], name: str) -> None:
    """Losses, gradients and parameters after each step, on each rank, and a result without gradients."""
    for report in found:
        assert all(report[name]["equal"]), report[name]


@pytest.mark.parametrize("name", COMPILED)
def test_the_module_is_one_program(found: list[dict[str, Any]], name: str) -> None:
    for report in found:
        assert report[name]["reason"] is None
        assert report[name]["misses"] == PROGRAMS.get(name, 2)  # with and without gradients


def test_gradients_that_wait_since_the_forward_are_not_forgotten(found: list[dict[str, Any]]) -> None:
    for report in found:
        assert report["two_forwards_first"].startswith("gradients that wait for their reduction")


def test_a_rank_that_compiles_alone(found: list[dict[str, Any]]) -> None:
    """Its shapes change while those of the others do not, and nobody waits for its compilation but in a collective."""
    for report in found:
        assert all(report["retraces_alone"]["equal"])
        assert report["retraces_alone"]["reason"] is None
    assert found[1]["retraces_alone"]["misses"] > found[0]["retraces_alone"]["misses"] == 2


def test_collectives(found: list[dict[str, Any]]) -> None:
    """One gather for each unit and forward, one reduction for each unit, and gathers again where torch reshards."""
    for report in found:
        assert report["resharded"]["backward"].count("gather_shards") == 2  # the root keeps its parameters
        assert report["resharded"]["backward"].count("reduce_scatter") == 3
        assert report["grouped"]["backward"].count("reduce_scatter") == 2  # of the group and of the root
        assert report["kept_in_part"]["backward"].count("gather_shards") == 1  # of the first block
        assert report["kept"]["backward"] == ["reduce_scatter"] * 3
        assert report["called_twice"]["backward"].count("reduce_scatter") == 3
        for name in ("units_checkpointed", "all_checkpointed"):
            assert report[name]["backward"].count("gather_shards") == 2, name


@pytest.mark.parametrize("name", PARTLY_EAGER)
def test_what_is_not_supported_runs_eagerly_and_says_so(found: list[dict[str, Any]], name: str) -> None:
    for report in found:
        assert PARTLY_EAGER[name] in report[name]["reason"], report[name]


def test_four_ranks(tmp_path: Path) -> None:
    """The order in which gloo adds the values of four ranks is eager mode's, also with replicas of shards."""
    names = ("resharded", "accumulating_bfloat16", "hybrid", "flag_set_before_backward", "halves")
    for report in reports("ranks_sharded.py", 4, tmp_path, *names):
        assert {name: all(report[name]["equal"]) for name in names} == dict.fromkeys(names, True)
        assert all(report[name]["reason"] is None for name in names)
        assert report["halves"]["backward"].count("gather_shards") == 2
        assert "all_gather" not in report["halves"]["backward"]  # what a part of the ranks has is kept


RANDOM = tuple([f"random{seed}" for seed in range(6)])


WHOLE_STEPS = ("step_tensor", "step_tensor_foreach", "step_2d", "step_2d_foreach", "step_2d_bfloat16")
ROUNDED = ("step_sequence", "step_2d_sequence")  # in float64; eager mode sums gradients in another order
OVER_TENSOR_PARALLELISM = {
    2: (
        "mlp_kept", "mlp_bfloat16", "mlp_frozen", "mlp_accumulating", "tensor", "sequence", *RANDOM, *WHOLE_STEPS,
        *ROUNDED,
    ),
    4: ("mlp", "checkpoints", *RANDOM[:2], "step_2d", "step_2d_sequence"),
}  # fmt: skip


@pytest.fixture(scope="module", params=[2, 4])
def over_tensor_parallelism(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """The reports of two and of four ranks that have run all cases of two mesh dimensions."""
    names = OVER_TENSOR_PARALLELISM[request.param]
    return reports("ranks_2d.py", request.param, tmp_path_factory.mktemp("ranks"), *names)


def test_over_tensor_parallelism(over_tensor_parallelism: list[dict[str, Any]]) -> None:
    """One program with collectives of both mesh dimensions. Gradients whose summands torch adds first may round."""
    for report in over_tensor_parallelism:
        assert max(report.get("checkpoints", {"": 0.0}).values()) < 1e-12
        for name, found in report.items():
            if name == "checkpoints" or name.startswith("step"):
                continue
            assert (found["reason"], found["misses"]) == (None, 1 + (name == "mlp_accumulating")), name
            assert found["equal"] if name.startswith("mlp") else found["difference"] < 1e-12, name
            forward, backward = found["collectives"]
            if name in (*RANDOM, "mlp_accumulating"):  # the last gradients of the latter are not reduced
                continue
            assert any(x.startswith("tp ") for x in forward) and backward.count("reduce_scatter") >= 3
            if name == "tensor":  # one sum of each kind of layer in forward, and one in backward
                assert (forward + backward).count("tp all_reduce") == 5


def test_whole_steps_over_tensor_parallelism(over_tensor_parallelism: list[dict[str, Any]]) -> None:
    """With tensor parallelism alone, and under `fully_shard`: optimizers write to the local tensors."""
    for report in over_tensor_parallelism:
        steps = {name: found for name, found in report.items() if name.startswith("step")}
        assert len(steps) >= 2
        for name, found in steps.items():
            assert (found["reason"], found["misses"]) == (None, 2), name  # the first step finds no state
            assert found["equal"] if name in WHOLE_STEPS else found["difference"] < 1e-12, (name, found)
