# SPDX-License-Identifier: Apache-2.0
"""The documents that specify thunder, with apex's executor: their cells print what they show."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

RUNNER = Path(__file__).parents[2] / "thunder-core" / "tests" / "seeds" / "runner.py"
# On the CPU the stand-ins compute smaller losses.
SMALL = {"2048": "32", "50257": "101"}


@pytest.mark.skipif(not RUNNER.exists(), reason="the documents are in the repository")
@pytest.mark.filterwarnings("ignore:__array_wrap__ must accept")
@pytest.mark.parametrize("document", ["additional-executors", "extending-thunder"])
def test_documents(document: str, device: str) -> None:
    """They run, and print what they show."""
    spec = importlib.util.spec_from_file_location("seeds_runner", RUNNER)
    assert spec is not None and spec.loader is not None
    runner = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runner)
    runner.run(document, device=device, has=["apex"], replace=SMALL if device == "cpu" else {})
