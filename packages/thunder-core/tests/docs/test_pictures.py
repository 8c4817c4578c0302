# SPDX-License-Identifier: Apache-2.0
"""The committed pictures of the documentation are what docs/draw_pictures.py draws, from numbers of the tables."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).resolve().parents[4] / "docs"
MEASUREMENTS = sorted((DOCS / "measurements").glob("*.json"))


@pytest.fixture(scope="module")
def drawing() -> ModuleType:
    """Return docs/draw_pictures.py as a module."""
    spec = importlib.util.spec_from_file_location("draw_pictures", DOCS / "draw_pictures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pictures_are_up_to_date(drawing: ModuleType) -> None:
    """`python docs/draw_pictures.py` changes nothing, and a page shows each picture."""
    pages = "".join(page.read_text("utf-8") for page in DOCS.rglob("*.md"))
    for name, text in drawing.pictures().items():
        assert (DOCS / "pictures" / name).read_text("utf-8") == text, f"run `python docs/draw_pictures.py` for {name}"
        assert f"pictures/{name}" in pages


@pytest.mark.parametrize("path", MEASUREMENTS, ids=lambda path: path.stem)
def test_a_page_has_the_measured_numbers(path: Path) -> None:
    """Each row of a file in docs/measurements stands on a page of docs/performance, below its command."""
    measured = json.loads(path.read_text("utf-8"))
    pages = [page.read_text("utf-8") for page in sorted((DOCS / "performance").glob("*.md"))]
    rows = [line for page in pages for line in page.partition(measured["command"])[2].splitlines()]
    assert rows, f"no page of docs/performance names {measured['command']}"
    for row in measured["rows"]:
        cells = [row["name"], *row["cells"].values()]
        assert any(line.startswith("| ") and in_order(cells, line) for line in rows), cells


def in_order(cells: list[str], line: str) -> bool:
    """Return whether cells stand in a line of a table, in this order."""
    found = iter(cell.strip() for cell in line.split("|"))
    return all(cell in found for cell in cells)
