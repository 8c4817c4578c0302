# SPDX-License-Identifier: Apache-2.0
"""The samples of the conformance suite, and the references with which they are compared."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder
from thunder.extend import get_executor
from thunder.tests.comparison import compare
from thunder_ex_te import reference, samples


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
            assert "te_" in str(thunder.last_traces(f)[-1])


@pytest.mark.parametrize("kind", ["e4m3", "e5m2", "e4m3 1x128", "e4m3 128x128"])
def test_the_reference_itself(kind: str) -> None:
    """What it quantizes is what it was, to half a step of the type, and so is its transpose."""
    x = torch.randn(3, 48, 272) * torch.logspace(-3, 3, 272)
    step = 2**-4 if kind.startswith("e4m3") else 2**-3
    data, scale, other, other_scale = reference.quantize(x, kind)
    least = 2**-9 if kind.startswith("e4m3") else 2**-16
    for found, expected, of in ((data, x, scale), (other, x.reshape(-1, 272).t(), other_scale)):
        back = reference.dequantize(found, of, kind)
        assert ((back - expected).abs() <= step * expected.abs() * 1.001 + least * float(of.max())).all()
    assert all(part is None for part in reference.quantize(x, kind, rows=False, columns=False))


def test_powers_of_two() -> None:
    """Scales that are powers of two change no bit of what they scale."""
    scale = reference.quantize(torch.tensor([[3.0, 1.0]]), "e4m3", True)[1]
    assert float(1 / scale) == 2**7  # 448 / 3 is 149
    for x, expected in ((torch.zeros(1, 2), 1.0), (torch.full((1, 2), float("inf")), 1.0)):
        assert float(reference.quantize(x, "e4m3")[1]) == expected


def test_tolerances_are_of_operators() -> None:
    """Each names an operator and a dtype."""
    known: Any = {info.name for info in samples.opinfos()} if "te" in _executors() else None
    for key in samples.TOLERANCES:
        name, _, dtype = key.partition(":")
        assert hasattr(torch, dtype) and (known is None or name in known)


def _executors() -> set[str]:
    return {ex.name for ex in thunder.extend.get_all_executors()}
