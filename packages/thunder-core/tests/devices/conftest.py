# SPDX-License-Identifier: Apache-2.0
"""The device `acme`, for `nox -s device`: its library is compiled once, and torch knows the device in this process."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder for PYTHONPATH in which the device is installed, and load the device in this process."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(HERE / "acme_device", folder / "acme_device", ignore=shutil.ignore_patterns("__pycache__"))
    info = folder / "acme_device-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-device\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[torch.backends]\nacme = acme_device:autoload\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        acme_device = importlib.import_module("acme_device")
        library = Path(os.environ.get(acme_device.LIBRARY) or folder / "acme_device.so")
        patch.setenv(acme_device.LIBRARY, str(library))
        if not library.exists():
            acme_device.compile_library(library)
        acme_device.autoload()
        path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(path))
        yield folder
        sys.modules.pop("acme_device", None)
