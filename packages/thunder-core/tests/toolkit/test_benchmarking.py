# SPDX-License-Identifier: Apache-2.0
"""The frame of a benchmark."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from thunder.toolkit.benchmarking import parser, report, step


def test_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is printed, and written where the options say so."""
    path = tmp_path / "table.md"
    report("| a |", parser("A benchmark.").parse_args(["--markdown", str(path)]))
    assert capsys.readouterr().out == path.read_text(encoding="utf-8") == "| a |\n"
    assert parser(None).parse_args([]).repetitions == 5


def test_a_step() -> None:
    """Forward and backward, for the gradients of what is named."""
    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    (gradient,) = step(lambda x, y: x * y * 2, (x, y), (x,), torch.ones(3))()
    assert gradient.tolist() == [2, 2, 2]
