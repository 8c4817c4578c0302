# SPDX-License-Identifier: Apache-2.0
"""`python -m thunder plugins`: what metadata says, as a table and as JSON."""

from __future__ import annotations

import json
import logging
from importlib.metadata import EntryPoint

import pytest

import thunder.plugins
from thunder.cli import main
from thunder.plugins import GROUP, PluginManager, PluginRecord, PluginState


def record(name: str, state: PluginState, reason: str | None = None) -> PluginRecord:
    entry = EntryPoint(name, f"no_such_module_of_{name}", GROUP)
    return PluginRecord(name, entry, f"thunder-ex-{name}", "1.0", ">=0.1", state, reason)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch):
    """Replace what is installed by these records."""

    def install(*records: PluginRecord) -> None:
        monkeypatch.setattr(thunder.plugins, "_manager", PluginManager(scan=lambda: list(records)))

    return install


def test_a_table(installed, capsys, caplog) -> None:
    """A line a plugin, the reason at its end, and no log line that says it again."""
    installed(
        record("acme", PluginState.COMPATIBLE),
        record("old", PluginState.INCOMPATIBLE, "requires thunder-core<0.1, but 0.1.0 is installed"),
    )
    with caplog.at_level(logging.DEBUG):
        assert main(["plugins"]) == 0
    header, acme, old, *_ = capsys.readouterr().out.splitlines()
    assert header.split() == ["plugin", "state", "distribution", "needs", "thunder-core", "module", "why"]
    assert acme.split() == ["acme", "compatible", "thunder-ex-acme", "1.0", ">=0.1", "no_such_module_of_acme"]
    assert old.endswith("requires thunder-core<0.1, but 0.1.0 is installed")
    assert caplog.records == []


def test_json(installed, capsys) -> None:
    """The records, whole."""
    installed(record("acme", PluginState.COMPATIBLE))
    assert main(["plugins", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["name"], told["state"], told["distribution"]) == ("acme", "compatible", "thunder-ex-acme")


def test_none(installed, capsys) -> None:
    """Nothing installed is said, with the group that was looked for; as JSON it is an empty list."""
    installed()
    assert main(["plugins"]) == 0
    assert "No executor plugin is installed" in (told := capsys.readouterr().out) and GROUP in told
    assert main(["plugins", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
