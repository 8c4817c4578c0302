# SPDX-License-Identifier: Apache-2.0
"""Look at torch or at one plugin in a process of its own.

A plugin is foreign code, often compiled, and a crash of it cannot be caught. Here it takes down a child, and the
parent tells how it died. `look(plugin)` is the parent's side; `main([FILE, PLUGIN])` is the child's, which writes what
it saw to FILE as JSON (a plugin may print anything to its standard output).
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

__all__ = ["look"]

#: How much of what a dying child said is worth showing.
LAST_LINES = 15

#: How faulthandler begins; the innermost frame follows at once.
FATAL = "Fatal Python error"


def look(plugin: str | None = None, timeout: float = 120.0) -> dict[str, Any]:
    """Return what a child process sees: `{"env": …, "record": …}`, or `{"crash": why, "output": last words}` if it
    died.
    """
    with tempfile.TemporaryDirectory(prefix="thunder-doctor-") as scratch:
        report = Path(scratch) / "report.json"
        # Not by -m, for which Python warns of a module that its package has imported already.
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
    """Return how a process ended, in words."""
    if status < 0:
        try:
            return f"crashed: killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"crashed: killed by signal {-status}"
    return f"crashed: exit status {status:#x}" if status > 255 else f"ended the process with status {status}"


def _last_words(output: bytes | None) -> str:
    """Return the end of what it printed; of a crash that Python could still report, the beginning of that report."""
    lines = (output or b"").decode(errors="replace").strip().splitlines()
    for number, line in enumerate(lines):
        if line.startswith(FATAL):
            return "\n".join(lines[number:][:LAST_LINES])
    return "\n".join(lines[-LAST_LINES:])


def main(arguments: list[str]) -> int:
    """Return the child: load the plugin, or only look at the environment, and write the report."""
    # Here: whoever only asks why a child has died loads none of it.
    from thunder.cli.plugins import quiet_records
    from thunder.plugins import PluginLoadError, load_named, manager

    target, *names = arguments
    report: dict[str, Any] = {"record": None}
    if names:
        quiet_records()
        try:
            load_named(names[0])
        except PluginLoadError:
            pass  # the record has the reason
        except Exception:
            # not the plugin's failure but thunder's own: a thunder.extend that cannot be imported, say
            report["error"] = traceback.format_exc()
        record = manager().find(names[0])
        report["record"] = None if record is None else record.to_dict()
    report["env"] = manager().env.to_dict()
    Path(target).write_text(json.dumps(report), encoding="utf-8")
    return 0
