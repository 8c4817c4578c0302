# SPDX-License-Identifier: Apache-2.0
"""Where cuDNN's graphs can run, and what the probe says where they cannot."""

from __future__ import annotations

import importlib
import re
from types import SimpleNamespace
from typing import Any

import pytest

from thunder.toolkit.testing import FakeEnv, gpu
from thunder_ex_cudnn.probe import FRONTEND, unusable_device, why_not

HERE: Any = {"versions": {FRONTEND: "1.32.0"}, "modules": ["cudnn"]}
OLD = gpu("Tesla V100", (7, 0))


def _broken() -> int:
    raise RuntimeError("libcudnn.so.9 is not loaded")


@pytest.mark.parametrize(
    ("machine", "cudnn", "reason"),
    [
        (FakeEnv(**HERE), 91900, None),
        (FakeEnv(), 91900, "not installed: pip install --no-deps 'nvidia-cudnn-frontend>=1.32'"),
        (FakeEnv({FRONTEND: "1.32.0"}, []), 91900, "which is not installed"),
        (
            FakeEnv({FRONTEND: "1.9.0"}, ["cudnn"]),
            91900,
            "needs nvidia-cudnn-frontend 1.32 or newer, but 1.9.0 is installed",
        ),
        (FakeEnv(**HERE, gpus=()), 91900, "needs an NVIDIA GPU: this torch was built without CUDA"),
        (FakeEnv(**HERE, gpus=(OLD,)), 91900, r"8.0 or newer, but this machine has Tesla V100 \(7.0\)"),
        (FakeEnv(**HERE, gpus=(OLD, gpu())), 91900, None),
        (FakeEnv(**HERE), 91400, "needs cuDNN 9.19 or newer, but 9.14.0 is installed"),
        (FakeEnv(**HERE), 100100, r"nvidia-cudnn-frontend found the incompatible cuDNN 10.1.0"),
        (
            FakeEnv(**HERE),
            ImportError("undefined symbol: cudnnCreate"),
            "1.32.0 cannot be imported .ImportError: undefined",
        ),
        (FakeEnv(**HERE), _broken, "finds no cuDNN .libcudnn.so.9 is not loaded"),
    ],
)
def test_the_probe(machine: Any, cudnn: Any, reason: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says exactly what is missing: the library, its version, the GPU, or that they do not fit together."""

    def load(name: str) -> Any:
        if name == "torch":
            return SimpleNamespace(backends=SimpleNamespace(cudnn=SimpleNamespace(version=lambda: 91900)))
        assert name == "cudnn"
        if isinstance(cudnn, Exception):
            raise cudnn
        return SimpleNamespace(backend_version=cudnn if callable(cudnn) else lambda: cudnn)

    monkeypatch.setattr(importlib, "import_module", load)
    found = why_not(machine)
    monkeypatch.undo()
    assert (found is None) == (reason is None), found
    assert reason is None or re.search(reason, str(found)), found


def test_devices() -> None:
    """Tensors of a GPU."""
    assert unusable_device("cuda") is None
    assert unusable_device("cpu") == "cuDNN runs on NVIDIA GPUs, not on cpu"
