# SPDX-License-Identifier: Apache-2.0
"""How the library is called."""

from __future__ import annotations

import torch

from thunder_ex_te.probe import kernels


def test_quantizers_are_made_once(device: str) -> None:
    """For each way of quantizing."""
    make = kernels()._quantizer
    first = make("e4m3", False, 0.0, True, False)
    assert make("e4m3", False, 0.0, True, False) is first and make("e5m2", False, 0.0, True, False) is not first
    assert kernels().quantize(torch.ones(16, 16, device=device), "e4m3", False, 0.0, False, True).data is None
