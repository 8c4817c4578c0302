# SPDX-License-Identifier: Apache-2.0
"""The kernels of products of 2 to 16 rows and the transpose of a weight, as in decoding a small batch.

Such a product reads each weight once, and is limited by memory. A tensor core multiplies at least 16 rows, so the rows
are padded in registers. The inner dimension is split among programs until they fill the GPU, and a second kernel adds
the parts in a fixed order. There are no atomics, so repeated runs give identical bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton.language as tl

from thunder_ex_triton.launch import blocks, kernel

__all__ = ["ROWS", "TILES", "Tile", "parts_of", "skinny_product"]

ROWS = 16  # of a tile: the fewest that `tl.dot` multiplies
_PROGRAMS = 528  # the programs to aim for: four for each multiprocessor
_MOST_PARTS = 32
_COLUMNS = 512  # of the results that a program of the second kernel adds


class Tile(NamedTuple):
    """How a product is tiled: the columns of the result and the inner elements of a step, and the warps."""

    columns: int
    inner: int
    warps: int


#: Tilings by name. The first is the default.
TILES = {
    "32x256": Tile(32, 256, 4),
    "64x128": Tile(64, 128, 4),
    "16x256": Tile(16, 256, 2),
    "128x128": Tile(128, 128, 8),
}


@kernel
def parts_of_product(
    x_ptr, w_ptr, scale_ptr, bias_ptr, residual_ptr, out_ptr, rows, columns, inner, x_row, part,
    PARTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
    SCALED: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
):  # fmt: skip
    """Multiply by a part of the inner dimension. If there is a single part, finish the result."""
    row = tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    in_rows, in_columns = row < rows, column < columns
    first = tl.program_id(1) * part
    last = tl.minimum(first + part, inner)
    x_at = x_ptr + row.to(tl.int64)[:, None] * x_row
    w_at = w_ptr + column.to(tl.int64)[None, :] * inner
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(first, last, INNER):
        k = start + tl.arange(0, INNER)
        inside = k < last
        x = tl.load(x_at + k[None, :], mask=in_rows[:, None] & inside[None, :], other=0.0)
        w = tl.load(w_at + k[:, None], mask=inside[:, None] & in_columns[None, :], other=0.0)
        total += tl.dot(x, w.to(x.dtype), input_precision="ieee")
    place = row.to(tl.int64)[:, None] * columns + column[None, :]
    inside = in_rows[:, None] & in_columns[None, :]
    if PARTS == 1:
        if SCALED:
            total *= tl.load(scale_ptr + column, mask=in_columns, other=0.0).to(tl.float32)[None, :]
        if BIAS:
            total += tl.load(bias_ptr + column, mask=in_columns, other=0.0).to(tl.float32)[None, :]
        result = total.to(out_ptr.dtype.element_ty)
        if RESIDUAL:
            added = tl.load(residual_ptr + place, mask=inside, other=0.0).to(tl.float32)
            result = (result.to(tl.float32) + added).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + place, result, mask=inside)
    else:
        tl.store(out_ptr + tl.program_id(1).to(tl.int64) * rows * columns + place, total, mask=inside)


@kernel
def sum_of_parts(
    parts_ptr, scale_ptr, bias_ptr, residual_ptr, out_ptr, rows, columns,
    PARTS: tl.constexpr, COLUMNS: tl.constexpr, SCALED: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
):  # fmt: skip
    """Add the parts of a row in a fixed order, and finish the result."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    place = row * columns + column
    total = tl.zeros((COLUMNS,), tl.float32)
    for i in tl.static_range(PARTS):
        total += tl.load(parts_ptr + (i * rows + row) * columns + column, mask=inside, other=0.0)
    if SCALED:
        total *= tl.load(scale_ptr + column, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        total += tl.load(bias_ptr + column, mask=inside, other=0.0).to(tl.float32)
    result = total.to(out_ptr.dtype.element_ty)
    if RESIDUAL:
        added = tl.load(residual_ptr + place, mask=inside, other=0.0).to(tl.float32)
        result = (result.to(tl.float32) + added).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + place, result, mask=inside)


def parts_of(columns: int, inner: int, tile: Tile) -> tuple[int, int]:
    """Return the number of parts of the inner dimension, and the elements of a part."""
    steps = blocks(inner, tile.inner)
    parts = min(_MOST_PARTS, max(1, _PROGRAMS // blocks(columns, tile.columns)), steps)
    part = blocks(steps, parts) * tile.inner
    return blocks(inner, part), part


def skinny_product(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor | None, bias: torch.Tensor | None,
    residual: torch.Tensor | None, tile: Tile,
) -> torch.Tensor:  # fmt: skip
    """Return `x @ weight.T * scale + bias + residual` for a matrix `x`; the weight and the residual are contiguous.

    The result is rounded before the residual is added, as by two operations.
    """
    (rows, inner), columns = x.shape, weight.shape[0]
    out = x.new_empty((rows, columns))
    parts, part = parts_of(columns, inner, tile)
    added = scale, bias, residual
    flags = tuple([tensor is not None for tensor in added])
    found = out if parts == 1 else torch.empty((parts, rows, columns), dtype=torch.float32, device=x.device)
    numbers: tuple[Any, ...] = (rows, columns, inner, x.stride(0), part, parts, ROWS, tile.columns, tile.inner)
    grid = blocks(columns, tile.columns), parts
    parts_of_product(grid, (x, weight, *added, found), (*numbers, *flags), tile.warps)
    if parts > 1:
        grid = rows, blocks(columns, _COLUMNS)
        sum_of_parts(grid, (found, *added, out), (rows, columns, parts, _COLUMNS, *flags), 4)
    return out
