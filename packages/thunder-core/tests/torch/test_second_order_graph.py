# SPDX-License-Identifier: Apache-2.0
"""Gradients of gradients through torch's graph, of every operation that has samples: those of eager, to 1e-8."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from thunder.core.samples import SampleInput
from thunder.extend import resolve_executors
from thunder.tests import running
from thunder.tests.gradients import gradients_of, with_leaves
from thunder.tests.opinfo import OpInfo
from thunder.tests.opinfos import all_opinfos

SAMPLES = 2  # of each operation
# These give, besides a result, what it was normalized with, of which torch's kernels have no gradient.
FORWARD_PARTS = {"layer_norm_forward", "rms_norm_forward", "batch_norm_forward", "instance_norm_forward"}


def differentiable(info: OpInfo) -> list[SampleInput]:
    """Samples in float64 whose floating point tensors all require gradients."""

    def leaf(x: torch.Tensor) -> torch.Tensor:
        return x.detach().requires_grad_() if x.is_floating_point() or x.is_complex() else x

    try:
        found = info.sample_inputs("cpu", torch.float64)[:SAMPLES]
        return [running.map_tensors(sample, leaf) for sample in found]
    except (RuntimeError, NotImplementedError, TypeError):
        return []  # it has none in that type


def second(result: Any, leaves: list[torch.Tensor]) -> list[torch.Tensor] | None:
    """The gradients of the gradients, under cotangents; None where the gradients are constants."""
    first = [g for g in gradients_of(result, leaves, create_graph=True) if g.requires_grad]
    return gradients_of(first, leaves) if first else None


def expected_of(info: OpInfo, sample: SampleInput, leaves: list[torch.Tensor]) -> list[torch.Tensor] | None:
    """Eager's; None where torch has none, or none that is finite."""
    try:
        with running.same_random_numbers():
            found = second(running.reference(info, sample), leaves)
    except (RuntimeError, NotImplementedError, TypeError):
        return None
    return found if found is not None and all(torch.isfinite(g.abs()).all() for g in found) else None


FAMILIES: dict[str, list[OpInfo]] = {}
for _info in all_opinfos():
    if _info.name not in FORWARD_PARTS:
        FAMILIES.setdefault(_info.name.rpartition(".")[2][:1], []).append(_info)


@pytest.mark.parametrize("letter", sorted(FAMILIES))
def test_against_eager(letter: str) -> None:
    """Operations whose names begin with a letter."""
    executors = resolve_executors(["torch"])
    compared = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's, about what it deprecates
        for info in FAMILIES[letter]:
            for given in differentiable(info):
                sample, leaves = with_leaves(given)
                expected = expected_of(info, sample, leaves) if leaves else None
                if expected is None:
                    continue
                with running.same_random_numbers():
                    ours, _ = running.run_jitted(info, sample, executors)
                found = second(ours, leaves)
                if found is None:
                    found = [torch.zeros_like(x) for x in leaves]
                torch.testing.assert_close(
                    found, expected, rtol=1e-8, atol=1e-9, msg=lambda m, info=info: f"{info.name}: {m}"
                )
                compared += 1
    assert compared or letter not in "abcdelmnprst"
