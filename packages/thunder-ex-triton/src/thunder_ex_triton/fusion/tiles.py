# SPDX-License-Identifier: Apache-2.0
"""Heuristics for the tile sizes, grids and warps of kernels, tuned on an H200.

The kernels are limited by memory bandwidth. They saturate it if enough loads are in flight. A kernel that loops over
rows prefetches the next rows into shared memory while it computes (`stages`). A kernel with one program per row relies
on occupancy: the fewer registers a program uses, the more programs run at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch

from thunder.extend import to_torch_device
from thunder_ex_triton.fusion.iteration_space import Space
from thunder_ex_triton.fusion.lines import DRAW, Line
from thunder_ex_triton.launch import MOST_BLOCKS, blocks, power_of_two
from thunder_ex_triton.probe import interpreting

__all__ = ["Gpu", "Tiling", "gpu_of", "is_chunking_profitable", "tallest", "tilings"]

_REDUCTIONS = 28 * 1024  # bytes of a multiprocessor's shared memory for reductions; prefetched rows may use the others
# Bytes of a row (read and written) per warp of its program. At half of the maximal occupancy, all rows in progress then
# fit into the cache, and are still there when they are read again.
_CACHED = 13 * 1024
_LARGEST_TILE = 4096  # the elements of a tile in a kernel that sums columns
# Elements of all tensors of a kernel for each thread of a program. With more, ptxas moves them to memory and back: with
# 1,184, a kernel had 32 registers and 4.6 KB of stack for each thread, and with a quarter of these, no stack.
_MOST_ELEMENTS = 448
_FEWEST_PROGRAMS = 264  # two programs for each multiprocessor, so that all of them load weights


class Gpu(NamedTuple):
    """The facts of a GPU that tilings depend on: by default those of an H200."""

    multiprocessors: int = 132
    shared: int = 228 * 1024  # bytes of shared memory of a multiprocessor


def gpu_of(device: Any) -> Gpu:
    """Return the facts of a device."""
    if interpreting():
        return Gpu(1)
    found = torch.cuda.get_device_properties(to_torch_device(device))
    # A torch that does not know the shared memory must not stop kernels that fit into any.
    return Gpu(found.multi_processor_count, getattr(found, "shared_memory_per_multiprocessor", Gpu().shared))


class Tiling(NamedTuple):
    """The grid (rows, columns), the constants of the template, and the number of warps."""

    programs: tuple[int, int]
    numbers: tuple[int, ...]
    warps: int


class Kernel(Protocol):
    """The facts of a kernel that tilings depend on."""

    @property
    def template(self) -> str:
        """The name of the kernel's template."""
        ...

    @property
    def read(self) -> int:
        """The bytes that the kernel reads per element of its space."""
        ...

    @property
    def loaded(self) -> int:
        """The bytes that the kernel loads per element of a tile of rows and columns."""
        ...

    @property
    def written(self) -> int:
        """The bytes that a kernel of long rows writes per element of its space."""
        ...

    @property
    def tensors(self) -> int:
        """The number of tensors that the kernel reads and writes."""
        ...

    @property
    def across(self) -> bool:
        """Whether the elements of a column of a tensor are adjacent in memory."""
        ...

    @property
    def along(self) -> bool:
        """Whether the elements of a scanned row are adjacent in memory."""
        ...

    @property
    def passes(self) -> int:
        """The number of loops over a long row."""
        ...

    @property
    def products(self) -> int:
        """The number of weights that the kernel multiplies by a single row."""
        ...

    @property
    def norm(self) -> bool:
        """Whether a kernel of products also reduces the single row."""
        ...

    @property
    def operations(self) -> int:
        """The number of lines."""
        ...


def is_chunking_profitable(columns: int, tiles_read: int, lines: Sequence[Line]) -> bool:
    """Check whether to loop over a row's chunks. Each reduction then reads the chunks again from the cache.

    A loop uses fewer registers, so more programs run at a time. It recomputes the values of each chunk, which should be
    cheap. Only a loop can read unaligned rows in whole vectors.
    """
    few = tiles_read == 1 or (tiles_read == 2 and columns % 8 != 0)
    return few and columns > 4096 and len(lines) <= 40 and all(line.kind != DRAW for line in lines)


