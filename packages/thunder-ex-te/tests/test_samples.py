# SPDX-License-Identifier: Apache-2.0
"""The samples of the conformance suite, and the references with which they are compared."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder
from thunder.extend import get_executor
from thunder.toolkit.conformance import compare
from thunder_ex_te import samples


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_samples_of_every_operator(dtype: torch.dtype, device: str) -> None:
    """Each operator has samples, whose references are what it gives."""
    infos = samples.opinfos()
    assert {info.name for info in infos} == set(get_executor("te").opmap)
    for info in infos:
        name = str(dtype).removeprefix("torch.")
        near = samples.TOLERANCES.get(f"{info.name}:{name}", (0.0, 0.0))
        for sample in info.sample_inputs(device, dtype):
            f = thunder.jit(lambda *args: info.op(*args), executors=["te"])
            found, expected = f(*sample.args), info.torch_reference(*sample.args)
            compare(found, expected, tolerance=lambda d: near if d.is_floating_point else (0.0, 0.0))
            if info.name in ("te_linear", "te_grouped_linear"):  # outside of a program it is the same
                compare(info.op(*sample.args), f(*sample.args))
            assert "te_" in str(thunder.last_traces(f)[-1])


def test_tolerances_are_of_operators() -> None:
    """Each names an operator and a dtype."""
    known: Any = {info.name for info in samples.opinfos()} if "te" in _executors() else None
    for key in samples.TOLERANCES:
        name, _, dtype = key.partition(":")
        assert hasattr(torch, dtype) and (known is None or name in known)


def _executors() -> set[str]:
    return {ex.name for ex in thunder.extend.get_all_executors()}
