# SPDX-License-Identifier: Apache-2.0
"""Cyclic shifts (`roll`), which a trace contains as the concatenation of two slices of one tensor.

A kernel that selects from two slices loads twice, with masks. A cyclic shift is a remainder in the index. It also has
an inverse, so that a kernel can store the result of a row at another place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from thunder import prims
from thunder.extend import BoundSymbol, TensorProxy

__all__ = ["Roll", "rolls_of"]


class Roll(NamedTuple):
    """A tensor whose element at position `start` of a dimension becomes the first one."""

    a: TensorProxy
    dim: int
    start: int


def rolls_of(operations: Sequence[BoundSymbol]) -> dict[str, Roll]:
    """Return the cyclic shifts by the names of their results."""
    slices = {op.output.name: op for op in operations if op.sym is prims.slice}
    found: dict[str, Roll] = {}
    for op in operations:
        parts = op.args[0] if op.sym is prims.cat else ()
        if len(parts) == 2 and all(p.name in slices for p in parts):
            dim = op.args[1] % op.output.ndim
            (a, first, end), (b, start, middle) = (_range(slices[p.name], dim) for p in parts)
            whole = a.name == b.name and (start, middle) == (0, first) and end == a.shape[dim]
            if whole and all(type(n) is int for n in (first, *a.shape)):
                found[op.output.name] = Roll(a, dim, first)
    return found


def _range(op: BoundSymbol, dim: int) -> tuple[TensorProxy, int, int]:
    """Return the operand of a slice with its range; an empty range if other dimensions or steps differ."""
    a, starts, ends, *steps = op.args
    others = [d for d in range(a.ndim) if d != dim]
    plain = all(starts[d] == 0 and ends[d] == a.shape[d] for d in others)
    if not plain or (steps and steps[0] is not None and any(step != 1 for step in steps[0])):
        return a, -1, -1
    return a, starts[dim], ends[dim]
