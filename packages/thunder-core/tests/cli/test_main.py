# SPDX-License-Identifier: Apache-2.0
"""The command line as a whole: what it accepts, how it fails, and that it needs no torch to do so."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from thunder.cli import main
from thunder.core.errors import PluginLoadError

COMMANDS = ["plugins", "doctor", "ops", "conformance", "explain", "trace", "bench", "report"]


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` names each, `COMMAND --help` works for each."""
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    told = capsys.readouterr().out
    for command in COMMANDS:
        assert re.search(rf"^    {command}\b", told, re.MULTILINE)
        with pytest.raises(SystemExit) as stop:
            main([command, "--help"])
        assert stop.value.code == 0
        assert f"usage: thunder {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [[], ["no-such-command"], ["ops"], ["plugins", "--no-such-option"], ["doctor", "a", "b"]]
)
def test_senseless_command_lines(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2 and the usage."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "usage: thunder" in capsys.readouterr().err


def test_a_plugin_that_cannot_be_used(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The reason goes to standard error, without a traceback."""

    def raises(args: object) -> int:
        raise PluginLoadError("executor plugin 'acme' is unavailable: no GPU")

    monkeypatch.setattr("thunder.cli.plugins.run", raises)
    assert main(["plugins"]) == 1
    assert capsys.readouterr().err == "thunder plugins: executor plugin 'acme' is unavailable: no GPU\n"


def test_as_a_module() -> None:
    """`python -m thunder --version`, and torch is not imported for it."""
    code = (
        "import runpy, sys; sys.argv = ['thunder', '--version']\n"
        "try: runpy.run_module('thunder', run_name='__main__')\n"
        "except SystemExit as stop: print(stop.code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    version, rest = done.stdout.splitlines()
    assert version.startswith("thunder-core ")
    assert rest == "0 False"


def test_a_reader_that_goes_away() -> None:
    """`python -m thunder plugins --help | true` ends without a complaint."""
    code = (
        "import os, sys, thunder.cli.plugins as p\n"
        "from thunder.cli import main\n"
        "def run(args):\n    read, write = os.pipe(); os.close(read); os.dup2(write, 1)\n"
        "    print('x' * 100_000, flush=True)\n"
        "p.run = run\n"
        "sys.exit(main(['plugins']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
