# SPDX-License-Identifier: Apache-2.0
"""`python -m thunder doctor`: its judgement and its words. (tests/plugins/test_wheels.py has real plugins.)"""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from typing import Any

import pytest

import thunder.plugins
from thunder.cli import doctor, main
from thunder.cli.child import EVERY
from thunder.plugins import GROUP, PluginManager, PluginRecord, PluginState

GPU = {"index": 0, "name": "H200", "capability": [9, 0], "total_memory": 150 * 2**30}
TORCH = {"torch": "2.99", "torch_error": None, "cuda": "13.0", "cuda_error": None, "devices": [GPU], "accelerators": []}
NO_GPU = {**TORCH, "cuda": None, "cuda_error": "this torch was built without CUDA", "devices": []}
NO_TORCH = {
    **NO_GPU,
    "torch": None,
    "torch_error": "ImportError: libtorch.so",
    "cuda_error": "torch cannot be imported",
}


def record(name: str, state: PluginState = PluginState.COMPATIBLE, **fields: Any) -> PluginRecord:
    return PluginRecord(
        name, EntryPoint(name, f"module_of_{name}", GROUP), f"thunder-ex-{name}", "1.0", state=state, **fields
    )


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """`machine(env, plugin=what the child saw of it, …)`: an environment with these plugins, without a child."""
    monkeypatch.delenv("THUNDER_DISABLE_PLUGINS", raising=False)
    monkeypatch.delenv("THUNDER_EXECUTORS", raising=False)

    def make(env: dict[str, Any], *scanned: PluginRecord, **seen: Any) -> None:
        records = [*scanned, *(record(name) for name in seen)]
        looks: dict[str | None, Any] = {None: env if "crash" in env else {"env": env, "record": None}}
        for name, told in seen.items():
            fields = {key: value for key, value in told.items() if key not in ("crash", "error", "output")}
            looks[name] = told if "crash" in told else {"env": env, "record": {**record(name).to_dict(), **fields}}
            if "error" in told:
                looks[name]["error"] = told["error"]
        alone = [looked["record"] for looked in looks.values() if looked.get("record")]
        crash = {"crash": "crashed: killed by SIGSEGV", "output": "Fatal Python error"}
        looks[EVERY] = {"env": env, "records": [*(record.to_dict() for record in scanned), *alone]}
        if "crash" in env or any("crash" in told for told in seen.values()):
            looks[EVERY] = crash
        monkeypatch.setattr(thunder.plugins, "_manager", PluginManager(scan=lambda: list(records)))
        monkeypatch.setattr(doctor, "look", lambda name, timeout: looks[name])
        monkeypatch.setattr(doctor, "other_owners", list)

    return make


READY = {
    "state": "ready",
    "executors": [{"name": "acme", "version": "1", "priority": 5, "default": True}],
    "operators": ["acme_mul"],
}
FAILED = {"state": "failed", "reason": "import: ImportError: libacme.so", "traceback": "Traceback\n  deep inside"}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(["doctor", *arguments])
    return status, capsys.readouterr().out


def test_a_healthy_machine(machine, capsys) -> None:
    """Versions, devices, plugins; status 0."""
    machine(TORCH, acme=READY, laptop={"state": "unavailable", "reason": "needs a GPU"})
    status, told = run(capsys)
    assert status == 0
    lines = told.splitlines()
    assert any(line.split() == ["torch", "2.99"] for line in lines)
    assert any(line.split() == ["CUDA", "13.0"] for line in lines)
    assert "H200, compute capability 9.0, 150 GiB" in told
    assert "ready" in told and "acme (default, priority 5)" in told and "needs a GPU" in told
    assert "warning" not in told and "traceback" not in told


def test_what_is_said_of_a_plugin_that_can_run(machine, capsys) -> None:
    """In the table, and as a note where it is asked for."""
    machine(TORCH, acme={**READY, "reason": "built for another torch"})
    assert "built for another torch" in run(capsys)[1]
    status, told = run(capsys, "acme")
    assert status == 0
    assert any(line.split()[:3] == ["note", "built", "for"] for line in told.splitlines())


