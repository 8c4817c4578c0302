# SPDX-License-Identifier: Apache-2.0
"""The wheel as thunder sees it."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import thunder
from thunder import plugins
from thunder.extend import get_default_executors
from thunder.plugins import Availability, PluginLoadError, PluginRecord, PluginState
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


def _fails() -> Any:
    raise ImportError("no module")


def _answers(ok: bool) -> Any:
    return lambda: SimpleNamespace(thunder_probe=lambda env: Availability(ok, "" if ok else "no GPU"))


@pytest.mark.parametrize(
    ("state", "load", "default"),
    [
        (None, None, True),
        (PluginState.READY, _fails, False),
        (PluginState.BLOCKED, _fails, True),
        (PluginState.UNAVAILABLE, _fails, True),
        (PluginState.COMPATIBLE, _answers(True), False),
        (PluginState.COMPATIBLE, _answers(False), True),
        (PluginState.COMPATIBLE, _fails, True),
    ],
)
def test_beside_triton(state: Any, load: Any, default: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fuser that was measured faster is the default where it can be used: a program is fused by one."""
    entry_point: Any = SimpleNamespace(load=load)
    record = None if state is None else PluginRecord("triton", entry_point, "thunder-ex-triton", state=state)
    monkeypatch.setattr(plugins.manager(), "find", lambda name: record)
    given: dict[str, Any] = {}
    plugin.thunder_register_executors(
        type("Registry", (), {"register_executor": lambda self, ex, **how: given.update(how)})()
    )
    assert given["default"] is default
