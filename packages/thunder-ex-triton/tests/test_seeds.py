# SPDX-License-Identifier: Apache-2.0
"""The document that specifies thunder's use of Triton's cross-entropy: its cells print what it shows."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

RUNNER = Path(__file__).parents[2] / "thunder-core" / "tests" / "seeds" / "runner.py"
# The interpreter would take minutes for the losses of the document.
SMALL = {"2048": "32", "50257": "101"}


@pytest.mark.skipif(not RUNNER.exists(), reason="the documents are in the repository")
def test_additional_executors() -> None:
    """It runs, and prints what it shows."""
    spec = importlib.util.spec_from_file_location("seeds_runner", RUNNER)
    assert spec is not None and spec.loader is not None
    runner = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runner)
    on_gpu = torch.cuda.is_available()
    runner.run(
        "additional-executors", device="cuda" if on_gpu else "cpu", has=["triton"], replace={} if on_gpu else SMALL
    )
