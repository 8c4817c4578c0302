# SPDX-License-Identifier: Apache-2.0
"""Reports as pictures. The text of an SVG is searched for what the picture has to show."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import thunder
from thunder.core.figures import new_figure, write_figure
from thunder.examine.pictures import write_timeline
from thunder.examine.timeline import Lane, Span, Timeline
from thunder.execution.memory_estimate import MemoryLine, MemoryReport


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x)) * 2


@pytest.fixture
def matplotlib() -> Any:
    return pytest.importorskip("matplotlib")


def svg(report: Any, folder: Path) -> str:
    path = folder / "picture.svg"
    report.picture(path)
    return path.read_text(encoding="utf-8")


def test_graph(matplotlib: Any, tmp_path: Path) -> None:
    """Each operation is a box with its name, forward and backward, and each executor has a key."""
    report = thunder.examine(Net(), torch.ones(2, 4))
    text = svg(report, tmp_path)
    for word in ("forward", "backward", "linear", "relu", "torch", "matmul"):
        assert f">{word}<" in text, word
    assert svg(report, tmp_path) == text  # pictures are reproducible


def test_memory(matplotlib: Any, tmp_path: Path) -> None:
    """The peak, both programs and the largest values are named."""
    report = thunder.examine.memory(Net(), torch.ones(2, 4))
    text = svg(report, tmp_path)
    for word in ("forward", "backward", "alive at the peak", report.at_peak[0][0]):
        assert word in text, word


def test_memory_of_a_program_without_lines(matplotlib: Any, tmp_path: Path) -> None:
    """An empty program, and one with more values than there is room for."""
    assert "alive at the peak" in svg(MemoryReport(0, []), tmp_path)
    many = MemoryReport(8, [("forward", [MemoryLine("t = f()", 8, 16)])], [(f"t{i}", 8) for i in range(20)])
    assert "8 more" in svg(many, tmp_path)


def test_timeline(matplotlib: Any, tmp_path: Path) -> None:
    """Lanes and long events have names, which are not read as formulas."""
    spans = [Span("thunder.jit(Net) | a $x$ b_1 | net.py:3", 0.0, 90.0, 0), Span("too short for a name", 1.0, 2.0, 1)]
    timeline = Timeline([Lane("host, thread 0", spans), Lane("GPU, stream 0", [])], 100.0, 1e-4, {})
    write_timeline(timeline, tmp_path / "timeline.svg")
    text = (tmp_path / "timeline.svg").read_text(encoding="utf-8")
    assert "host, thread 0" in text and "GPU, stream 0" in text and "a $x$ b_1 | net.py:3" in text
    assert "too short" not in text


def test_profile(matplotlib: Any, tmp_path: Path) -> None:
    """A real profile is drawn, also as PNG."""
    thunder.examine.profile(Net(), torch.ones(2, 4), rounds=1).picture(tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_formats(matplotlib: Any, tmp_path: Path) -> None:
    """The suffix is the format, and others are errors; a very long PNG keeps within the limit of its format."""
    with pytest.raises(ValueError, match=r"'graph.txt' must end in .png, .svg, .pdf"):
        write_figure(new_figure(100, 100), "graph.txt")
    write_figure(new_figure(100, 100), tmp_path / "graph.PDF")
    assert (tmp_path / "graph.PDF").read_bytes().startswith(b"%PDF")
    write_figure(new_figure(20, 80_000), tmp_path / "long.png")
    header = (tmp_path / "long.png").read_bytes()[16:24]
    assert int.from_bytes(header[4:], "big") < 2**16


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'thunder-core\[pictures\]'"):
        thunder.examine(Net(), torch.ones(2, 4)).picture(tmp_path / "graph.svg")
