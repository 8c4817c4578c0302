# SPDX-License-Identifier: Apache-2.0
"""Functions that launch kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from thunder.toolkit import launch


def test_it_runs_on_the_gpu_of_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
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

    monkeypatch.setattr(launch, "current_cuda_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", Guard)
    found = launch.on_its_device(lambda x, *args, key=None: (*args, key))
    assert found(Other(), 2, key=3) == (2, 3)
    assert entered == [1]
    assert found([Other(), torch.ones(1)], 2) == (2, None)
    assert entered == [1, 1]
    assert found(torch.ones(1), 4) == (4, None)
    assert entered == [1, 1]
