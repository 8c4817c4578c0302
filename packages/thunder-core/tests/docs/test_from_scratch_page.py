# SPDX-License-Identifier: Apache-2.0
"""The page that builds a small compiler keeps its promises: 200 lines, none of thunder (test_docs_code.py runs it)."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[4] / "docs" / "from_scratch.md"
CODE = "".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL))


def test_it_is_small() -> None:
    """The Python of the page has at most 200 lines that are not empty."""
    assert 100 < sum(bool(line.strip()) for line in CODE.splitlines()) <= 200


def test_it_uses_nothing_of_thunder() -> None:
    """All that is imported is torch and the standard library."""
    imported = re.findall(r"^(?:import|from) (\w+)", CODE, re.MULTILINE)
    assert "torch" in imported
    assert "thunder" not in CODE
