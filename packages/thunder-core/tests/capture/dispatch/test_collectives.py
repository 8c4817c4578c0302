# SPDX-License-Identifier: Apache-2.0
"""Collectives on two processes: as eager on both ranks, in order, whichever results a rank uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="a torch without gloo")

SCRIPT = Path(__file__).parents[2] / "helpers" / "ranks.py"
COMPILED = ("used", "unused_on_one_rank", "equal_calls", "raw_operators", "gathered", "rank_is_read")
EAGER = {
    "in_place_operator": "torch.ops._c10d_functional.all_reduce_",
    "barrier": "`barrier` of torch.distributed",
    "in_place": "`allreduce` of torch.distributed",
    "asynchronous": "`allreduce` of torch.distributed",
    "functional_then_barrier": "`barrier` of torch.distributed",
    "sent": "of torch.distributed",
    "gradient": "a collective",
    "nn_gradient": "torch.distributed.nn.functional.all_reduce",
    "autograd_function": "a collective",
    "module": "`allreduce` of torch.distributed",
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The reports of two ranks that have run all cases."""
    store = tmp_path_factory.mktemp("ranks") / "store"
    # gloo would look for a network interface by the host's name, which need not resolve.
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(store)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=settings,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        printed = [rank.communicate(timeout=180) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, (_, errors) in zip(ranks, printed):
        assert rank.returncode == 0, errors
    return [json.loads(out.splitlines()[-1]) for out, _ in printed]


@pytest.mark.parametrize("name", [*COMPILED, *EAGER])
def test_collectives_are_as_eager_on_each_rank(reports: list[dict[str, Any]], name: str) -> None:
    for report in reports:
        assert report[name]["jitted"] == report[name]["eager"]
        assert not any(isinstance(x, str) for x in report[name]["eager"])


@pytest.mark.parametrize("name", COMPILED)
def test_functional_collectives_are_compiled_and_cached(reports: list[dict[str, Any]], name: str) -> None:
    for report in reports:
        assert (report[name]["misses"], report[name]["hits"]) == (1, 2), report[name]["reason"]


@pytest.mark.parametrize("name", EAGER)
def test_other_collectives_run_eagerly_and_the_reason_is_given(reports: list[dict[str, Any]], name: str) -> None:
    for report in reports:
        assert EAGER[name] in report[name]["reason"]
        assert report[name]["misses"] == 1


def test_modules_beside_a_collective_are_compiled(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        assert report["module"]["inner_hits"] == [2, 2]


def test_a_trace_keeps_collectives_in_order() -> None:
    """One process is enough to see the text: unused and equal collectives stay, and plain tensors are waited for."""
    import torch.distributed._functional_collectives as functional

    import thunder

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:

        def f(x: torch.Tensor) -> torch.Tensor:
            functional.all_reduce(x, "sum", dist.group.WORLD)
            functional.all_reduce(x, "max", dist.group.WORLD)
            functional.all_reduce(x, "sum", dist.group.WORLD)
            return x + 1

        jf = thunder.jit(f)
        x = torch.ones(3)
        assert torch.equal(jf(x), f(x))
        text = thunder.last_traces(jf)[-1].python(depth=0)
        calls = [line.split("= ")[1].split("(")[0] for line in text.splitlines() if " = " in line]
        assert calls == ["all_reduce", "wait_tensor"] * 3 + ["torch.add"]
    finally:
        dist.destroy_process_group()


def test_the_number_of_processes_is_guarded() -> None:
    import torch.distributed._functional_collectives as functional
    import torch.testing._internal.distributed.fake_pg  # registers the backend "fake"

    import thunder

    jf = thunder.jit(lambda x: functional.all_gather_tensor(x, 0, dist.group.WORLD))
    for fake_size in (2, 4, 4):
        dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=fake_size)
        try:
            assert jf(torch.ones(3)).shape == (3 * fake_size,)
        finally:
            dist.destroy_process_group()
    assert thunder.cache_misses(jf) == 2


def test_a_collective_is_seen_while_a_profiler_runs() -> None:
    """The profiler takes the place of thunder's own hook of calls."""
    import cProfile

    import thunder

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:

        def f(x: torch.Tensor) -> torch.Tensor:
            dist.barrier()
            return x * 2

        jf = thunder.jit(f)
        with cProfile.Profile():
            assert torch.equal(jf(torch.ones(3)), torch.full((3,), 2.0))
        assert "`barrier` of torch.distributed" in thunder.explain(jf)
        dist.barrier()  # the process group is as before
    finally:
        dist.destroy_process_group()
