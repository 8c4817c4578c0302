# SPDX-License-Identifier: Apache-2.0
"""The kernel of batched products of small matrices.

A program computes a tile of the product of one pair of matrices. It reads both operands where they are, by their
strides: transposed, broadcast, and with rows at any address. Masks pad sizes that no tile divides. Sums are computed in
float32 in a fixed order, without atomics, so repeated runs give identical bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton.language as tl

from thunder_ex_triton.launch import blocks, kernel

__all__ = ["BATCH_DIMS", "TILES", "Tile", "batched_product"]

BATCH_DIMS = 3


class Tile(NamedTuple):
    """How a product is tiled: the rows and columns of the result, the inner elements of a step, and the warps."""

    rows: int
    columns: int
    inner: int
    warps: int


#: Tilings by name.
TILES = {
    "16x64x64": Tile(16, 64, 64, 4),
    "32x32x32": Tile(32, 32, 32, 2),
    "64x32x64": Tile(64, 32, 64, 4),
    "64x64x32": Tile(64, 64, 32, 4),
    "64x64x64": Tile(64, 64, 64, 4),
    "128x64x64": Tile(128, 64, 64, 4),
    "128x128x64": Tile(128, 128, 64, 8),
}


@kernel
def product_of_tiles(
    a_ptr, b_ptr, out_ptr, size_1, size_2, rows, columns, inner,
    a_0, a_1, a_2, a_row, a_inner, b_0, b_1, b_2, b_inner, b_column,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, ONE_STEP: tl.constexpr,
):  # fmt: skip
    """Compute a tile of the product of a pair of matrices. The batch has three dimensions; the result is contiguous."""
    across = tl.cdiv(columns, COLUMNS)
    tiles = tl.cdiv(rows, ROWS) * across
    batch = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    at_0 = (batch // (size_1 * size_2)).to(tl.int64)
    at_1 = (batch // size_2 % size_1).to(tl.int64)
    at_2 = (batch % size_2).to(tl.int64)
    row = tile // across * ROWS + tl.arange(0, ROWS)
    column = tile % across * COLUMNS + tl.arange(0, COLUMNS)
    step = tl.arange(0, INNER)
    in_rows, in_columns = row < rows, column < columns
    a_at = a_ptr + (at_0 * a_0 + at_1 * a_1 + at_2 * a_2) + row.to(tl.int64)[:, None] * a_row
    b_at = b_ptr + (at_0 * b_0 + at_1 * b_1 + at_2 * b_2) + column.to(tl.int64)[None, :] * b_column
    if ONE_STEP:
        k = step.to(tl.int64)
        a = tl.load(a_at + k[None, :] * a_inner, mask=in_rows[:, None] & (step < inner)[None, :], other=0.0)
        b = tl.load(b_at + k[:, None] * b_inner, mask=(step < inner)[:, None] & in_columns[None, :], other=0.0)
        total = tl.dot(a, b, input_precision="ieee")
    else:
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for start in range(0, inner, INNER):
            k = (start + step).to(tl.int64)
            inside = start + step < inner
            a = tl.load(a_at + k[None, :] * a_inner, mask=in_rows[:, None] & inside[None, :], other=0.0)
            b = tl.load(b_at + k[:, None] * b_inner, mask=inside[:, None] & in_columns[None, :], other=0.0)
            total = tl.dot(a, b, total, input_precision="ieee")
    place = (batch.to(tl.int64) * rows + row)[:, None] * columns + column[None, :]
    tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=in_rows[:, None] & in_columns[None, :])


def batched_product(a: torch.Tensor, b: torch.Tensor, tile: Tile) -> torch.Tensor:
    """Return `a @ b`, contiguous, for batches of one to three dimensions that broadcast."""
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rows, inner, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    out = a.new_empty((*batch, rows, columns))
    programs = batch.numel() * blocks(rows, tile.rows) * blocks(columns, tile.columns)
    if programs == 0:
        return out
    sizes = *(1,) * (BATCH_DIMS - len(batch)), *batch
    numbers: tuple[Any, ...] = (
        *sizes[1:], rows, columns, inner,
        *_batch_strides(a), *a.stride()[-2:], *_batch_strides(b), *b.stride()[-2:],
        *tile[:3], inner <= tile.inner,
    )  # fmt: skip
    product_of_tiles(programs, (a, b, out), numbers, tile.warps)
    return out


def _batch_strides(x: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of the dimensions of the batch, with zeros where it is broadcast."""
    strides = [0 if n == 1 else stride for n, stride in zip(x.shape[:-2], x.stride())]
    return (*(0,) * (BATCH_DIMS - len(strides)), *strides)
