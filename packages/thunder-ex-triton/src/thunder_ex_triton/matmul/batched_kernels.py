# SPDX-License-Identifier: Apache-2.0
"""The kernel of batched products of small matrices.

A program computes a tile of the product of one pair of matrices. It reads both operands where they are, by their
strides: transposed, broadcast, and with rows at any address. Masks pad sizes that no tile divides. Sums are computed in
float32 in a fixed order, without atomics, so repeated runs give identical bits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
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
    "16x16x16": Tile(16, 16, 16, 1),
    "16x64x64": Tile(16, 64, 64, 2),
    "32x32x32": Tile(32, 32, 32, 1),
    "32x32x64": Tile(32, 32, 64, 2),
    "64x32x64": Tile(64, 32, 64, 4),
    "64x64x32": Tile(64, 64, 32, 4),
    "64x64x64": Tile(64, 64, 64, 4),
    "128x64x64": Tile(128, 64, 64, 4),
    "128x128x64": Tile(128, 128, 64, 8),
}
_VECTOR = 8  # elements: 16 bytes in half precision


@triton.jit
def multiple(x, UNIT: tl.constexpr):
    """Return `x`, a multiple of `UNIT`, so that the compiler knows it. (It finds multiples of 16 itself.)"""
    if UNIT == 1:
        return x
    else:
        return x // UNIT * UNIT


@kernel
def product_of_tiles(
    a_ptr, b_ptr, out_ptr, size_1, size_2, rows, columns, inner,
    a_0, a_1, a_2, a_row, a_inner, b_0, b_1, b_2, b_inner, b_column,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, ONE_STEP: tl.constexpr,
    ROWS_UNIT: tl.constexpr, COLUMNS_UNIT: tl.constexpr, INNER_UNIT: tl.constexpr,
    A_COLUMNS: tl.constexpr, A_UNIT: tl.constexpr, B_COLUMNS: tl.constexpr, B_UNIT: tl.constexpr,
):  # fmt: skip
    """Compute a tile of the product of a pair of matrices. The batch has three dimensions; the result is contiguous.

    The sizes are multiples of `*_UNIT`, and the strides of an operand, too, but for the one that is 1: that of a row
    with `*_COLUMNS`. So the kernel loads and stores vectors of this length.
    """
    rows, columns, inner = multiple(rows, ROWS_UNIT), multiple(columns, COLUMNS_UNIT), multiple(inner, INNER_UNIT)
    a_0, a_1, a_2 = multiple(a_0, A_UNIT), multiple(a_1, A_UNIT), multiple(a_2, A_UNIT)
    b_0, b_1, b_2 = multiple(b_0, B_UNIT), multiple(b_1, B_UNIT), multiple(b_2, B_UNIT)
    if A_COLUMNS:
        a_inner = multiple(a_inner, A_UNIT)
    else:
        a_row = multiple(a_row, A_UNIT)
    if B_COLUMNS:
        b_column = multiple(b_column, B_UNIT)
    else:
        b_inner = multiple(b_inner, B_UNIT)
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
    shape, programs, numbers = _launch_of(a.shape, a.stride(), b.shape, b.stride(), tile)
    out = a.new_empty(shape)
    if programs:
        product_of_tiles(programs, (a, b, out), numbers, tile.warps)
    return out


@functools.lru_cache(maxsize=1024)
def _launch_of(
    a_shape: Sequence[int], a_strides: Sequence[int], b_shape: Sequence[int], b_strides: Sequence[int], tile: Tile
) -> tuple[tuple[int, ...], int, tuple[Any, ...]]:
    """Return the shape of the result, the number of programs, and the kernel's numbers. Calls of a program repeat."""
    batch = torch.broadcast_shapes(a_shape[:-2], b_shape[:-2])
    rows, inner, columns = a_shape[-2], a_shape[-1], b_shape[-1]
    sizes = *(1,) * (BATCH_DIMS - len(batch)), *batch
    programs = batch.numel() * blocks(rows, tile.rows) * blocks(columns, tile.columns)
    a_batch, b_batch = _batch_strides(a_shape, a_strides), _batch_strides(b_shape, b_strides)
    numbers = (
        *sizes[1:], rows, columns, inner, *a_batch, *a_strides[-2:], *b_batch, *b_strides[-2:],
        *tile[:3], inner <= tile.inner, _unit((rows,)), _unit((columns,)), _unit((inner,)),
        *_layout(a_batch, a_strides[-2:]), *_layout(b_batch, b_strides[-2:]),
    )  # fmt: skip
    return (*batch, rows, columns), programs, numbers


def _unit(numbers: Sequence[int]) -> int:
    """Return the largest power of two that divides all numbers, at most 8; 1 if all are multiples of 16."""
    found = math.gcd(2 * _VECTOR, *numbers)
    return 1 if found == 2 * _VECTOR else found


def _layout(batch: Sequence[int], strides: Sequence[int]) -> tuple[bool, int]:
    """Check whether the columns of an operand are contiguous, and return the unit of its other strides."""
    if 1 not in strides:
        return False, 1
    by_columns = strides[1] != 1
    return by_columns, _unit((*batch, strides[1] if by_columns else strides[0]))


def _batch_strides(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of the dimensions of the batch, with zeros where it is broadcast."""
    found = [0 if n == 1 else stride for n, stride in zip(shape[:-2], strides)]
    return (*(0,) * (BATCH_DIMS - len(found)), *found)
