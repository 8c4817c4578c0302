# SPDX-License-Identifier: Apache-2.0
"""What the probe says of a machine."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from thunder.extend import ThunderError
from thunder.toolkit.testing import FakeEnv, gpu
from thunder_ex_te import probe
from thunder_ex_te.probe import unusable_device  # before the stand-in, which runs on any device, is in its place

PARTS: dict[str, str | None] = dict.fromkeys(
    ("transformer_engine", "transformer_engine_cu13", "transformer_engine_torch"), "2.20.2"
)


def _said(versions: dict[str, str | None] = PARTS, **machine: Any) -> str:
    return str(probe.why_not(FakeEnv(versions, torch="2.11.0", **machine)))


def test_what_is_missing() -> None:
    """Each part is named, with how to get it."""
    assert "needs NVIDIA's TransformerEngine, which is not installed: pip install" in _said({})
    assert "installed without its extension for torch" in _said({"transformer_engine": "2.20.2"})
    assert "without the metadata of transformer_engine_torch" in _said({**PARTS, "transformer_engine_torch": None})


def test_versions() -> None:
    """All parts have one version, which is one whose private parts are known."""
    said = _said({**PARTS, "transformer_engine_torch": "2.20.1"})
    assert "must have the same version" in said and "transformer_engine_torch 2.20.1" in said
    assert "transformer_engine_cu13 2.20.2" in said
    for version in ("2.19.0", "2.21.0", "3.0", "unknown"):
        said = _said(dict.fromkeys(PARTS, version))
        assert f"needs TransformerEngine 2.20 or newer, before 2.21, but {version} is installed" in said


def test_gpus() -> None:
    """One of Hopper's is wanted; others transpose otherwise, or have no fp8."""
    assert _said(cuda_error="no driver") == "needs an NVIDIA GPU: no driver"
    for capability in ((8, 0), (8, 9), (10, 0), (12, 0)):
        text = ".".join(map(str, capability))
        said = _said(gpus=[gpu("a GPU", capability)])
        assert f"capability 9.0 or newer, before 10.0, but this machine has a GPU ({text})" in said


def test_a_library_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the loader says is told where fp8 is asked for, with the versions that do not fit."""

    def refuse(name: str) -> Any:
        if name == "thunder_ex_te.kernels":
            raise ImportError("undefined symbol: _ZN3c104impl\nmore")

    probe.kernels.cache_clear()
    monkeypatch.setattr(probe.importlib, "import_module", refuse)
    torchs = re.escape(probe._installed("torch"))
    said = rf"does not load beside torch {torchs} \(ImportError: undefined symbol: _ZN3c104impl\): its extension"
    with pytest.raises(ThunderError, match=said):
        probe.kernels()
    probe.kernels.cache_clear()


def test_an_extension_for_another_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is not loaded to find that out."""
    file = tmp_path / "extension.so"
    file.write_bytes(b"")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace(origin=str(file)))
    monkeypatch.setattr(probe, "missing_of_torch", lambda path, folder: "_ZN3c104impl" if path == file else None)
    said = _said()
    assert (
        "transformer_engine_torch 2.20.2 was compiled for another torch than 2.11.0, which lacks _ZN3c104impl" in said
    )
    monkeypatch.setattr(probe, "missing_of_torch", lambda path, folder: None)
    assert probe.why_not(FakeEnv(PARTS)) is None


def test_devices() -> None:
    """Tensors elsewhere are left to others."""
    assert unusable_device(torch.device("cuda")) is None
    assert unusable_device(torch.device("cpu")) == "TransformerEngine runs on NVIDIA GPUs, not on cpu"