def tilings(source: Kernel, space: Space, gpu: Gpu, partial: int) -> list[Tiling]:
    """Return the candidate tilings of a kernel: the default tiling, and up to three others that may be faster.

    `partial` is the number of programs that wrote partial sums of columns. The kernel that adds these sums needs it.
    """
    rows, columns = space.rows, space.columns
    wide = power_of_two(columns)
    if source.template == "elements":
        found = _of_elements(source, rows)
    elif source.template == "tiles":
        found = _of_tiles(space, source.across)
    elif source.template == "scan":
        found = _of_scans(rows, wide, source.along)
    elif source.template == "rows":
        found = _of_products(source, rows, wide) if source.products else _of_rows(source, rows, columns)
    elif source.template == "long":  # few rows at a time, so that a row is still in the cache when it is read again
        chunks = _chunk(columns, source.passes, source.read + source.written), (4096, 8), (8192, 16), (16384, 32)
        found = [Tiling((rows, 1), (1, chunk), warps) for chunk, warps in chunks if chunk <= max(wide, 4096)]
    elif source.template == "finish":
        columns = space.sums
        wide = power_of_two(columns)
        wide = min(wide, max(8, min(power_of_two(columns // 256), 128)))
        tall = min(power_of_two(partial), 128, 2048 // wide)
        found = [Tiling((blocks(columns, wide), 1), (partial, tall, wide), 4)]
    elif space.period != 1:
        found = _of_periods(space, gpu.multiprocessors)
    elif space.by_row:
        found = _of_rows_and_columns(source.read, rows, wide, gpu)
    else:
        found = _of_columns(source, space, gpu)
    if source.template in ("rows", "columns") and not source.products:
        found = [tiling._replace(warps=_enough_warps(source, tiling)) for tiling in found]
    return list(dict.fromkeys(found))[:4]


def _enough_warps(source: Kernel, tiling: Tiling) -> int:
    """Return the number of warps with which the elements of a tile fit into registers."""
    tall, wide = tiling.numbers[:2]
    warps = tiling.warps
    while tall * wide * source.tensors > _MOST_ELEMENTS * 32 * warps and warps < 16:
        warps *= 2
    return warps


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


def _of_tiles(space: Space, across: bool) -> list[Tiling]:
    """Return the tilings of kernels of tiles: segments of memory along both dimensions, or along columns only."""
    found = []
    sizes = (4096, 8), (2048, 4), (4096, 4), (2048, 8)
    for elements, warps in sizes if across else sizes[1::-1]:
        if across:
            tall, wide = _segment(space.rows), _segment(space.columns)
        else:
            tall, wide = 1, _widest(space.columns)
        while tall * wide > elements:
            tall, wide = (tall // 2, wide) if tall > wide else (tall, wide // 2)
        while across and tall * wide < elements and wide < power_of_two(space.columns):
            wide *= 2
        while tall * wide < elements and tall < power_of_two(space.rows):
            tall *= 2
        programs = space.batch * blocks(space.rows, tall) * blocks(space.columns, wide)
        found.append(Tiling((programs, 1), (tall, wide), warps))
    return found


def _segment(size: int) -> int:
    """Return the elements of a segment of memory: 64 or 32, whichever masks off fewer elements; all if they are few."""
    return min((64, 32), key=lambda n: blocks(size, n) * n) if size > 32 else power_of_two(size)


def _of_rows(source: Kernel, rows: int, columns: int) -> list[Tiling]:
    wide = power_of_two(columns)
    tall = max(1, min(2048 // wide, power_of_two(rows)))
    warps = _warps(tall * wide)
    if source.across:  # a tile has segments of memory along both dimensions, if it fits into registers
        tall = max(tall, min(32, 16384 // wide, power_of_two(rows)))
        warps = _warps(tall * wide)
    elif 32 < wide <= 128:  # sums within a warp need no shared memory and no synchronization between warps
        most = 16 if columns == 64 else 8 if wide == 64 or source.read <= 4 else 4
        tall, warps = min(most, power_of_two(rows)), 1
    others = (tall, warps), (tall, warps * 2), (tall, max(warps // 2, 2)), (min(tall * 2, power_of_two(rows)), warps)
    return [Tiling((blocks(rows, tall), 1), (tall, wide), warps) for tall, warps in others]


def _of_scans(rows: int, wide: int, along: bool) -> list[Tiling]:
    """Return the tilings of scans: blocks that are long along the dimension whose elements are adjacent in memory."""
    found = []
    for elements, warps in ((2048, 4), (4096, 4), (1024, 2), (2048, 8)):
        if along:
            block = min(wide, elements)
            tall = max(1, min(elements // block, power_of_two(blocks(rows, _FEWEST_PROGRAMS))))
        else:  # a half warp loads at least one segment of memory
            tall = max(16, min(128, power_of_two(rows // _FEWEST_PROGRAMS)))
            block = min(wide, elements // tall)
        found.append(Tiling((blocks(rows, tall), 1), (tall, block), warps))
    return found


def _of_products(source: Kernel, rows: int, wide: int) -> list[Tiling]:
    """Return the tilings of products of a single row: 64 bytes of weights for each thread.

    Each program computes the norm of the row again. A program with a norm therefore has more rows of weights, if they
    have eight bits, or if the weight is small.
    """
    read, size, warps, programs = source.read, 8192, 4, _FEWEST_PROGRAMS
    if read == source.products:  # of eight bits
        programs *= 4
        size = 16384 if source.norm else size
    elif source.norm and source.products == 1 and rows <= 4096 and wide <= 2048:
        size, warps = 16384, 8
    tall = max(1, min(size // (wide * read), power_of_two(blocks(rows, programs))))
    warps = warps if tall * wide * read <= 16384 else 16
    others = (tall, warps), (tall, min(warps * 2, 16)), (tall * 2, warps), (max(tall // 2, 1), warps)
    return [Tiling((blocks(rows, tall), 1), (tall, wide), warps) for tall, warps in others]


def _of_rows_and_columns(read: int, rows: int, wide: int, gpu: Gpu) -> list[Tiling]:
    tall, each, warps = _tile_of_rows(wide)
    found = []
    for t, e, w in (
        (tall, each, warps),
        (tall, each * 2, warps),
        (tall, each, min(warps * 2, 32)),
        (tall * 2, each, warps),
    ):
        t = min(t, power_of_two(rows))
        stages = _stages(t * wide * read * e, 3 if w > 1 else 1, gpu)
        found.append(Tiling((min(blocks(rows, t), gpu.multiprocessors * e), 1), (t, wide, stages), w))
    return found


def _of_periods(space: Space, multiprocessors: int) -> list[Tiling]:
    """Return the tilings of sums over columns of the rows of each period: programs of one warp, which do not wait."""
    wide = power_of_two(space.columns)
    found = []
    for elements, warps, each in ((512, 1, 32), (1024, 2, 16), (2048, 4, 8), (1024, 1, 16)):
        tall = max(1, min(elements // wide, power_of_two(space.period)))
        down = blocks(space.period, tall)
        programs = max(1, min(space.rows // space.period, multiprocessors * each // down))
        found.append(Tiling((programs, down), (tall, wide, 1), max(warps, wide // 512)))
    return found


def tallest(columns: int) -> int:
    """Return the most rows of a tile in a kernel that sums columns: a power of two."""
    return max(1, _LARGEST_TILE // _exact(columns))


def _of_columns(source: Kernel, space: Space, gpu: Gpu) -> list[Tiling]:
    wide = _exact(space.columns)
    across = blocks(space.columns, wide)
    found = []
    ahead, ways = 3, ((1, 2), (2, 4), (1, 4), (2, 2))
    if space.columns % 2 and across >= 8:
        # Elements of two bytes that begin anywhere cannot be loaded ahead. More programs have as many loads in flight.
        ahead, ways = 1, ((2, 16), (2, 8), (1, 8), (1, 16))
    for part, each in ways:
        tall = min(max(1, tallest(space.columns) // part), power_of_two(space.rows))
        programs = min(blocks(space.rows, tall), max(1, gpu.multiprocessors * each // (across * space.batch)))
        stages = _stages(tall * wide * source.loaded * each, ahead, gpu)
        found.append(Tiling((programs * space.batch, across), (tall, wide, stages), 4))
    return found


def _chunk(columns: int, passes: int, moved: int) -> tuple[int, int]:
    """Return the chunk size of a long row, and the number of warps.

    `moved` is the number of bytes moved per element.
    """
    if columns % 8:  # in unaligned rows, chunks at the ends cost twice as much and should be small
        warps = min(max(4, power_of_two(blocks(columns * moved, _CACHED))), 32)
        return 256 * warps, warps
    if columns <= 16384:
        return 4096, 8 if columns <= 8192 and passes > 2 else 16
    whole = columns % 16384 == 0 or columns > 65536
    return 16384 if whole else 8192, 32 if columns > 32768 else 16


def _tile_of_rows(wide: int) -> tuple[int, int, int]:
    """Return rows per tile, programs per multiprocessor and warps of a kernel that reduces both rows and columns."""
    if 64 < wide <= 256:  # sums within a warp need no shared memory and no synchronization between warps
        return 512 // wide, 16, 1
    if wide == 512:
        return 4, 8, 2
    if wide <= 2048:
        return 4096 // wide, 2, 4
    if wide <= 4096:
        return 2, 1, 8
    return 1, 1, 16 if wide <= 8192 else 32


def _stages(shared: int, most: int, gpu: Gpu) -> int:
    """Return the number of pipeline stages, including the current tile: as many as shared memory can hold."""
    return max(1, min(most, (gpu.shared - _REDUCTIONS) // max(shared, 1) + 1))


def _exact(columns: int) -> int:
    """Return the tile width that masks off the fewest columns. Among equal widths, return the largest."""
    if columns <= 128:
        return power_of_two(columns)
    widths = [w for w in (1024, 512, 256, 128) if blocks(columns, w) <= MOST_BLOCKS]
    return min(widths or [1024], key=lambda w: blocks(columns, w) * w)


def _widest(columns: int) -> int:
    """Return the largest tile width that masks off few columns; the width that masks off the fewest if none does."""
    few = [w for w in (2048, 1024, 512, 256, 128) if blocks(columns, w) * w <= columns * 1.05]
    return few[0] if few else _exact(columns)


def _warps(elements: int) -> int:
    """Return the number of warps for a tile of `elements` elements."""
    return 4 if elements <= 4096 else 8 if elements <= 8192 else 16
