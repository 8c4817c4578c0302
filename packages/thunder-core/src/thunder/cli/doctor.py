# SPDX-License-Identifier: Apache-2.0
"""`python -m thunder doctor [NAME]`: diagnose this environment, and report which executor plugins can run in it.

All plugins are loaded together in one process, as a program loads them, so that torch is imported only once. Each
plugin that fails there is loaded again in a process of its own, because two plugins may conflict, e.g. by an executor
name. If the process crashes, every plugin is loaded in a process of its own, and a crash is reported like any other
failure. The exit status is 0 if nothing is broken. A plugin that lacks its GPU is not broken. With a NAME, the exit
status is 0 if that plugin can be used.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import thunder
from thunder.cli.child import EVERY, look
from thunder.cli.import_name import other_owners
from thunder.cli.plugins import quiet_records
from thunder.core.environment import DISABLE_VARIABLE, EXECUTORS_VARIABLE
from thunder.core.errors import PluginLoadError
from thunder.core.tables import format_table
from thunder.plugins import GROUP, PluginRecord, PluginState
from thunder.plugins.discovery import (
    core_version,
    disabled_names,
    without_plugin,
)
from thunder.plugins.version import normalize_name

__all__ = ["add_parser", "run"]

CRASHED = "crashed"
#: A plugin is reported as slow if its import takes at least this number of seconds.
SLOW_IMPORT = 1.0
_BROKEN = {CRASHED, PluginState.FAILED.value, PluginState.INCOMPATIBLE.value}


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "doctor", help="load every executor plugin, or one of them, and report problems", description=__doc__
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="the plugin to report in detail")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="the maximal time for loading a plugin (default: 120)",
    )
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Examine the environment, print a report and return the exit status."""
    report = examine(args.name, args.timeout)
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        print("\n".join(_lines(report, detailed=args.name is not None)))
    return 0 if report["ok"] else 1


def examine(name: str | None = None, timeout: float = 120.0) -> dict[str, Any]:
    """Collect the report as JSON types."""
    records = [record for record in quiet_records() if name in (None, record.name)]
    if name is not None and not records:
        known = ", ".join(sorted({record.name for record in quiet_records()})) or "none"
        raise PluginLoadError(
            f"no installed distribution provides an executor plugin {name!r}. Installed: {known}{without_plugin(name)}"
        )
    env, plugins, crash = _load(records, timeout) if name is None else _load_alone(records, timeout)
    torch_works = env.get("env", {}).get("torch") is not None
    healthy = torch_works and crash is None and not any(plugin["state"] in _BROKEN for plugin in plugins)
    return {
        "ok": healthy if name is None else any(plugin["state"] == PluginState.READY.value for plugin in plugins),
        "thunder_core": core_version(),
        "location": str(Path(thunder.__file__).parent) if thunder.__file__ else None,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": f"{platform.system()}-{platform.machine()}",
        "environment": {key: os.environ.get(key) for key in (EXECUTORS_VARIABLE, DISABLE_VARIABLE)},
        "torch": env,
        "plugins": plugins,
        "warnings": [*_warnings(), *([] if crash is None else [crash])],
    }


def _load(records: list[PluginRecord], timeout: float) -> tuple[dict[str, Any], list[dict[str, Any]], str | None]:
    """Load the plugins together, and alone where this fails.

    Return the environment, a record for each plugin, and how the process of all plugins crashed although none crashes
    alone.
    """
    together = look(EVERY, timeout)
    if "crash" in together:
        env, plugins, _ = _load_alone(records, timeout)
        if "crash" in env or any(plugin["state"] == CRASHED for plugin in plugins):
            return env, plugins, None
        return env, plugins, f"the process that loads all plugins together {together['crash']}\n{together['output']}"
    # Two distributions may provide plugins of one name.
    told = {(record["name"], record["distribution"]): record for record in together["records"]}
    found = [told.get((record.name, record.distribution), record.to_dict()) for record in records]
    failed = [record for record, plugin in zip(records, found) if plugin["state"] in _BROKEN and _is_loaded(record)]
    if failed and len(records) > 1:
        alone = {id(record): plugin for record, plugin in zip(failed, _load_alone(failed, timeout)[1])}
        found = [_reconcile(plugin, alone.get(id(record))) for record, plugin in zip(records, found)]
    return {"env": together["env"], "record": None}, found, None


def _load_alone(records: list[PluginRecord], timeout: float) -> tuple[dict[str, Any], list[dict[str, Any]], str | None]:
    """Load each plugin in a process of its own, several at a time. Return the same as `_load`."""
    to_load = [record for record in records if _is_loaded(record)]
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        seen = dict(zip(map(id, to_load), pool.map(lambda record: look(record.name, timeout), to_load)))
    env = next((each["env"] for each in seen.values() if "env" in each), None)
    environment = look(None, timeout) if env is None else {"env": env, "record": None}
    return environment, [_plugin(record, seen.get(id(record))) for record in records], None


def _is_loaded(record: PluginRecord) -> bool:
    """Return whether thunder loads this plugin, which its metadata decides."""
    return record.state is PluginState.COMPATIBLE


def _reconcile(together: dict[str, Any], alone: dict[str, Any] | None) -> dict[str, Any]:
    """Return the record of a plugin that failed together with the others, given what became of it alone."""
    if alone is None or alone["state"] != PluginState.READY.value:
        return together if alone is None else alone
    reason = f"loads alone, but not together with the other plugins: {together['reason']}"
    return {**alone, "state": together["state"], "reason": reason, "traceback": together["traceback"]}


