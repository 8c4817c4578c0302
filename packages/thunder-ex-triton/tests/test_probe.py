# SPDX-License-Identifier: Apache-2.0
"""Where the kernels can run, and what the probe says where they cannot."""

from __future__ import annotations

import re

import pytest

from thunder.toolkit.testing import FakeEnv, gpu
from thunder_ex_triton.probe import interpreting, unusable_device, why_not

BOTH = {"triton": "3.7.0", "numpy": "2.4.6"}
OLD = gpu("Tesla V100", (7, 0))


@pytest.mark.parametrize(
    ("machine", "interpreted", "reason"),
    [
        (FakeEnv(BOTH), False, None),
        (FakeEnv({"numpy": "2.4.6"}), False, "not installed: pip install 'triton>=3.6'"),
        (FakeEnv({"triton": "3.5.1"}), False, "needs Triton 3.6 or newer, but 3.5.1 is installed"),
        (FakeEnv(BOTH, gpus=()), False, "needs an NVIDIA GPU: this torch was built without CUDA"),
        (FakeEnv(BOTH, gpus=(OLD,)), False, r"8.0 or newer, but this machine has Tesla V100 \(7.0\)"),
        (FakeEnv(BOTH, gpus=(OLD, gpu())), False, None),
        (FakeEnv(BOTH, gpus=()), True, None),
        (FakeEnv({"triton": "3.7.0"}), True, "needs NumPy"),
        (FakeEnv({**BOTH, "triton": "3.6.0"}), True, "does not work with NumPy 2.4.6"),
        (FakeEnv({"triton": "3.6.0", "numpy": "2.3.1"}), True, None),
    ],
)
def test_the_probe(machine: FakeEnv, interpreted: bool, reason: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert unusable_device("cpu") == "Triton runs on NVIDIA GPUs, not on cpu"
