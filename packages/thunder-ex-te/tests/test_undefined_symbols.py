# SPDX-License-Identifier: Apache-2.0
"""What an extension asks torch for, read from its file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from thunder_ex_te import undefined_symbols

LIBRARIES = Path(torch.__file__).with_name("lib")


@pytest.mark.skipif(sys.platform != "linux", reason="libraries of Linux are read")
def test_what_a_library_asks_for() -> None:
    """torch's own for Python asks the others for much, which they have."""
    (path,) = LIBRARIES.glob("libtorch_python.so")
    asked = set(undefined_symbols.asked_of_others(path))
    assert any(b"PyErr_" in name for name in asked)
    assert sum(undefined_symbols._OF_TORCH.match(name) is not None for name in asked) > 100
    assert undefined_symbols.missing_of_torch(path, LIBRARIES) is None


def test_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first name of torch's that none of its libraries has; what others are asked for does not count."""
    names = [b"nvte_cublas_gemm", b"_ZNSt6vectorIiE", b"_ZN3c1013MessageLoggerC1EPKciib"]
    monkeypatch.setattr(undefined_symbols, "asked_of_others", lambda path: iter(names))
    assert undefined_symbols.missing_of_torch(tmp_path, tmp_path) == "_ZN3c1013MessageLoggerC1EPKciib"
    monkeypatch.setattr(undefined_symbols, "asked_of_others", lambda path: iter(names[:2]))
    assert undefined_symbols.missing_of_torch(tmp_path, tmp_path) is None


def test_other_files(tmp_path: Path) -> None:
    """Nothing is known of what is no such library."""
    path = tmp_path / "extension.so"
    path.write_bytes(b"MZ" + b"\0" * 100)
    (tmp_path / "empty.so").write_bytes(b"")
    assert list(undefined_symbols.asked_of_others(tmp_path / "empty.so")) == []
    assert list(undefined_symbols.asked_of_others(path)) == []
