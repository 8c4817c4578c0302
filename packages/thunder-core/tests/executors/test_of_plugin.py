# SPDX-License-Identifier: Apache-2.0
"""The import paths of executors that plugins bring: the executor, or what to do where it is not to be had."""

from __future__ import annotations

import importlib
from importlib.metadata import EntryPoint

import pytest

from thunder import plugins
from thunder.executors import of_plugin
from thunder.extend import Executor, OperatorExecutor
from thunder.plugins import PluginRecord, PluginState
from thunder.plugins.discovery import GROUP

PATHS = [
    ("thunder.executors.triton_crossentropy", "triton_ex", "triton_crossentropy", "thunder-ex-triton"),
    ("thunder.executors.apexex", "apex_ex", "apex", "thunder-ex-apex"),
    ("thunder.executors.apex_entropyex", "apex_ex", "apex", "thunder-ex-apex"),
]


def no_executor(name: str) -> Executor:
    """`get_executor` where no plugin brings it."""
    raise plugins.PluginLoadError(f"there is no executor {name!r}")


@pytest.mark.parametrize(("module", "name", "executor", "distribution"), PATHS)
def test_what_to_install(
    module: str, name: str, executor: str, distribution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the plugin the import fails with the command that installs it."""
    monkeypatch.setattr(of_plugin, "get_executor", no_executor)
    monkeypatch.setattr(plugins, "records", tuple)
    with pytest.raises(ImportError, match=f"pip install {distribution}$") as raised:
        exec(f"from {module} import {name}")
    assert (raised.value.name, repr(executor) in str(raised.value)) == (module, True)
    with pytest.raises(ImportError, match="cannot import name 'something_else'"):
        exec(f"from {module} import something_else")


@pytest.mark.parametrize(("module", "name", "executor", "distribution"), PATHS)
def test_why_an_installed_plugin_is_not_used(
    module: str, name: str, executor: str, distribution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin that is there and cannot run here says why; it is not to be installed again."""
    record = PluginRecord("it", EntryPoint("it", "it.plugin", GROUP), distribution.replace("-", "_"), "1.2")
    record.end(PluginState.UNAVAILABLE, "needs a GPU, and this machine has none")
    monkeypatch.setattr(of_plugin, "get_executor", no_executor)
    monkeypatch.setattr(plugins, "records", lambda: (record,))
    with pytest.raises(ImportError, match="needs a GPU, and this machine has none") as raised:
        exec(f"from {module} import {name}")
    assert "pip install" not in str(raised.value)
    record.end(PluginState.READY)  # but it brings no executor of that name
    with pytest.raises(ImportError, match=f"there is no executor '{executor}'"):
        exec(f"from {module} import {name}")


@pytest.mark.parametrize(("module", "name", "executor", "distribution"), PATHS)
def test_the_plugins_executor(
    module: str, name: str, executor: str, distribution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the plugin it is the plugin's executor."""
    found = OperatorExecutor(executor)
    monkeypatch.setattr(of_plugin, "get_executor", {executor: found}.__getitem__)
    assert getattr(importlib.import_module(module), name) is found
    assert dir(importlib.import_module(module)) == [name]


@pytest.mark.parametrize(("module", "name", "executor", "distribution"), PATHS)
def test_this_environment(module: str, name: str, executor: str, distribution: str) -> None:
    """Where a plugin cannot be used here, the import says what to do: to install it only if it is not."""
    try:
        assert getattr(importlib.import_module(module), name).name == executor
    except ImportError as error:
        installed = distribution in {record.distribution for record in plugins.records()}
        assert (f"pip install {distribution}" in str(error)) != installed
