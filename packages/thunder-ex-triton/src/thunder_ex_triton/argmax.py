# SPDX-License-Identifier: Apache-2.0
"""The index of the largest element of few long rows, e.g. of the logits of a token.

torch's kernel reads a row with few multiprocessors. Here a program finds the largest element of a part of a row, and a
second kernel finds the largest of the parts. As in torch, NaN is larger than all numbers, and the first of equal
elements is found.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

import thunder.torch as ltorch
from thunder import prims
from thunder.extend import dtypes, known_shape
from thunder_ex_triton.launch import blocks, kernel, power_of_two
from thunder_ex_triton.probe import unusable_device

__all__ = ["TAKEN", "argmax", "like", "register"]

TAKEN = (dtypes.float32, dtypes.float16, dtypes.bfloat16)
_PART = 1024  # the elements of a program
_MOST_ROWS = 16
_FEWEST_COLUMNS = 1 << 14
_MOST_COLUMNS = 1 << 22
_NOWHERE = tl.constexpr(1 << 30)


@triton.jit
def _first(condition, index):
    """Return the smallest index at which a condition holds."""
    return tl.min(tl.where(condition, index, _NOWHERE), 0)


@kernel
def largest_of_parts(x_ptr, numbers_ptr, places_ptr, columns, parts, row_stride, stride, PART: tl.constexpr):
    """Find the largest number of a part of a row, its first index, and the first index of NaN."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    index = part * PART + tl.arange(0, PART)
    x = tl.load(x_ptr + row * row_stride + index.to(tl.int64) * stride, mask=index < columns, other=float("-inf"))
    x = x.to(tl.float32)
    number = tl.max(tl.where(x == x, x, float("-inf")), 0)
    place = row * parts + part
    tl.store(numbers_ptr + place, number)
    tl.store(places_ptr + place * 2, _first(x == number, index))
    tl.store(places_ptr + place * 2 + 1, _first(x != x, index))


@kernel
def largest_of_row(out_ptr, numbers_ptr, places_ptr, parts, WIDE: tl.constexpr):
    """Find the first index of the largest of the parts of a row."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, WIDE)
    exists = part < parts
    number = tl.load(numbers_ptr + row * parts + part, mask=exists, other=float("-inf"))
    place = tl.load(places_ptr + (row * parts + part) * 2, mask=exists, other=_NOWHERE)
    nan = tl.min(tl.load(places_ptr + (row * parts + part) * 2 + 1, mask=exists, other=_NOWHERE), 0)
    found = _first(number == tl.max(number, 0), place)
    tl.store(out_ptr + row, tl.where(nan < _NOWHERE, nan, found).to(tl.int64))


def argmax(a: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the index of the largest element along the last dimension."""
    *shape, columns = a.shape
    rows = a.reshape(-1, columns)
    parts = blocks(columns, _PART)
    out = torch.empty(shape, dtype=torch.int64, device=a.device)
    numbers = torch.empty((len(rows), parts), dtype=torch.float32, device=a.device)
    places = torch.empty((len(rows), parts, 2), dtype=torch.int32, device=a.device)
    largest_of_parts((len(rows), parts), (rows, numbers, places), (columns, parts, *rows.stride(), _PART), 4)
    largest_of_row(len(rows), (out, numbers, places), (parts, power_of_two(parts)), 4)
    return out


def like(a: Any, dim: int) -> Any:
    """Decompose into torch's operation."""
    return ltorch.argmax(a, dim)


def _takes(a: Any, dim: int) -> bool | str:
    """Return True, or the reason why the kernels do not compute the call."""
    reason = unusable_device(a.device)
    if reason is not None:
        return reason
    if a.dtype not in TAKEN or any(type(n) is not int for n in a.shape):
        return "the kernels support float32, float16 and bfloat16, of known sizes"
    if not a.ndim or dim % a.ndim != a.ndim - 1:
        return "the kernels reduce the last dimension"
    *shape, columns = a.shape
    if not 0 < math.prod(shape) <= _MOST_ROWS or not _FEWEST_COLUMNS <= columns <= _MOST_COLUMNS:
        return "the kernels are for few long rows"
    return True


def _workspace(a: Any, dim: int) -> int:
    """Return the bytes of the results of parts."""
    *shape, columns = known_shape(a)
    return math.prod(shape) * blocks(columns, _PART) * 12


def register(registry: Any, executor: str) -> None:
    """Register the operator as an implementation of argmax."""
    found = registry.register_operator("triton_argmax", executor=executor, like=like, fn=argmax, workspace=_workspace)
    registry.register_implementation(prims.argmax, found, executor=executor, checker=_takes)
