# SPDX-License-Identifier: Apache-2.0
"""The code on the pages of the documentation runs and prints what the page shows (see run_page.py)."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from thunder.cli import build_parser
from thunder.cli.conformance import split

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[3]


def pages() -> list[Path]:
    """Every page with Python on it."""
    found = [ROOT / "README.md"]
    for pattern in ("docs/*.md", "docs/howto/*.md", "docs/tutorials/*.md", "packages/*/README.md"):
        found += sorted(ROOT.glob(pattern))
    return [page for page in found if page.exists() and re.search(r"^```python", page.read_text("utf-8"), re.MULTILINE)]


def run_page(page: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a page in an interpreter of its own, so that what one page registers no other page sees."""
    command = [sys.executable, str(HERE / "run_page.py"), str(page)]
    environment = {**os.environ, "THUNDER_EXECUTORS": "", "THUNDER_DISABLE_PLUGINS": ""}
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page_runs(page: Path, tmp_path: Path) -> None:
    """A reader who types the page sees what the page says."""
    result = run_page(page, tmp_path)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"


GOOD = """\
# A page

```python
x = 1
```

Text in between.

```{code-block} python
this is shown, and not run
```

<!-- raises: ValueError -->
```python
print(x, "(took 12 milliseconds)")
raise ValueError("wrong size")
```
<!-- check -->
```text
1 (took 0 milliseconds)
ValueError: wrong ...
```
```python
print("not shown on the page")
```
```text
anything
```
```python
print(x + 1)
```
<!-- check -->
```text
2
```
"""


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("", "", ""),
        ("print(x + 1)", "print(x + 2)", "line 33: the page shows another output"),
        ('raise ValueError("wrong size")', "", "line 14: the page announces ValueError"),
        ("x = 1", "x = unknown", 'page.md", line 4'),
        ("```text\n2\n```", "```text\n2\n", "line 33: this fence is never closed"),
    ],
    ids=["good", "output", "no error", "error", "fence"],
)
def test_run_page(old: str, new: str, complaint: str, tmp_path: Path) -> None:
    """The runner accepts a page that tells the truth, and names the line of one that does not."""
    page = tmp_path / "page.md"
    page.write_text(GOOD.replace(old, new) if old else GOOD, encoding="utf-8")
    result = run_page(page, tmp_path)
    assert (result.returncode == 0) == (complaint == ""), result.stderr
    assert complaint in result.stderr


# -- what else a page tells its reader to type ------------------------------------------------------------------------
PAGES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("docs/[!_]*/*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Commands of thunder's have arguments that it takes, and scripts and jobs are there."""
    text = page.read_text("utf-8")
    for line in re.findall(r"^python -m thunder (.*)$", text, re.MULTILINE):
        arguments, _ = split(shlex.split(line, comments=True))
        try:
            build_parser().parse_args(arguments)
        except SystemExit:
            pytest.fail(f"`python -m thunder {line}`: {capsys.readouterr().err}")
    for script in re.findall(r"packages/[\w./-]+\.py\b", text):
        assert (ROOT / script).exists(), script
    noxfiles = "".join((ROOT / name).read_text("utf-8") for name in ("noxfile.py", ".ci/releasing.py"))
    jobs = set(re.findall(r"^def (\w+)\(session", noxfiles, re.MULTILINE))
    for job in re.findall(r"nox -s (\w+)", text):
        assert job in jobs, job
