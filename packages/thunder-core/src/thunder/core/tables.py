# SPDX-License-Identifier: Apache-2.0
"""Plain text tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["format_table"]


def format_table(header: Sequence[str], rows: Iterable[Sequence[object]], indent: str = "") -> str:
    """Format rows under a header, in aligned columns. The last column is not padded."""
    cells = [list(header), *([("" if cell is None else str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = []
    for row in cells:
        padded = [cell.ljust(width) for cell, width in zip(row, widths)]
        lines.append((indent + "  ".join(padded)).rstrip())
    return "\n".join(lines)
