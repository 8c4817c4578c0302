# SPDX-License-Identifier: Apache-2.0
"""Plain text tables for the terminal, and numbers with units in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["format_table", "in_count", "in_time"]


def format_table(header: Sequence[str], rows: Iterable[Sequence[object]], indent: str = "") -> str:
    """Format rows under a header, in aligned columns. The last column is not padded."""
    cells = [list(header), *([("" if cell is None else str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = []
    for row in cells:
        padded = [cell.ljust(width) for cell, width in zip(row, widths)]
        lines.append((indent + "  ".join(padded)).rstrip())
    return "\n".join(lines)


def in_time(seconds: float) -> str:
    """Format a duration: `1.50 s`, `2.00 ms`, `3.1 us`."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.2f} {unit}"
    return f"{seconds * 1e6:.1f} us"


def in_count(n: int) -> str:
    """Format a large number: `12`, `1.5 k`, `2.0 M`, `3.1 G`, `1.0 T`."""
    for unit, size in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return str(n)
