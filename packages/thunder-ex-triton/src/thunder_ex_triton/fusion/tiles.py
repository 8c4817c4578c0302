# SPDX-License-Identifier: Apache-2.0
"""How a kernel's work is cut into tiles and programs: rules, measured on an H200.

Memory is what bounds these kernels, and it is busy as long as enough is on its way. A kernel that goes over rows one
after the other has those that come next copied into shared memory while it computes (`stages`); one with a program for
each row relies on other programs being at another point, and the less each of them holds, the more there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from thunder_ex_triton.fusion.iteration_space import Space
from thunder_ex_triton.fusion.lines import DRAW, Line
from thunder_ex_triton.launch import blocks, power_of_two

__all__ = ["Tiling", "pieces_pay", "tilings"]

# What a multiprocessor has of shared memory for rows to come; some is left for reductions.
_SHARED = 200 * 1024
# How much is read and written of a row for each warp of its program, so that the rows that are worked on at a time, by
# half as many warps as there may be, are still in the cache when they are gone over again.
_CACHED = 13 * 1024


class Tiling(NamedTuple):
    """Programs (rows, columns), the constants of the template, warps."""

    programs: tuple[int, int]
    numbers: tuple[int, ...]
    warps: int


class Kernel(Protocol):
    """What is asked of a kernel's text."""

    @property
    def template(self) -> str:
        """How it goes over its space."""
        ...

    @property
    def read(self) -> int:
        """The bytes that it reads for an element of its space."""
        ...

    @property
    def written(self) -> int:
        """The bytes that a kernel of long rows writes for an element of its space."""
        ...

    @property
    def tensors(self) -> int:
        """How many tensors it reads and writes."""
        ...

    @property
    def passes(self) -> int:
        """How many times it goes over a long row."""
        ...

    @property
    def operations(self) -> int:
        """How many lines it has."""
        ...


def pieces_pay(columns: int, tiles_read: int, lines: Sequence[Line]) -> bool:
    """Check whether a row is read again for each reduction, from the cache: it leaves registers to more programs at a
    time.

    What is computed of it is computed again too, and should be little. Rows that begin anywhere are read in whole
    vectors only so.
    """
    few = tiles_read == 1 or (tiles_read == 2 and columns % 8 != 0)
    return few and columns > 4096 and len(lines) <= 40 and all(line.kind != DRAW for line in lines)


def tilings(source: Kernel, space: Space, multiprocessors: int, partial: int) -> list[Tiling]:
    """Return how a kernel may be launched: by the rule, and in up to three other ways that may be faster.

    `partial` says how many programs left sums of columns to the one that finishes.
    """
    rows, columns = space.rows, space.columns
    wide = power_of_two(columns)
    if source.template == "elements":
        found = _of_elements(source, rows)
    elif source.template == "rows":
        found = _of_rows(rows, wide)
    elif source.template == "long":  # few at a time, so that a row is still in the cache when it is gone over again
        pieces = _piece(columns, source.passes, source.read + source.written), (4096, 8), (8192, 16), (16384, 32)
        found = [Tiling((rows, 1), (1, piece), warps) for piece, warps in pieces if piece <= max(wide, 4096)]
    elif source.template == "finish":
        wide = min(wide, max(8, min(power_of_two(columns // 256), 128)))
        tall = min(power_of_two(partial), 128, 2048 // wide)
        found = [Tiling((blocks(columns, wide), 1), (partial, tall, wide), 4)]
    elif space.by_row:
        found = _of_rows_and_columns(source.read, rows, wide, multiprocessors)
    else:
        found = _of_columns(rows, columns, multiprocessors)
    return list(dict.fromkeys(found))[:4]


def _of_elements(source: Kernel, elements: int) -> list[Tiling]:
    block = (
        512
        if source.operations > 250 or source.tensors > 5
        else 2048
        if source.tensors <= 3 and source.operations < 100
        else 1024
    )
    tiles = (min(n, power_of_two(elements)) for n in (block, block // 2, block * 2))
    return [Tiling((blocks(elements, n), 1), (n,), 4) for n in tiles]


def _of_rows(rows: int, wide: int) -> list[Tiling]:
    tall = max(1, min(2048 // wide, power_of_two(rows)))
    warps = _warps(tall * wide)
    others = (tall, warps), (tall, warps * 2), (tall, max(warps // 2, 2)), (min(tall * 2, power_of_two(rows)), warps)
    return [Tiling((blocks(rows, tall), 1), (tall, wide), warps) for tall, warps in others]


def _of_rows_and_columns(read: int, rows: int, wide: int, multiprocessors: int) -> list[Tiling]:
    tall, each, warps = _tile_of_rows(wide)
    found = []
    for t, e, w in (
        (tall, each, warps),
        (tall, each * 2, warps),
        (tall, each, min(warps * 2, 32)),
        (tall * 2, each, warps),
    ):
        t = min(t, power_of_two(rows))
        stages = _stages(t * wide * read * e, 3 if w > 1 else 1)
        found.append(Tiling((min(blocks(rows, t), multiprocessors * e), 1), (t, wide, stages), w))
    return found


def _of_columns(rows: int, columns: int, multiprocessors: int) -> list[Tiling]:
    wide = _exact(columns)
    across = blocks(columns, wide)
    found = []
    for tile, each in ((2048, 4), (4096, 4), (2048, 8), (4096, 2)):
        tall = max(1, min(tile // wide, power_of_two(rows)))
        programs = min(blocks(rows, tall), max(1, multiprocessors * each // across))
        found.append(Tiling((programs, across), (tall, wide, 3), 4))
    return found


def _piece(columns: int, passes: int, moved: int) -> tuple[int, int]:
    """Return how much of a long row is taken at a time, and by how many warps; `moved` are the bytes of an element."""
    if columns % 8:  # it begins anywhere: pieces at its ends cost twice as much, and should be small
        warps = min(max(4, power_of_two(blocks(columns * moved, _CACHED))), 32)
        return 256 * warps, warps
    if columns <= 16384:
        return 4096, 8 if columns <= 8192 and passes > 2 else 16
    whole = columns % 16384 == 0 or columns > 65536
    return 16384 if whole else 8192, 32 if columns > 32768 else 16


def _tile_of_rows(wide: int) -> tuple[int, int, int]:
    """Of a kernel that reduces rows and columns: rows at a time, programs for each multiprocessor, warps."""
    if 64 < wide <= 256:  # sums of a warp's own rows take no shared memory, and other warps are at another point
        return 512 // wide, 16, 1
    if wide == 512:
        return 4, 8, 2
    if wide <= 2048:
        return 4096 // wide, 2, 4
    if wide <= 4096:
        return 2, 1, 8
    return 1, 1, 16 if wide <= 8192 else 32


def _stages(shared: int, most: int) -> int:
    """Return how many rows are on their way, one of them being computed with: as many as shared memory holds."""
    return max(1, min(most, _SHARED // max(shared, 1) + 1))


def _exact(columns: int) -> int:
    """Return the width of tiles that leaves least of the last one empty; of equal ones the largest."""
    return min((1024, 512, 256, 128), key=lambda w: blocks(columns, w) * w) if columns > 128 else power_of_two(columns)


def _warps(elements: int) -> int:
    """Return how many warps hold a tile."""
    return 4 if elements <= 4096 else 8 if elements <= 8192 else 16
