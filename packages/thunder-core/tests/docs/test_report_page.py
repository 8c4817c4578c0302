# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/report.md run as they are printed, and write the files that the page names."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs" / "report.md").read_text("utf-8")


def run(command: str, folder: Path) -> None:
    """Run a command of the page, with this Python, in a folder that has the repository's `docs`."""
    text = command.replace("python ", f"{sys.executable} ", 1)
    environment = {**os.environ, "THUNDER_DISABLE_PLUGINS": "*", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(text, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def test_the_commands(tmp_path: Path) -> None:
    """The script that the reader saves is a block of the page."""
    (tmp_path / "docs").symlink_to(ROOT / "docs", target_is_directory=True)
    script = re.search(r"```\{code-block\} python\n(.*?)```", PAGE, re.DOTALL)
    assert script is not None
    (tmp_path / "look.py").write_text(script[1], encoding="utf-8")
    commands = re.findall(r"```sh\n(.*?)\n```", PAGE, re.DOTALL)
    assert len(commands) == 2
    for command in commands:
        run(command, tmp_path)
    assert all(section in (tmp_path / "report.html").read_text("utf-8") for section in ("Graph", "Memory", "Passes"))
    assert "Timeline of a call" in (tmp_path / "profile.html").read_text("utf-8")
    assert json.loads((tmp_path / "trace.json").read_text("utf-8"))["traceEvents"]


def test_the_command_in_the_table(tmp_path: Path) -> None:
    """The zip for a bug is written."""
    (tmp_path / "docs").symlink_to(ROOT / "docs", target_is_directory=True)
    found = re.search(r"`(python -m thunder report [^`]*)`", PAGE)
    assert found is not None
    run(found[1], tmp_path)
    assert (tmp_path / "thunder_report.zip").exists()
