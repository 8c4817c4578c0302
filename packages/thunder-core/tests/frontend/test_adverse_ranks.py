# SPDX-License-Identifier: Apache-2.0
"""Ranks that differ, in each way that users produce: right numbers or an error that says why, never a hang."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import reports

import thunder
from thunder.frontend.check_ranks import text_of_collective
from thunder.passes.overlap import is_start

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="a torch without gloo")

RIGHT = (
    "shapes", "shapes, DDP", "one compiles again", "branches", "one falls back, DDP", "all fall back once, merged",
    "one cannot be compiled, merged",
)  # fmt: skip
MISMATCH = "^RankMismatchError: thunder.jit"
TIMEOUT = "(?i)timed out|timeout|closed|has not called it within"
# What rank 0 and rank 1 raise. At least one of them says what differs.
ERRORS = {
    "order": (f"{MISMATCH}.* starts different collectives", f"{MISMATCH}.* starts different collectives"),
    "order at first": (f"{MISMATCH}.*in the same order", f"{MISMATCH}.*in the same order"),
    "one falls back, merged": (TIMEOUT, f"{MISMATCH}.*manual_seed.*and not on rank 0 within 0.9 s"),
}
OPTIONS = {
    "bucketing": ("exact", "never"),
    "remat": ("auto", "none"),
    "kept_parameters": ("kept_parameters=0, overlap_memory=None", "kept_parameters='auto', overlap_memory=0"),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return reports("ranks_adverse.py", 2, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", RIGHT)
def test_numbers_are_those_of_eager_mode(found: list[dict[str, Any]], name: str) -> None:
    assert [report[name] for report in found] == ["right", "right"]


@pytest.mark.parametrize("name", ERRORS)
def test_errors_say_what_differs(found: list[dict[str, Any]], name: str) -> None:
    for report, expected in zip(found, ERRORS[name]):
        assert re.search(expected, report[name]), report[name]


@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_order_collectives_are_equal(found: list[dict[str, Any]], name: str) -> None:
    """The rank that compiles second raises the error. The other one waits for it, until the timeout."""
    errors = [report[name] for report in found]
    own, other = OPTIONS[name]
    assert any(f"has {name}=" in e and own in e and other in e and "on rank" in e for e in errors), errors
    assert all(re.search(MISMATCH, e) or re.search(TIMEOUT, e) for e in errors), errors


def test_the_end_of_a_rank_is_an_error_with_the_line(found: list[dict[str, Any]]) -> None:
    assert re.search("(?i)closed|reset|timed out|timeout", found[0]["other rank ends"])
    assert "ranks_adverse.py:" in found[0]["other rank ends"]


def collectives_of_a_step(rows: int, replicas: int) -> list[str]:
    """Return the collectives of a step with `fully_shard` and uneven shards, in the order in which they start."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with thunder.examine.fake_ranks(4, rank=1):
        mesh = init_device_mesh("cpu", (replicas, 4 // replicas), mesh_dim_names=("replicas", "shards"))
        layers = [torch.nn.Sequential(torch.nn.RMSNorm(6), torch.nn.Linear(6, 6), torch.nn.GELU()) for _ in range(2)]
        model = torch.nn.Sequential(*layers)
        for module in (*layers, model):
            fully_shard(module, mesh=mesh if replicas > 1 else mesh["shards"])
        optimizer = torch.optim.AdamW(model.parameters())

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = model(x).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss.detach()

        jitted = thunder.jit(step)
        jitted(torch.randn(rows, 6))
        return [text_of_collective(op) for op in thunder.last_traces(jitted)[-1].bound_symbols if is_start(op)]


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_order_of_collectives_does_not_depend_on_shapes(replicas: int) -> None:
    """A rank that compiles again alone, for another shape, pairs with the programs of the others.

    The process groups are destroyed and created again in between, and torch gives the parameters the earlier meshes.
    """
    expected = collectives_of_a_step(1, replicas)
    assert sum(text.startswith("reduce_scatter") for text in expected) == 2
    assert collectives_of_a_step(20_000, replicas) == expected