def _plugin(record: PluginRecord, seen: dict[str, Any] | None) -> dict[str, Any]:
    """Return the record of a plugin, updated with the plugin's state in the child process."""
    if seen is None:
        return record.to_dict()
    if "crash" in seen:
        return {**record.to_dict(), "state": CRASHED, "reason": seen["crash"], "traceback": seen["output"]}
    told: dict[str, Any] = dict(seen["record"] or record.to_dict())
    if "error" in seen:
        last = seen["error"].strip().splitlines()[-1]
        told.update(state=PluginState.FAILED.value, reason=f"thunder itself failed: {last}", traceback=seen["error"])
    return told


def _warnings() -> Iterator[str]:
    """Yield problems of the environment that do not belong to a plugin."""
    for owner in other_owners():
        yield (
            f"{owner} also installs a module named 'thunder': its files and thunder-core's overwrite each other. "
            f"Uninstall both, then install thunder-core again"
        )
    if core_version() is None:
        yield "thunder-core is not installed (only its source is on the path): plugins' requirements are not checked"
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        yield "this Python runs without the GIL, which thunder does not support yet: set PYTHON_GIL=1"
    known = {record.name for record in quiet_records()}
    known |= {normalize_name(record.distribution) for record in quiet_records()}
    for name in sorted(disabled_names() - {"*"}):
        if name not in known and normalize_name(name) not in known:
            yield f"{DISABLE_VARIABLE} names {name!r}, but no plugin or distribution of that name is installed"


# --- printing ----------------------------------------------------------------------------------------------------


def _lines(report: dict[str, Any], *, detailed: bool) -> Iterator[str]:
    yield format_table(("thunder-core", report["thunder_core"] or "not installed"), list(_facts(report)))
    yield ""
    if not report["plugins"]:
        yield f"No executor plugin is installed (no entry point in the group {GROUP!r})."
    elif detailed:
        for plugin in report["plugins"]:
            yield from _details(plugin)
    else:
        header = ("plugin", "state", "distribution", "executors", "why")
        yield format_table(header, [_row(plugin) for plugin in report["plugins"]])
    for warning in report["warnings"]:
        yield f"\nwarning: {warning}"
    broken = [plugin["name"] for plugin in report["plugins"] if plugin["state"] in _BROKEN]
    if broken and not detailed:
        yield f"\n`python -m thunder doctor {broken[0]}` shows the traceback."


def _facts(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "installed in", report["location"] or "?"
    yield "Python", f"{report['python']} ({report['executable']})"
    yield "platform", report["platform"]
    if "crash" in report["torch"]:
        yield "torch", f"cannot be imported: the process {report['torch']['crash']}"
        yield from (("", line) for line in report["torch"]["output"].splitlines())
    else:
        env = report["torch"]["env"]
        yield "torch", env["torch"] or f"cannot be imported: {env['torch_error']}"
        if env["torch"]:
            yield "CUDA", env["cuda"] if env["cuda_error"] is None else f"not usable: {env['cuda_error']}"
        for gpu in env["devices"]:
            capability, memory = ".".join(map(str, gpu["capability"])), gpu["total_memory"] / 2**30
            yield f"GPU {gpu['index']}", f"{gpu['name']}, compute capability {capability}, {memory:.0f} GiB"
        for device in env["accelerators"]:
            if device["type"] != "cuda":
                memory = "" if device["total_memory"] is None else f", {device['total_memory'] / 2**30:.0f} GiB"
                yield f"device {device['type']}:{device['index']}", f"{device['name']}{memory}"
    for key, value in report["environment"].items():
        if value is not None:
            yield key, value


def _row(plugin: dict[str, Any]) -> tuple[object, ...]:
    executors = ", ".join(_executor(executor) for executor in plugin["executors"])
    why = plugin["reason"] or plugin["conflict"] or _slow(plugin)
    return plugin["name"], plugin["state"], _source(plugin), executors, why


def _slow(plugin: dict[str, Any]) -> str | None:
    """Return a note for a plugin that slows down the first compilation of every program."""
    seconds = plugin["import_seconds"]
    return f"its import takes {seconds:.1f} s" if seconds is not None and seconds >= SLOW_IMPORT else None


def _source(plugin: dict[str, Any]) -> str:
    return f"{plugin['distribution']} {plugin['version'] or ''}".strip()


def _executor(executor: dict[str, Any]) -> str:
    notes = ["default"] if executor["default"] else []
    notes += [f"priority {executor['priority']}"] if executor["priority"] else []
    return f"{executor['name']} ({', '.join(notes)})" if notes else str(executor["name"])


def _details(plugin: dict[str, Any]) -> Iterator[str]:
    rows = [
        ("state", plugin["state"]),
        ("note" if plugin["state"] == PluginState.READY.value else "why", plugin["reason"]),
        ("distribution", _source(plugin)),
        ("needs", f"thunder-core{plugin['requires_core']}" if plugin["requires_core"] else None),
        ("module", f"{plugin['target']} (entry point in {plugin['group']})"),
        ("conflict", plugin["conflict"]),
        ("slow", _slow(plugin)),
        ("executors", ", ".join(_executor(executor) for executor in plugin["executors"])),
        *((kind, ", ".join(plugin[kind])) for kind in ("operators", "options", "transforms")),
    ]
    yield format_table(("plugin", plugin["name"]), [row for row in rows if row[1]])
    if plugin["traceback"]:
        yield "\n" + "\n".join(f"    {line}" for line in plugin["traceback"].rstrip().splitlines())
