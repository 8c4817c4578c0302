# SPDX-License-Identifier: Apache-2.0
"""The documents that specify the system run and print what they show; cells that need a plugin run in its tests."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
DESIGN = HERE.parents[3] / "docs" / "design.md"
DOCUMENTS = sorted(path.stem for path in HERE.glob("*.md") if path.stem != "README")
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.filterwarnings("ignore:__array_wrap__ must accept")  # NumPy and torch do not agree yet on ufuncs' results
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents(document: str, device: str) -> None:
    """Their cells run, and print what they show."""
    spec = importlib.util.spec_from_file_location("seeds_runner", HERE / "runner.py")
    assert spec is not None and spec.loader is not None
    runner = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runner)
    runner.run(document, device=device)


def test_differences_have_reasons() -> None:
    """What a document says otherwise than thunder has a line in docs/design.md, and each line is about something."""
    texts = {name: (HERE / f"{name}.md").read_text(encoding="utf-8") for name in DOCUMENTS}
    used = {reason for text in texts.values() for found in re.findall("^```.* here: (.*)$", text, re.M)
            for reason in found.split(", ")}  # fmt: skip
    needed = set(re.findall("^<!-- needs: (.*) -->$", "\n".join(texts.values()), re.M))
    _, _, section = DESIGN.read_text(encoding="utf-8").partition(
        "\n## Where the seeds are not followed to the letter\n"
    )
    given = set(re.findall(r"^\| `([^`]*)` \|", section.partition("\n## ")[0], re.M))
    assert used == given
    assert needed == {"apex", "triton"}
