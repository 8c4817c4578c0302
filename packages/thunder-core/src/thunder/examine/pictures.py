# SPDX-License-Identifier: Apache-2.0
"""The graph and the timeline of a report as pictures, for slides, issues and papers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thunder.core.figures import COLORS, FAINT, PANEL, TEXT, new_figure, write_figure
from thunder.core.tables import in_time
from thunder.examine.graph import Drawing
from thunder.examine.timeline import Lane, Timeline

__all__ = ["write_graph", "write_timeline"]

_TITLE, _LEGEND = 30, 40  # pixels
_LABELLED = 0.04  # the share of the timeline from which on a span has room for its name


def write_graph(drawings: Mapping[str, Drawing], path: str | Path) -> None:
    """Draw the data flow of each program of a call: a box for each operation, in the color of its executor."""
    executors = dict.fromkeys(node.executor or "Python" for each in drawings.values() for node in each.nodes)
    colors = {name: COLORS[i % len(COLORS)] for i, name in enumerate(executors)}
    heights = [drawing.height + _TITLE for drawing in drawings.values()]
    width = max(300, *[drawing.width for drawing in drawings.values()])
    figure = new_figure(width, sum(heights) + _LEGEND)
    axes = figure.subplots(len(drawings), 1, squeeze=False, height_ratios=heights)
    for axis, (name, drawing) in zip(axes.flat, drawings.items()):
        missing = f" ({drawing.left_out} more operations are not drawn)" if drawing.left_out else ""
        axis.set_title(f"{name}{missing}", loc="left", fontsize=9, color=TEXT)
        axis.set(xlim=(0, width), ylim=(drawing.height, 0), aspect="equal")
        axis.set_axis_off()
        _draw_graph(axis, drawing, colors)
    from matplotlib.patches import Patch

    keys = [Patch(color=color, label=name) for name, color in colors.items()]
    figure.legend(handles=keys, loc="outside lower left", ncols=4, frameon=False, fontsize=8)
    write_figure(figure, path)


def _draw_graph(axis: Any, drawing: Drawing, colors: Mapping[str, str]) -> None:
    from matplotlib.patches import FancyBboxPatch, PathPatch
    from matplotlib.path import Path as Curve

    for text in drawing.paths:
        # As `draw` writes them: "Mx y Cx y x y x y".
        numbers = [float(word.lstrip("MC")) for word in text.split()]
        points = list(zip(numbers[::2], numbers[1::2]))
        axis.add_patch(PathPatch(Curve(points, [1, 4, 4, 4]), fill=False, edgecolor=FAINT, linewidth=0.7, alpha=0.6))
    for node in drawing.nodes:
        corner, size = (node.x, node.y), (drawing.node_width, drawing.node_height)
        box = FancyBboxPatch(corner, *size, boxstyle="round,pad=0,rounding_size=4", facecolor=PANEL)
        box.set(edgecolor=colors[node.executor or "Python"], linewidth=1.2)
        axis.add_patch(box)
        middle = (node.x + drawing.node_width / 2, node.y + drawing.node_height / 2)
        axis.text(*middle, node.text, ha="center", va="center", fontsize=7, color=TEXT, parse_math=False)


def write_timeline(timeline: Timeline, path: str | Path) -> None:
    """Draw the lanes of a call: a row for each thread of the host and stream of the GPU, nested by depth."""
    heights = [18 * lane.depth + _TITLE for lane in timeline.lanes] or [_TITLE]
    figure = new_figure(1200, sum(heights) + _LEGEND)
    axes = figure.subplots(len(heights), 1, squeeze=False, sharex=True, height_ratios=heights)
    for axis, lane in zip(axes.flat, timeline.lanes):
        axis.set_title(lane.name, loc="left", fontsize=9, color=TEXT)
        axis.set(xlim=(0, max(timeline.microseconds, 1e-3)), ylim=(lane.depth, 0))
        axis.yaxis.set_visible(False)
        axis.tick_params(labelsize=8, colors=FAINT)
        for side in ("left", "right", "top"):
            axis.spines[side].set_visible(False)
        _draw_lane(axis, lane, timeline.microseconds)
    axes.flat[-1].xaxis.set_major_formatter(lambda found, _: in_time(found * 1e-6) if found else "0")
    words = f"the recorded call; a call takes {in_time(timeline.seconds)} without the recorder"
    axes.flat[-1].set_xlabel(words, fontsize=8, color=FAINT)
    write_figure(figure, path)


def _draw_lane(axis: Any, lane: Lane, whole: float) -> None:
    for depth in range(lane.depth):
        spans = [span for span in lane.spans if span.depth == depth]
        bars = [(span.start, span.end - span.start) for span in spans]
        color = COLORS[depth % len(COLORS)]
        axis.broken_barh(bars, (depth + 0.05, 0.9), facecolors=color, edgecolors="white", linewidth=0.3)
        for span in spans:
            share = (span.end - span.start) / max(whole, 1e-3)
            if share >= _LABELLED:
                room = int(share * 230)  # characters of this size
                # Ranges of compiled programs: thunder.jit(Net) | layers.2 (Linear) | model.py:12.
                name = span.name.split(" | ", 1)[-1]
                name = name if len(name) <= room else f"{name[: room - 1]}…"
                axis.text(span.start, depth + 0.5, f" {name}", va="center", fontsize=6, color="white", clip_on=True,
                          parse_math=False)  # fmt: skip
