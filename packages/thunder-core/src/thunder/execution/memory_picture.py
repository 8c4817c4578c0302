# SPDX-License-Identifier: Apache-2.0
"""The memory of a program as a picture: live bytes at each line, and the values that are alive at the peak."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Protocol

from thunder.core.figures import COLORS, FAINT, TEXT, new_figure, write_figure
from thunder.core.nbytes import in_bytes

__all__ = ["write_memory"]

_LIGHT = "#a9c8f0"
_SHOWN = 12  # values at the peak


class Memory(Protocol):
    """What is drawn of a `MemoryReport`. Lines have `live` and `peak` bytes."""

    inputs: int
    at_peak: list[tuple[str, int]]
    sections: dict[str, list[Any]]

    @property
    def lines(self) -> list[Any]: ...

    @property
    def peak(self) -> int: ...


def write_memory(report: Memory, path: str | Path) -> None:
    """Draw a report to a file: on the left the lines in execution order, on the right the values at the peak."""
    figure = new_figure(1200, 420)
    left, right = figure.subplots(1, 2, width_ratios=[2.2, 1])
    for axis in (left, right):
        for side in ("right", "top"):
            axis.spines[side].set_visible(False)
        axis.tick_params(labelsize=7, colors=FAINT)
    _draw_lines(left, report)
    _draw_values(right, report)
    write_figure(figure, path)


def _draw_lines(axis: Any, report: Memory) -> None:
    from matplotlib.patches import Patch
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    peaks = [report.inputs, *[line.peak for line in report.lines]]
    live = [report.inputs, *[line.live for line in report.lines]]
    edges = range(len(peaks) + 1)
    axis.stairs(peaks, edges, fill=True, color=_LIGHT)
    axis.stairs(live, edges, color=COLORS[0], linewidth=1, label="after the line")
    axis.stairs([report.inputs], [0, len(peaks)], color=FAINT, linewidth=1, linestyle=":", label="inputs")
    at = peaks.index(max(peaks))
    axis.plot([at + 0.5], [peaks[at]], "o", color=COLORS[4], markersize=5, label=f"peak: {in_bytes(report.peak)}")
    start = 1
    for number, (name, lines) in enumerate(report.sections.items()):
        if number:
            axis.axvline(start, color=FAINT, linewidth=0.8, linestyle="--")
        axis.annotate(f" {name}", (start, 1.0), xycoords=("data", "axes fraction"), va="top", fontsize=8, color=TEXT)
        start += len(lines)
    axis.set(xlim=(0, len(peaks)), ylim=(0, max(*peaks, 1) * 1.12))
    axis.set_xlabel("line of the program", fontsize=8, color=FAINT)
    axis.yaxis.set_major_locator(MultipleLocator(2 ** math.ceil(math.log2(max(*peaks, 8) / 8))))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda size, _: in_bytes(int(size))))
    keys = [Patch(color=_LIGHT, label="while the line runs"), *axis.get_legend_handles_labels()[0]]
    axis.legend(handles=keys, fontsize=7, facecolor="white", framealpha=1, edgecolor="none", loc="lower right")


def _draw_values(axis: Any, report: Memory) -> None:
    shown = report.at_peak[:_SHOWN]
    rest = report.at_peak[_SHOWN:]
    if rest:
        shown = [*shown, (f"{len(rest)} more", sum(size for _, size in rest))]
    positions = range(len(shown))
    axis.barh(positions, [size for _, size in shown], color=COLORS[0], height=0.7)
    for position, (_, size) in zip(positions, shown):
        axis.text(size, position, f" {in_bytes(size)}", va="center", fontsize=7, color=FAINT)
    axis.set_yticks(positions, [name for name, _ in shown], parse_math=False)
    axis.xaxis.set_visible(False)
    axis.spines["bottom"].set_visible(False)
    axis.invert_yaxis()
    axis.margins(x=0.25)
    axis.set_title("alive at the peak", loc="left", fontsize=9, color=TEXT)
