# SPDX-License-Identifier: Apache-2.0
"""Where the kernels can run, and what the probe says where they cannot."""

from __future__ import annotations

import re
from typing import Any

import pytest

from thunder.plugins.env import Env, GpuDevice
from thunder_ex_triton.probe import interpreting, unusable_device, why_not

GPU = GpuDevice(0, "NVIDIA H200", (9, 0), 1 << 37)
OLD = GpuDevice(0, "Tesla V100", (7, 0), 1 << 34)


class Machine(Env):
    """What a probe may ask, answered from a table."""

    def __init__(self, triton: str | None = "3.7.0", numpy: str | None = "2.4.6", gpus: Any = (GPU,)):
        self.versions = {"triton": triton, "numpy": numpy}
        self.devices = gpus
        self.cuda_error = None if gpus else "this torch was built without CUDA"

    def version_of(self, distribution: str) -> str | None:
        """The installed version."""
        return self.versions[distribution]

    def has_module(self, name: str) -> bool:
        """Whether it is there."""
        return self.versions[name] is not None


@pytest.mark.parametrize(
    ("machine", "interpreted", "reason"),
    [
        (Machine(), False, None),
        (Machine(triton=None), False, "not installed: pip install 'triton>=3.6'"),
        (Machine(triton="3.5.1"), False, "needs Triton 3.6 or newer, and 3.5.1 is installed"),
        (Machine(gpus=()), False, "needs an NVIDIA GPU: this torch was built without CUDA"),
        (Machine(gpus=(OLD,)), False, r"8.0 or newer, and there is only Tesla V100 \(7.0\)"),
        (Machine(gpus=(OLD, GPU)), False, None),
        (Machine(gpus=()), True, None),
        (Machine(numpy=None), True, "needs NumPy"),
        (Machine(triton="3.6.0"), True, "does not work with NumPy 2.4.6"),
        (Machine(triton="3.6.0", numpy="2.3.1"), True, None),
    ],
)
def test_the_probe(machine: Any, interpreted: bool, reason: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says exactly what is missing."""
    monkeypatch.setenv("TRITON_INTERPRET", "1" if interpreted else "")
    found = why_not(machine)
    assert (found is None) == (reason is None)
    assert reason is None or re.search(reason, str(found))


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU tensors only with the interpreter."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert interpreting()
    assert unusable_device("cpu") is None
    monkeypatch.delenv("TRITON_INTERPRET")
    assert not interpreting()
    assert unusable_device("cuda") is None
    assert unusable_device("cpu") == "Triton's kernels run on NVIDIA GPUs, not on cpu"