def test_no_plugins(machine, capsys) -> None:
    """An environment without plugins is healthy."""
    machine(NO_GPU)
    status, told = run(capsys)
    assert status == 0
    assert "No executor plugin is installed" in told
    assert "not usable: this torch was built without CUDA" in told


@pytest.mark.parametrize(
    "plugin",
    [
        FAILED,
        {"crash": "crashed: killed by SIGSEGV", "output": "Fatal Python error"},
        {"state": "incompatible", "reason": "x"},
    ],
)
def test_a_broken_plugin(machine, capsys, plugin) -> None:
    """Any of them makes the status 1, and the way to the details is told."""
    machine(TORCH, good=READY, acme=plugin)
    status, told = run(capsys)
    assert status == 1
    assert (plugin.get("reason") or plugin["crash"]) in told
    assert "`python -m thunder doctor acme` shows the traceback." in told


def test_broken_torch(machine, capsys) -> None:
    """Torch that cannot be imported, or that takes the process down, is told with its reason."""
    machine(NO_TORCH, acme={"state": "unavailable", "reason": "torch cannot be imported"})
    status, told = run(capsys)
    assert status == 1
    assert "cannot be imported: ImportError: libtorch.so" in told
    assert "CUDA" not in told
    machine({"crash": "crashed: killed by SIGABRT", "output": "Fatal Python error: Aborted\n  in torch"})
    status, told = run(capsys)
    assert status == 1
    assert "cannot be imported: the process crashed: killed by SIGABRT" in told
    assert "Fatal Python error: Aborted" in told


def test_a_slow_import(machine, capsys) -> None:
    """Everybody's first compilation waits for it, so it is told in the table and of the plugin alone."""
    machine(TORCH, acme={**READY, "import_seconds": 2.54}, good={**READY, "import_seconds": 0.2})
    status, told = run(capsys)
    assert status == 0
    assert "its import takes 2.5 s" in told and told.count("its import") == 1
    assert "its import takes 2.5 s" in run(capsys, "acme")[1]
    assert "its import" not in run(capsys, "good")[1]


def test_plugins_that_conflict(machine, capsys, monkeypatch) -> None:
    """Two plugins with an executor of one name load alone, but a program can use only one of them."""
    machine(TORCH, first=READY, second=READY)
    alone = doctor.look
    taken = "commit: ValueError: an executor named 'acme' is already registered, by core, another plugin or the program"

    def look(name: str | None, timeout: float) -> dict[str, Any]:
        if name != EVERY:
            return alone(name, timeout)
        one, two = alone(EVERY, timeout)["records"]
        return {"env": TORCH, "records": [one, {**two, "state": "failed", "reason": taken, "traceback": "deep"}]}

    monkeypatch.setattr(doctor, "look", look)
    status, told = run(capsys)
    assert status == 1
    assert "not together with the other plugins: commit: ValueError: an executor named 'acme'" in told
    assert told.count(" ready ") == 1
    assert run(capsys, "second")[0] == 0, "the plugin alone is well"


def test_how_many_processes(machine, capsys, monkeypatch) -> None:
    """One if nothing fails, one more for each plugin that fails, and one for each plugin after a crash."""
    looks: list[str | None] = []

    def count(*scanned: PluginRecord, **seen: Any) -> list[str | None]:
        machine(TORCH, *scanned, **seen)
        look = doctor.look
        monkeypatch.setattr(doctor, "look", lambda name, timeout: looks.append(name) or look(name, timeout))
        looks.clear()
        run(capsys)
        return sorted(looks, key=str)

    off = record("off", PluginState.BLOCKED, reason="disabled")
    assert count(off, first=READY, second={"state": "unavailable", "reason": "needs a GPU"}) == [EVERY]
    assert count(off, first=READY, second=FAILED) == [EVERY, "second"]
    assert count(off, first=READY, second={"crash": "crashed", "output": ""}) == [EVERY, "first", "second"]


