# SPDX-License-Identifier: Apache-2.0
"""How a kernel's work is cut into tiles and programs: rules, measured on an H200.

Memory is what bounds these kernels, and it is busy as long as enough is on its way. A kernel that goes over rows one
after the other has those that come next copied into shared memory while it computes (`stages`); one with a program for
each row relies on other programs being at another point. The first is faster the more a program has to wait for between
reading a row and writing it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from thunder_ex_triton.fusion.space import Space
from thunder_ex_triton.launch import blocks, power_of_two

__all__ = ["Tiling", "tiling", "turns_pay"]

# What a multiprocessor has of shared memory for rows to come; some is left for reductions.
_SHARED = 200 * 1024


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
    def tensors(self) -> int:
        """How many tensors it reads and writes."""
        ...

    @property
    def operations(self) -> int:
        """How many lines it has."""
        ...


def turns_pay(columns: int, reductions: int, tiles_read: int) -> bool:
    """Whether programs should take rows in turn: where a row is large and is waited for more than once."""
    return tiles_read == 1 and reductions > 1 and power_of_two(columns) >= 8192


def tiling(source: Kernel, space: Space, multiprocessors: int, partial: int) -> Tiling:
    """How a kernel is launched; `partial` says how many programs left sums of columns to the one that finishes."""
    template, read = source.template, source.read
    rows, columns = space.rows, space.columns
    wide = power_of_two(columns)
    if template == "elements":
        block = 512 if source.operations > 250 else 2048 if source.tensors <= 3 and source.operations < 100 else 1024
        block = min(block, power_of_two(rows))
        return Tiling((blocks(rows, block), 1), (block,), 4)
    if template == "rows":
        tall = max(1, min(2048 // wide, power_of_two(rows)))
        return Tiling((blocks(rows, tall), 1), (tall, wide), _warps(tall * wide))
    if template == "long":  # few at a time, so that a row is still in the cache when it is gone over again
        return Tiling((rows, 1), (1, 4096), 16)
    if template == "turns":
        each = max(1, min(32768 // wide, 4))
        stages = _stages(wide * read * each, 4 if each == 1 else 3)
        return Tiling((min(rows, multiprocessors * each), 1), (1, wide, stages), 32 if wide > 16384 else 16)
    if template == "finish":
        wide = min(wide, max(8, min(power_of_two(columns // 256), 128)))
        tall = min(power_of_two(partial), 128, 2048 // wide)
        return Tiling((blocks(columns, wide), 1), (partial, tall, wide), 4)
    if space.by_row:
        tall, each, warps = _tile_of_rows(wide)
        tall = min(tall, power_of_two(rows))
        stages = _stages(tall * wide * read * each, 3)
        return Tiling((min(blocks(rows, tall), multiprocessors * each), 1), (tall, wide, stages), warps)
    wide = _exact(columns)
    across = blocks(columns, wide)
    tall = max(1, min(2048 // wide, power_of_two(rows)))
    programs = min(blocks(rows, tall), max(1, multiprocessors * 4 // across))
    return Tiling((programs, across), (tall, wide, 3), 4)


def _tile_of_rows(wide: int) -> tuple[int, int, int]:
    """Of a kernel that reduces rows and columns: rows at a time, programs for each multiprocessor, warps."""
    if wide <= 2048:
        return 4096 // wide, 2, 4
    if wide <= 4096:
        return 2, 1, 8
    return 1, 1, 16 if wide <= 8192 else 32


def _stages(shared: int, most: int) -> int:
    """How many rows are on their way, one of them being computed with: as many as shared memory holds."""
    return max(1, min(most, _SHARED // max(shared, 1) + 1))


def _exact(columns: int) -> int:
    """The width of tiles that leaves least of the last one empty; of equal ones the largest."""
    return min((1024, 512, 256, 128), key=lambda w: blocks(columns, w) * w) if columns > 128 else power_of_two(columns)


def _warps(elements: int) -> int:
    """How many warps hold a tile."""
    return 4 if elements <= 4096 else 8 if elements <= 8192 else 16
