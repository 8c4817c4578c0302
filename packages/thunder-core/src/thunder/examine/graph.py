# SPDX-License-Identifier: Apache-2.0
"""The data flow of a program as a drawing: a layer for each step, and lines between operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from thunder.examine.lines import Line

__all__ = ["MAX_NODES", "Drawing", "Node", "draw"]

MAX_NODES = 400
_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 150, 26, 18, 26, 10


class Node(NamedTuple):
    """An operation: its text, executor, tooltip, and the position of its upper left corner."""

    text: str
    executor: str
    title: str
    x: float
    y: float
    number: int


class Drawing(NamedTuple):
    """Nodes, and lines as SVG paths. `left_out` is the number of operations that are not drawn."""

    nodes: list[Node]
    paths: list[str]
    width: int
    height: int
    left_out: int
    node_width: int = _WIDTH
    node_height: int = _HEIGHT


def draw(lines: Sequence[Line]) -> Drawing:
    """Place operations in layers: an operation is below all operations whose results it reads."""
    shown = lines[:MAX_NODES]
    producer: dict[str, int] = {}
    sources: list[list[int]] = []
    layer: list[int] = []
    for i, line in enumerate(shown):
        before = list(dict.fromkeys(producer[p.name] for p in line.args if p.name in producer))
        sources.append(before)
        layer.append(1 + max([layer[j] for j in before], default=-1))
        producer.update((p.name, i) for p in line.outs)
    column = _columns(layer, sources)
    x = [_MARGIN + c * (_WIDTH + _GAP_X) for c in column]
    y = [_MARGIN + n * (_HEIGHT + _GAP_Y) for n in layer]
    nodes = [Node(_label(line), line.executor, line.text, x[i], y[i], line.number) for i, line in enumerate(shown)]
    paths = [
        _curve(x[j] + _WIDTH / 2, y[j] + _HEIGHT, x[i] + _WIDTH / 2, y[i]) for i, js in enumerate(sources) for j in js
    ]
    width = int(max([*x, 0]) + _WIDTH + _MARGIN)
    height = int(max([*y, 0]) + _HEIGHT + _MARGIN)
    return Drawing(nodes, paths, width, height, len(lines) - len(shown))


def _columns(layer: Sequence[int], sources: Sequence[Sequence[int]]) -> list[float]:
    """Return a column for each operation: near those whose results it reads, and without overlaps in a layer."""
    column = [0.0] * len(layer)
    for number in range(max(layer, default=-1) + 1):
        members = [i for i, n in enumerate(layer) if n == number]
        wanted = {i: sum(column[j] for j in sources[i]) / len(sources[i]) if sources[i] else 0.0 for i in members}
        right = -1.0
        for i in sorted(members, key=lambda i: (wanted[i], i)):
            column[i] = right = max(wanted[i], right + 1.0)
    return column


def _label(line: Line) -> str:
    text = ", ".join(line.computes) if line.op.sym.is_fusion else line.op.sym.name
    return text if len(text) <= 20 else f"{text[:19]}…"


def _curve(x0: float, y0: float, x1: float, y1: float) -> str:
    middle = (y0 + y1) / 2
    return f"M{x0:.0f} {y0:.0f} C{x0:.0f} {middle:.0f} {x1:.0f} {middle:.0f} {x1:.0f} {y1:.0f}"
