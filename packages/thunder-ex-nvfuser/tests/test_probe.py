# SPDX-License-Identifier: Apache-2.0
"""What the probe says of a machine, and how a library that does not load is met."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

import thunder
from thunder.toolkit.testing import FakeEnv, gpu
from thunder_ex_nvfuser import probe
from thunder_ex_nvfuser.probe import Wheel

HERE = FakeEnv(modules=["nvfuser_direct"], torch="2.11.0+cu130")
MISSING = FakeEnv(torch="2.11.0+cu130")
OLD = gpu("Tesla M40", (5, 2))


@pytest.mark.parametrize(
    ("machine", "wheel", "reason"),
    [
        (
            MISSING,
            None,
            "needs nvFuser's module nvfuser_direct, .*pip install nvfuser-cu130-torch211",
        ),
        (
            FakeEnv(modules=["nvfuser"], torch="2.11.0+cu130"),
            None,
            "module nvfuser is from an older release",
        ),
        (FakeEnv(modules=["nvfuser_direct"], gpus=()), None, "needs an NVIDIA GPU: this torch was built without CUDA"),
        (
            FakeEnv(modules=["nvfuser_direct"], gpus=(OLD,)),
            None,
            r"or newer, but this machine has Tesla M40 \(5.2\)",
        ),
        (HERE, None, None),
        (HERE, Wheel("nvfuser_cu130_torch211", 13, (2, 11)), None),
        (HERE, Wheel("nvfuser_cu130_torch210", 13, (2, 10)), None),
        (
            HERE,
            Wheel("nvfuser_cu130_torch29", 13, (2, 9)),
            "was built for torch 2.9, but 2.11.0",
        ),
        (
            HERE,
            Wheel("nvfuser_cu128_torch211", 12, (2, 11)),
            "for CUDA 12, torch for 13.0",
        ),
        (
            HERE,
            Wheel("nvfuser_cu130_torch211", 13, (2, 11), (0, 3)),
            None,
        ),
        (
            HERE,
            Wheel("nvfuser_cu130_torch211", 13, (2, 11), (0, 2, 9)),
            "0.2.36 or newer, .* 0.2.9",
        ),
    ],
)
def test_the_probe(machine: Any, wheel: Any, reason: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says exactly what does not fit, and what to install."""
    monkeypatch.setattr(probe, "installed_wheel", lambda: wheel)
    found = probe.why_not(machine)
    assert (found is None) == (reason is None), found
    assert reason is None or re.search(reason, str(found))
    said = probe.neighbour(machine)
    assert (said is not None) == (wheel is not None and wheel.torch != (2, 11))


def test_the_name_of_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says which CUDA and torch it is for."""
    info = tmp_path / "nvfuser_cu130_torch210-0.2.36.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nvfuser-cu130-torch210\nVersion: 0.2.36.dev20260301\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert probe.installed_wheel() == Wheel("nvfuser_cu130_torch210", 13, (2, 10), (0, 2, 36))


def test_a_library_that_was_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not loaded, which would end the process: the probe says which file it is."""
    info = tmp_path / "nvfuser_cu130_torch211-0.2.36.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nvfuser-cu130-torch211\nVersion: 0.2.36\n")
    (info / "RECORD").write_text("nvfuser_direct/_C.so,,8\nnvfuser_direct/__init__.py,,3\nnvfuser_cu130.libs/x.so,,9\n")
    (tmp_path / "nvfuser_direct").mkdir()
    whole = tmp_path / "nvfuser_direct" / "_C.so"
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    whole.write_bytes(b"12345678")
    assert probe.why_not(HERE) is None
    whole.write_bytes(b"1234")
    assert "_C.so has 4 bytes, but its wheel records 8" in str(probe.why_not(HERE))


def test_a_library_that_does_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the loader said is the reason with which every operation is left to others."""
    (tmp_path / "nvfuser_direct.py").write_text("raise ImportError('undefined symbol: _ZN3c1013Message')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nvfuser_direct", raising=False)
    for cached in (probe.library, probe.load_error):
        cached.cache_clear()
    flags = sys.getdlopenflags()
    said = probe.unusable_device(thunder.core.devices.Device("cuda:0"))
    assert said == "nvfuser_direct does not load (ImportError: undefined symbol: _ZN3c1013Message)"
    assert sys.getdlopenflags() == flags
    assert "not on cpu" in str(probe.unusable_device(thunder.core.devices.cpu))
    for cached in (probe.library, probe.load_error):
        cached.cache_clear()
