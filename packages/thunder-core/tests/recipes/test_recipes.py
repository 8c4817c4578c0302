# SPDX-License-Identifier: Apache-2.0
"""The recipes of docs/recipes run, and train. Those of other projects need `nox -s recipes`, which installs them."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[4]
RECIPES = ROOT / "docs" / "recipes"
REQUIRES = {
    "plain_loop": (),
    "transformers_trainer": ("transformers", "accelerate"),
    "lightning_module": ("lightning",),
}


def load(name: str) -> ModuleType:
    """Return a recipe as a module. Skips the test if a package that it needs is absent, except in the nox session."""
    for package in REQUIRES[name]:
        if importlib.util.find_spec(package) is None and not os.environ.get("TEST_RECIPES"):
            pytest.skip(f"{package} is not installed; `nox -s recipes` installs it")
    spec = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_recipe_is_tested_and_listed() -> None:
    """A recipe that nobody runs is no recipe."""
    assert {path.stem for path in RECIPES.glob("*.py")} == set(REQUIRES)
    page = (ROOT / "docs" / "recipes.md").read_text("utf-8")
    assert all(f"docs/recipes/{name}.py" in page for name in REQUIRES)


def test_plain_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It compiles two programs for each optimizer, trains, and writes its parameters and a plot."""
    plot, weights = tmp_path / "loss.svg", tmp_path / "model.pt"
    losses = load("plain_loop").main(["--steps", "15", "--plot", str(plot), "--weights", str(weights)])
    trained, tuned = losses.values()
    assert len(trained) == 15 and len(tuned) == 5
    assert trained[-1] < trained[0] - 1
    assert tuned[0] < trained[0] - 1  # it starts from the trained parameters
    assert plot.read_text("utf-8").count("<polyline") == 2 and weights.stat().st_size > 0
    assert "2 programs, 13 cache hits" in capsys.readouterr().out


@pytest.mark.skipif(not os.environ.get("TEST_RECIPES"), reason="takes a minute; `nox -s recipes` runs it")
def test_the_page_shows_what_the_plain_loop_prints(tmp_path: Path) -> None:
    """The losses on the page, and the committed plot, are those of the script; another build of torch may round."""
    command = [sys.executable, str(RECIPES / "plain_loop.py"), "--weights", "model.pt"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    shown = re.search(r"It prints\n\n```text\n(.*?)```", (ROOT / "docs" / "recipes.md").read_text("utf-8"), re.DOTALL)
    assert shown is not None
    lines = shown[1].splitlines()
    for ours, printed in zip(lines, done.stdout.splitlines()[: len(lines)], strict=True):
        numbers = [[float(x) for x in re.findall(r"\d+\.\d+", text)] for text in (ours, printed)]
        assert re.sub(r"\d+\.\d+", "", ours) == re.sub(r"\d+\.\d+", "", printed)
        assert numbers[0] == pytest.approx(numbers[1], abs=0.1)
    committed, drawn = (path.read_text("utf-8") for path in (ROOT / "docs/pictures/loss.svg", tmp_path / "loss.svg"))
    outlines = [re.sub(r'points="[^"]*"|: \d\.\d\d<', "", text) for text in (committed, drawn)]
    assert outlines[0] == outlines[1]


@pytest.mark.parametrize(("name", "steps"), [("transformers_trainer", 20), ("lightning_module", 60)])
def test_recipes_of_other_projects(name: str, steps: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The loss falls, and warm steps are cache hits."""
    losses = load(name).main(["--steps", str(steps)])
    assert losses[-1] < losses[0] - 0.3
    printed = capsys.readouterr().out
    assert "cache hits" in printed and "eager" not in printed.splitlines()[0]