def test_plugins_that_crash_together(machine, capsys, monkeypatch) -> None:
    machine(TORCH, first=READY, second=READY)
    alone = doctor.look
    crash = {"crash": "crashed: killed by SIGSEGV", "output": "Fatal Python error"}
    monkeypatch.setattr(doctor, "look", lambda name, t: crash if name == EVERY else alone(name, t))
    status, told = run(capsys)
    assert status == 1
    assert "the process that loads all plugins together crashed: killed by SIGSEGV" in told


def test_one_plugin(machine, capsys) -> None:
    """In detail, with its traceback, and a status that says whether it can be used."""
    machine(TORCH, good=READY, acme=FAILED, laptop={"state": "unavailable", "reason": "needs a GPU"})
    status, told = run(capsys, "acme")
    assert status == 1
    assert "deep inside" in told and "thunder-ex-acme 1.0" in told and "module_of_acme" in told
    assert "good" not in told
    status, told = run(capsys, "good")
    assert status == 0
    assert "acme_mul" in told
    status, told = run(capsys, "laptop")
    assert status == 1
    assert "needs a GPU" in told


def test_an_unknown_plugin(machine, capsys) -> None:
    """The installed ones are listed."""
    machine(TORCH, good=READY)
    assert main(["doctor", "godo"]) == 1
    assert "no installed distribution provides an executor plugin 'godo'. Installed: good" in capsys.readouterr().err


def test_thunder_itself_is_broken(machine, capsys) -> None:
    """What is not the plugin's fault is not told as its fault."""
    machine(TORCH, acme={"error": "Traceback\nImportError: thunder.extend is broken\n"})
    status, told = run(capsys, "acme")
    assert status == 1
    assert "thunder itself failed: ImportError: thunder.extend is broken" in told


def test_warnings(machine, capsys, monkeypatch) -> None:
    """Another owner of the import name, a name in the environment that means nothing, a source tree."""
    machine(TORCH, record("off", PluginState.BLOCKED, reason="disabled by THUNDER_DISABLE_PLUGINS"))
    monkeypatch.setattr(doctor, "other_owners", lambda: ["lightning-thunder 0.2"])
    monkeypatch.setattr(doctor, "core_version", lambda: None)
    monkeypatch.setenv("THUNDER_DISABLE_PLUGINS", "off, Thunder_Ex_Off, *, offf")
    status, told = run(capsys)
    assert status == 0
    warnings = [line for line in told.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 3
    assert "lightning-thunder 0.2 also installs a module named 'thunder'" in warnings[0]
    assert "thunder-core is not installed" in warnings[1]
    assert "THUNDER_DISABLE_PLUGINS names 'offf'" in warnings[2]
    assert "THUNDER_DISABLE_PLUGINS  off, Thunder_Ex_Off, *, offf" in told


@pytest.mark.parametrize("gil", [True, False])
def test_free_threaded_python(machine, capsys, monkeypatch, gil: bool) -> None:
    """A Python that runs without the GIL is warned of, with the way out that docs/compatibility.md names."""
    machine(TORCH, acme=READY)
    monkeypatch.setattr(doctor.sys, "_is_gil_enabled", lambda: gil, raising=False)
    status, told = run(capsys)
    assert status == 0
    assert ("without the GIL" in told and "PYTHON_GIL=1" in told) is not gil


def test_json(machine, capsys) -> None:
    """The same for programs; a plugin that metadata rules out is there too."""
    machine(TORCH, record("old", PluginState.INCOMPATIBLE, reason="requires"), acme=READY)
    assert main(["doctor", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False
    assert [(plugin["name"], plugin["state"]) for plugin in told["plugins"]] == [
        ("old", "incompatible"),
        ("acme", "ready"),
    ]
    assert told["torch"]["env"]["torch"] == "2.99"
    assert told["environment"] == {"THUNDER_EXECUTORS": None, "THUNDER_DISABLE_PLUGINS": None}
