# SPDX-License-Identifier: Apache-2.0
"""How the library is called."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from thunder_ex_te.probe import kernels


def test_it_runs_on_the_gpu_of_its_arguments(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever is the current one."""
    entered: list[int] = []

    class Other:
        is_cuda = True

        def get_device(self) -> int:
            return 1

    class Guard:
        def __init__(self, index: int):
            entered.append(index)

        def __enter__(self) -> None: ...

        def __exit__(self, *_: Any) -> None: ...

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", Guard)
    found = kernels()._on_its_device(lambda x, *args: args)
    assert found(Other(), 2, 3) == (2, 3) and entered == [1]
    assert found(torch.ones(1), 4) == (4,) and entered == [1]


def test_quantizers_are_made_once(device: str) -> None:
    """For each way of quantizing."""
    make = kernels()._quantizer
    first = make("e4m3", False, 0.0, True, False)
    assert make("e4m3", False, 0.0, True, False) is first and make("e5m2", False, 0.0, True, False) is not first
    assert kernels().quantize(torch.ones(16, 16, device=device), "e4m3", False, 0.0, False, True).data is None
