# SPDX-License-Identifier: Apache-2.0
"""The iteration space of a kernel: rows, and the columns of each row if the kernel reduces.

All operations of a kernel share one space of `rows * columns` elements. A reduction over trailing dimensions has one
result per row. A reduction over leading dimensions has one result per column. A space without reductions has a single
column.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from thunder import prims
from thunder.extend import BoundSymbol, TensorProxy
from thunder_ex_triton.fusion.op_table import REDUCTIONS

__all__ = ["MAX_COLUMNS", "Space", "Unfit", "after_columns", "is_long", "is_reduction", "reduces", "space_of"]

MAX_COLUMNS = 1 << 15  # the columns that fit into the registers of one program


class Unfit(Exception):
    """Raised with the reason why operations cannot form one kernel."""


class Space(NamedTuple):
    """Rows and columns.

    `by_row` is True if a reduction runs along rows; `by_column`, if a reduction runs along columns.
    """

    rows: int
    columns: int
    by_row: bool = False
    by_column: bool = False

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.rows * self.columns

    @property
    def reduces(self) -> bool:
        """Whether the kernel reduces."""
        return self.by_row or self.by_column


def is_long(space: Space) -> bool:
    """Check whether a row is too long for the registers of one program. The kernel then loops over the row's chunks."""
    return space.by_row and space.columns > MAX_COLUMNS


def is_reduction(bsym: BoundSymbol) -> bool:
    """Check whether an operation is a reduction that kernels support."""
    return bsym.sym.id in REDUCTIONS or bsym.sym in (prims.var_mean, prims.var)


def reduces(bsym: BoundSymbol) -> Space | None:
    """Return the space of a reduction; None if it reduces neither trailing nor leading dimensions."""
    a, dims = bsym.args[0], sorted(bsym.args[1])
    count, last = len(dims), list(range(a.ndim))
    if not count or 0 in a.shape:
        return None
    if dims == last[-count:]:
        return Space(math.prod(a.shape[:-count]), math.prod(a.shape[-count:]), by_row=True)
    if dims == last[:count]:
        return Space(math.prod(a.shape[:count]), math.prod(a.shape[count:]), by_column=True)
    return None


def space_of(operations: Sequence[BoundSymbol]) -> Space:
    """Return the common space of all these operations. Raise `Unfit` if they have none."""
    found: Space | None = None
    largest = 0
    for op in operations:
        for p in op.flat_outs:
            if isinstance(p, TensorProxy):
                largest = max(largest, math.prod(p.shape))
        if not is_reduction(op):
            continue
        own = reduces(op)
        if own is None:
            raise Unfit("reduces dimensions in the middle")
        if found is not None and (own.rows, own.columns) != (found.rows, found.columns):
            raise Unfit("has reductions of different shapes")
        by_row, by_column = (found.by_row, found.by_column) if found else (False, False)
        found = Space(own.rows, own.columns, by_row or own.by_row, by_column or own.by_column)
    if found is None:
        return Space(largest, 1)
    if is_long(found) and found.by_column:
        raise Unfit(f"rows of {found.columns} elements do not fit into registers")
    if largest > found.size:
        raise Unfit("has values larger than the reduced tensor")
    return found


def after_columns(operations: Sequence[BoundSymbol]) -> set[str]:
    """Return the values that depend on a reduction over columns."""
    late: set[str] = set()
    for op in operations:
        own = reduces(op) if is_reduction(op) else None
        if (own is not None and own.by_column) or any(name in late for name in op.arg_names):
            late.update(op.out_names)
    return late
