# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/vendor.md, as they are printed: from `new-plugin` to the installed wheel, and a fusion executor.

They run one after the other in one shell, in an environment of their own that borrows this one's packages. Only pip is
told more than the page says: to use no network. Other plugins are disabled, and the suite tests silu in float32 only;
the repository's own test_conformance.py, which runs the same command, is left out.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from thunder import plugins
from thunder.cli.new_plugin import files_of

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[3] / "docs" / "vendor.md"

# `python` of the page: pip stays offline.
SHELL = """\
set -eu
python() {
    case "$1 $2 ${3:-}" in
        "-m pip install") shift 3; command python -m pip install --no-index --no-build-isolation "$@" ;;
        "-m pip wheel") shift 3; command python -m pip wheel --no-index --no-build-isolation "$@" ;;
        *) command python "$@" ;;
    esac
}
"""
MARK = "----- end of block"


def load_run_page() -> Any:
    """Return the module that knows the blocks of a page."""
    spec = importlib.util.spec_from_file_location("run_page", HERE / "run_page.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return variables for which `python` is that of a new environment with this one's packages."""
    target = tmp_path / "env"
    venv.create(target, symlinks=os.name != "nt")
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    python = target / ("Scripts" if os.name == "nt" else "bin") / "python"
    site = Path(subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip())
    (site / "borrowed.pth").write_text("\n".join(path for path in sys.path if Path(path).is_dir()), encoding="utf-8")
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("THUNDER_")}
    path = os.pathsep.join([str(python.parent), os.environ["PATH"]])
    select = "-p no:cacheprovider -q -k 'test_silu or test_chains or test_plugin or (silu and float32)'"
    return {
        **inherited,
        "PATH": path,
        "OMP_NUM_THREADS": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYTEST_ADDOPTS": select,
        "THUNDER_DISABLE_PLUGINS": ",".join(record.name for record in plugins.records()),
    }


def test_the_commands(environment: dict[str, str], tmp_path: Path) -> None:
    """All succeed, and print what the page shows. The suite tests the operator and its gradient."""
    run_page = load_run_page()
    blocks = list(run_page.blocks_of(PAGE.read_text(encoding="utf-8")))
    commands = [block.text for block in blocks if block.language == "sh"]
    script = SHELL + "".join(f"{text}\necho '{MARK}'\n" for text in commands)
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    printed = iter(done.stdout.split(f"{MARK}\n"))
    told = ""
    for block in blocks:
        if block.language == "sh":
            told = next(printed)
        elif "check" in block.marks:
            run_page.check(block, told)
    assert re.search(r"^all +3 +3 +0 +0 +\d+$", done.stdout, re.MULTILINE), done.stdout
    assert done.stdout.count("\n5 passed") == 1 and "\n6 passed" in done.stdout, done.stdout


def test_the_files() -> None:
    """The page's table names files that `new-plugin` writes."""
    files = files_of("acme", fusion=False)
    cells = re.findall(r"^\| (`.*`) \| ", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    for name in re.findall(r"`([\w./-]+)`", " ".join(cells)):
        assert any(path == name or path.startswith(name) for path in files), name
    assert "src/thunder_ex_acme/chains.py" in files_of("acme", fusion=True)
