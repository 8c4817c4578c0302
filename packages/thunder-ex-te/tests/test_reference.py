# SPDX-License-Identifier: Apache-2.0
"""What results are compared with: fp8 in plain torch."""

from __future__ import annotations

import pytest
import torch

from thunder_ex_te import reference


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
