# SPDX-License-Identifier: Apache-2.0
"""Changes to the lines of kernels that loop over long rows: eviction policies, and accesses in whole vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from thunder_ex_triton.fusion.lines import Line, Loop, lines_in, mapped

__all__ = ["held", "in_whole_vectors"]

_IN_ROW = "xm & rm"  # the boundary mask of a tile of rows
_LANES = "(row + lane)"


def held(items: Sequence[Line | Loop]) -> list[Line | Loop]:
    """Set eviction policies. A row stays in the cache while a later loop reads it, and is evicted first afterwards."""

    def pointer_of(line: Line) -> str | None:
        return line.access.pointer if line.is_load and line.access and line.access.mask.startswith(_IN_ROW) else None

    left = Counter(filter(None, map(pointer_of, lines_in(items))))
    again = {pointer for pointer, count in left.items() if count > 1}

    def with_policy(line: Line) -> Line:
        pointer = pointer_of(line)
        if pointer not in again or line.access is None:
            return line
        left[pointer] -= 1
        return line._replace(access=line.access._replace(policy="evict_last" if left[pointer] else "evict_first"))

    return mapped(items, with_policy)


def in_whole_vectors(items: Sequence[Line | Loop], columns: int, size: int, integer: str) -> list[Line | Loop]:
    """Rewrite lines so that unaligned rows are read and written in whole vectors of `size` elements.

    Interior chunks begin after the vector that holds the row's first element. Interior chunks need no mask, and a mask
    would split vectors. The first vector and the remainder at the end of the row come afterwards, usually as one chunk.
    In this chunk, one mask per vector keeps full vectors whole.
    """
    place = f"(x * {columns} + r)"

    def is_of_row(line: Line) -> bool:
        return line.access is not None and (line.access.offset, line.access.mask) == (place, _IN_ROW)

    if columns % size == 0 or not any(map(is_of_row, lines_in(items))):
        return list(items)
    chunks = f"{columns - size} // RB"  # the number of interior chunks, after the first vector
    middle = (
        f"for start in range({size}, {chunks} * RB + {size}, RB):",
        f"lane = (start + tl.arange(0, RB){integer})[None, :]",
        "r = lane - before",
        "rm = tl.full((1, RB), True, tl.int1)",
    )
    ends = (
        f"for end in range(0, {columns + size - 1} - {chunks} * RB, RB):",
        f"begin = tl.where(vector + end > 0, end + {chunks} * RB, 0)",
        f"lane = begin + tl.arange(0, RB)[None, :]{integer}",
        "r = lane - before",
        f"rm = (r >= 0) & (r < {columns})",
        "first = begin + vector - before",
        f"whole = (first >= 0) & (first <= {columns - size})",
        "rest = rm & (whole == 0)",
    )
    out: list[Line | Loop] = [
        Line(f"before = (tl.program_id(0){integer} * {columns} % {size}).to(tl.int32)"),
        Line(f"row = tl.multiple_of(tl.program_id(0){integer} * {columns} - before, {size})"),
        Line(f"vector = (tl.arange(0, RB) // {size} * {size})[None, :]"),
    ]
    for item in items:
        if isinstance(item, Loop):
            inside = [_unmasked(line) if is_of_row(line) else line for line in item.body]
            at_ends = [_by_vectors(line) if is_of_row(line) else line for line in item.body]
            out += [Loop(middle, tuple(inside)), Loop(ends, tuple(at_ends))]
        else:
            out.append(item)
    return out


def _unmasked(line: Line) -> Line:
    assert line.access is not None
    return line._replace(access=line.access._replace(offset=_LANES, mask=""))


def _by_vectors(line: Line) -> Line:
    """Return a load or store with one mask per vector."""
    assert line.access is not None
    pointer, _, _, value, policy, *_ = line.access
    if value is None:
        return line._replace(instead=f'load_row({pointer} + {_LANES}, whole, rest, "{policy}")')
    return line._replace(instead=f"store_row({pointer} + {_LANES}, {value}, whole, rest)")
