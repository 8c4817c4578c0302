# SPDX-License-Identifier: Apache-2.0
"""The wheel as thunder sees it."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from typing import Any

import pytest
import torch

import thunder
from thunder import plugins
from thunder.core.errors import PluginLoadError
from thunder.extend import get_default_executors
from thunder_ex_nvfuser import plugin


def test_it_is_found() -> None:
    """Installing it is enough; where nvFuser is missing, who names it is told so, and others run as before."""
    get_default_executors()
    (record,) = [each for each in plugins.records() if each.name == "nvfuser"]
    assert record.distribution in ("thunder-ex-nvfuser", "thunder_ex_nvfuser")
    torch.testing.assert_close(thunder.jit(lambda x: x.exp() + 1)(torch.ones(3)), torch.ones(3).exp() + 1)
    if record.ready:
        assert [info.name for info in record.executors] == ["nvfuser"]
        return
    with pytest.raises(PluginLoadError, match="needs"):
        thunder.jit(lambda x: x + 1, executors=["nvfuser"])(torch.ones(2))


def test_importing_the_hooks_costs_nothing() -> None:
    """Neither nvFuser nor torch is imported to find out that it cannot run."""
    code = "import thunder_ex_nvfuser.plugin, sys; assert not {'nvfuser_direct', 'torch'} & set(sys.modules), 'heavy'"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_beside_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two fusers would divide what each could fuse whole: the other one is the default where both are installed."""
    for present in (True, False):

        def version(name: str, present: bool = present) -> str:
            if not present:
                raise importlib.metadata.PackageNotFoundError(name)
            return "0.1.0"

        monkeypatch.setattr(importlib.metadata, "version", version)
        given: dict[str, Any] = {}
        plugin.thunder_register_executors(
            type("Registry", (), {"register_executor": lambda self, ex, **how: given.update(how)})()
        )
        assert given["default"] is not present
