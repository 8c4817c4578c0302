# SPDX-License-Identifier: Apache-2.0
"""The committed pictures of the documentation are what docs/draw_pictures.py draws, from numbers of the tables."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).resolve().parents[4] / "docs"
RESULTS = json.loads((DOCS / "pictures" / "results.json").read_text("utf-8"))


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


@pytest.mark.parametrize("result", RESULTS, ids=[result["file"] for result in RESULTS])
def test_a_charts_numbers_stand_on_the_page(result: dict) -> None:
    """All numbers of a chart stand in one row of the first table of docs/performance.md, thunder's first."""
    table = (DOCS / "performance.md").read_text("utf-8").partition("\n## ")[0]
    rows = [re.findall(r"[\d.]+", row.partition("|")[2].partition("|")[2]) for row in table.splitlines()]
    wanted = [f"{value:g}" for value in result["bars"].values()]
    assert any(set(wanted) <= set(row) for row in rows), wanted
