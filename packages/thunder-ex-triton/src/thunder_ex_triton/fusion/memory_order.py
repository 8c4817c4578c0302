# SPDX-License-Identifier: Apache-2.0
"""The order in which kernels of elements go through memory: that of most of their tensors.

If another tensor has another innermost dimension, the kernel goes through memory in tiles that are long along both
innermost dimensions, so that every tensor is read and written in whole segments of memory.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from thunder import prims
from thunder.extend import BoundSymbol, TensorProxy
from thunder_ex_triton.fusion.index import Group, Index
from thunder_ex_triton.fusion.iteration_space import Space
from thunder_ex_triton.fusion.sizes import Size

__all__ = ["in_order_of_memory"]


def in_order_of_memory(
    operations: Sequence[BoundSymbol], strides: Mapping[str, Sequence[int]], output: TensorProxy
) -> tuple[Index, Space]:
    """Return an index into an output, and its space: of elements that are adjacent in memory, or of tiles of those."""
    shape = output.shape
    usual = tuple(range(len(shape)))
    linear = Space(math.prod(shape), 1)
    frames = _frames(operations, output)
    if any(isinstance(s, Size) for s in (*shape, *strides[output.name])):
        return Index([Group("x", (math.prod(shape),))]).reshaped(shape), linear
    tensors: dict[str, Any] = {
        p.name: p for op in operations for p in (*op.tensors(), *op.flat_outs) if p.name in strides
    }
    found = {
        p.name: (tuple([strides[p.name][d] for d in frames[p.name]]), p.dtype.bytes)
        for p in tensors.values()
        if p.name in frames and any(strides[p.name])
    }
    moved: Counter[tuple[int, ...]] = Counter()  # the bytes of the tensors whose dimensions have an order
    for own, size in found.values():
        moved[_order(shape, own)] += size
    order = max(moved, key=lambda o: (moved[o], o == usual), default=usual)
    tile = _tile(shape, order, found.values())
    if tile is not None:
        rows, columns = tile
        batch = [d for d in order if d not in (*rows, *columns)]
        groups = [Group(e, tuple([shape[d] for d in dims])) for e, dims in zip("bxr", (batch, rows, columns))]
        space = Space(groups[1].size, groups[2].size, batch=groups[0].size, tiled=True)
        return Index(groups).transposed((*batch, *rows, *columns)), space
    if order == usual:
        return Index([Group("x", (math.prod(shape),))]).reshaped(shape), linear
    return Index([Group("x", tuple([shape[d] for d in order]))]).transposed(order), linear


def _tile(
    shape: Sequence[int], order: Sequence[int], tensors: Iterable[tuple[Sequence[int], int]]
) -> tuple[list[int], list[int]] | None:
    """Return the dimensions of the rows and of the columns of tiles; None if all tensors have the same innermost one.

    The columns are innermost in the order of most tensors, and the rows in the order of others. Both are as many
    dimensions as are adjacent in all tensors.
    """
    given = list(tensors)
    if any(isinstance(s, Size) for own, _ in given for s in own):
        return None
    long = [d for d in order if shape[d] > 1]
    innermost: Counter[int] = Counter()  # the bytes of the tensors that have an element at each place
    orders: dict[int, list[int]] = {}
    for own, size in given:
        if long and all(own[d] > 0 for d in long):
            mine = sorted(long, key=lambda d: -own[d])
            innermost[mine[-1]] += size
            orders.setdefault(mine[-1], mine)
    others = [d for d in innermost if d != long[-1]]
    if not others:
        return None
    other = max(others, key=innermost.__getitem__)

    def adjacent(inwards: Sequence[int], apart: Sequence[int]) -> list[int]:
        found = [inwards[-1]]
        for d in reversed(inwards[:-1]):
            if d in apart or any(own[d] != own[found[0]] * shape[found[0]] for own, _ in given):
                break
            found.insert(0, d)
        return found

    columns = adjacent(long, [other])
    return adjacent(orders[other], columns), columns


def _frames(operations: Sequence[BoundSymbol], output: TensorProxy) -> dict[str, tuple[int, ...]]:
    """Return, for each tensor whose dimensions are those of an output in some order, the place of each of them.

    Shapes alone do not tell: a channels-last image with as many channels as rows and columns has the same shape in both
    orders of its dimensions.
    """
    found = {output.name: tuple(range(output.ndim))}
    for op in (*reversed(operations), *operations):  # from the output to the operands, and to their other results
        for p, a in itertools.product(op.flat_outs, op.tensors()):
            if op.sym is prims.transpose:
                order = tuple(op.args[1])
            elif isinstance(p, TensorProxy) and p.shape == a.shape:
                order = tuple(range(p.ndim))
            else:
                continue
            if p.name in found:
                found.setdefault(a.name, tuple([order[d] for d in found[p.name]]))
            elif a.name in found:
                found[p.name] = tuple([order.index(d) for d in found[a.name]])
    return found


def _order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Return the dimensions from the outermost in memory to the innermost. Dimensions that do not matter stay put."""
    matter = [d for d, n in enumerate(shape) if n > 1 and strides[d] > 0]
    ordered = iter(sorted(matter, key=lambda d: (-strides[d], d)))
    return tuple([next(ordered) if d in matter else d for d in range(len(shape))])
