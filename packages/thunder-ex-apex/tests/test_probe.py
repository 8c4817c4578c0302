# SPDX-License-Identifier: Apache-2.0
"""What the probe says of a machine, and what becomes of an extension that does not run."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from thunder.toolkit.testing import FakeEnv
from thunder_ex_apex import probe


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that modules are imported from."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("apex", probe.CROSS_ENTROPY, probe.NORMS):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_no_apex() -> None:
    """It says how to get it."""
    assert re.search("NVIDIA's apex, which is not installed: build apex from", str(probe.why_not(FakeEnv())))


def test_another_apex(folder: Path) -> None:
    """The package of that name on PyPI is not mistaken for NVIDIA's."""
    (folder / "apex").mkdir()
    (folder / "apex" / "__init__.py").write_text("raise RuntimeError('the probe imported it')")
    assert "the installed package apex 0.9.10.dev0 is not NVIDIA's" in str(
        probe.why_not(FakeEnv({"apex": "0.9.10.dev0"}))
    )
    (folder / "apex" / "normalization").mkdir()
    assert "installed without its CUDA extensions" in str(probe.why_not(FakeEnv({"apex": "0.9.10.dev0"})))


def test_no_gpu(folder: Path) -> None:
    """The extensions alone are not enough."""
    machine = FakeEnv(modules=[probe.NORMS], cuda_error="this torch was built without CUDA")
    assert probe.why_not(machine) == "needs an NVIDIA GPU: this torch was built without CUDA"


def test_an_extension_that_does_not_load(folder: Path) -> None:
    """One that was built for another torch is named with what the loader said; the other one may do."""
    (folder / f"{probe.CROSS_ENTROPY}.py").write_text("raise ImportError('undefined symbol: _ZN3c104impl')")
    said = str(probe.why_not(FakeEnv(modules=[probe.CROSS_ENTROPY], torch="2.13.0")))
    assert "with torch 2.13.0; rebuild them for it" in said
    assert "xentropy_cuda (ImportError: undefined symbol: _ZN3c104impl)" in said
    (folder / f"{probe.NORMS}.py").write_text("")
    assert probe.why_not(FakeEnv(modules=[probe.CROSS_ENTROPY, probe.NORMS])) is None
    assert probe.loads(probe.NORMS) and not probe.loads(probe.CROSS_ENTROPY)


def test_a_device_it_was_not_built_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call on a device shows it; the executor then leaves everything on it to others."""
    assert "not on cpu" in str(probe.unusable_device(probe.NORMS, torch.device("cpu")))

    def refuse(*args: Any) -> Any:
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device\nmore")

    monkeypatch.setattr(probe, "extension", lambda name: SimpleNamespace(rms_forward=refuse, forward=refuse))
    monkeypatch.setattr(torch.cuda, "device", lambda index: torch.device("meta"))
    monkeypatch.setattr(torch, "zeros", lambda *args, **kwargs: None)
    probe._trial.cache_clear()
    said = str(probe.unusable_device(probe.NORMS, SimpleNamespace(type="cuda", index=1)))
    probe._trial.cache_clear()
    assert "does not run on cuda:1 (RuntimeError: CUDA error: no kernel image" in said
