# SPDX-License-Identifier: Apache-2.0
"""Inspect torch, one plugin, or all plugins together in a child process.

A plugin is foreign code, which is often compiled, and its crashes cannot be caught. Here a crash only terminates a
child process, and the parent reports how the child ended. `look(plugin)` runs in the parent. `main([FILE, PLUGIN])`
runs in the child and writes its findings to FILE as JSON, because a plugin may print anything to standard output.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

__all__ = ["EVERY", "look"]

#: Given instead of a plugin's name, this loads all plugins together.
EVERY = "*"

#: The number of bytes of a dead child's output that are shown.
LAST_LINES = 15

#: The first line of faulthandler's report. The innermost frame is on the next line.
FATAL = "Fatal Python error"


def look(plugin: str | None = None, timeout: float = 120.0) -> dict[str, Any]:
    """Inspect in a child process.

    Return `{"env": …, "record": …}`, or `{"crash": why, "output": tail}` if the child crashed. For the plugin `EVERY`,
    the result contains `"records"`, with a record for each plugin.
    """
    with tempfile.TemporaryDirectory(prefix="thunder-doctor-") as scratch:
        report = Path(scratch) / "report.json"
        # Not with -m, which would warn that the package has already imported the module.
        begin = f"import sys; from {__name__} import main; sys.exit(main(sys.argv[1:]))"
        command = [sys.executable, "-X", "faulthandler", "-c", begin, str(report)]
        try:
            done = subprocess.run(
                [*command, *([plugin] if plugin else [])],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            return {"crash": f"did not end within {timeout:g} seconds", "output": _last_words(late.stdout)}
        if done.returncode == 0 and report.exists():
            seen: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
            return seen
        return {"crash": death(done.returncode), "output": _last_words(done.stdout)}


def death(status: int) -> str:
    """Describe how a process ended."""
    if status < 0:
        try:
            return f"crashed: killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"crashed: killed by signal {-status}"
    return f"crashed: exit status {status:#x}" if status > 255 else f"ended the process with status {status}"


def _last_words(output: bytes | None) -> str:
    """Return the end of the child's output. If Python reported the crash, return the beginning of that report."""
    lines = (output or b"").decode(errors="replace").strip().splitlines()
    for number, line in enumerate(lines):
        if line.startswith(FATAL):
            return "\n".join(lines[number:][:LAST_LINES])
    return "\n".join(lines[-LAST_LINES:])


def main(arguments: list[str]) -> int:
    """Run the child: load the plugin, or only inspect the environment, and write the report."""
    # The import is local, because callers of `death` do not need this.
    from thunder.cli.plugins import quiet_records
    from thunder.plugins import PluginLoadError, load_all, load_named, manager

    target, *names = arguments
    report: dict[str, Any] = {"record": None}
    if names == [EVERY]:
        quiet_records()
        load_all()
        report["records"] = [record.to_dict() for record in manager().records()]
    elif names:
        quiet_records()
        try:
            load_named(names[0])
        except PluginLoadError:
            pass  # the record has the reason
        except Exception:
            # thunder itself failed, not the plugin; e.g. thunder.extend cannot be imported
            report["error"] = traceback.format_exc()
        record = manager().find(names[0])
        report["record"] = None if record is None else record.to_dict()
    report["env"] = manager().env.to_dict()
    Path(target).write_text(json.dumps(report), encoding="utf-8")
    return 0
