# SPDX-License-Identifier: Apache-2.0
"""The iteration space of a kernel: rows, and the columns of each row if the kernel reduces.

All operations of a kernel share one space of `batch * rows * columns` elements. A reduction over trailing dimensions
has one result per row. A reduction over leading dimensions has one result per column. A reduction over dimensions in
the middle has one result per column of each batch entry. A reduction over all dimensions but some in the middle has one
result per row. A space without reductions has a single column, unless it is tiled.

A scan goes along the columns of each row, and its rows count through all other dimensions.

The product of a weight and a single row is a reduction of the weight's rows. Its kernel may also compute reductions of
the single row (a norm), which each program repeats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from thunder import prims
from thunder.extend import BoundSymbol, TensorProxy
from thunder_ex_triton.fusion.errors import Unfit
from thunder_ex_triton.fusion.op_table import MATVEC, POINTWISE, REDUCTIONS
from thunder_ex_triton.fusion.scans import is_scan, scanned
from thunder_ex_triton.launch import MOST_BLOCKS

__all__ = [
    "MAX_COLUMNS",
    "Space",
    "after_columns",
    "check_grid",
    "has_work",
    "is_long",
    "is_reduction",
    "reduces",
    "space_of",
]

MAX_COLUMNS = 1 << 15  # the columns that fit into the registers of one program
MIN_ENTRY = 1 << 11  # the elements of a batch entry that are enough work for a program
MIN_REPEATS = 1 << 8  # the rows of each sum over columns for which the kernel of reductions over rows computes it
_MIN_ENTRIES = 32  # the work for which two kernels, of partial sums and of sums, are faster than one


class Space(NamedTuple):
    """Rows and columns of each batch entry.

    `by_row` is True if a reduction runs along rows; `by_column`, if a reduction runs along columns. Only spaces that
    are reduced along columns, and not along rows, have more than one batch entry. `direction` is 1 or -1 if rows are
    scanned from their beginning or from their end. `tiled` is True if a kernel without reductions has rows and columns,
    because they are the innermost dimensions of different tensors. `by_ends` is True if a reduction runs along both
    columns and batch entries. Sums over columns add up every row of `period` rows separately, e.g. for a bias of
    attention, which all samples have in common. `rounded` are the values that are rounded where they are computed.
    """

    rows: int
    columns: int
    by_row: bool = False
    by_column: bool = False
    batch: int = 1
    direction: int = 0
    tiled: bool = False
    by_ends: bool = False
    period: int = 1
    rounded: frozenset[str] = frozenset()

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.all_rows * self.columns

    @property
    def all_rows(self) -> int:
        """The number of rows of all batch entries."""
        return self.rows if self.batch == 1 else self.batch * self.rows

    @property
    def all_columns(self) -> int:
        """The number of columns of all batch entries."""
        return self.columns if self.batch == 1 else self.batch * self.columns

    @property
    def text(self) -> str:
        """The numbers of batch entries (if there are several), rows and columns."""
        rows = f"{self.rows} x {self.columns}"
        return rows if self.batch == 1 else f"{self.batch} x {rows}"

    @property
    def reduces(self) -> bool:
        """Whether the kernel reduces or scans."""
        return self.by_row or self.by_column or self.by_ends or self.direction != 0

    @property
    def sums(self) -> int:
        """The number of sums over columns, or over rows of all batch entries, which a second kernel finishes."""
        if self.by_ends:
            return self.rows
        return self.all_columns if self.period == 1 else self.period * self.columns

    @property
    def has_columns(self) -> bool:
        """Whether blocks of the kernel have two dimensions, rows and columns."""
        return self.reduces or self.tiled


def is_long(space: Space) -> bool:
    """Check whether a row is too long for the registers of one program. The kernel then loops over the row's chunks."""
    return space.by_row and space.columns > MAX_COLUMNS


def is_reduction(bsym: BoundSymbol) -> bool:
    """Check whether an operation is a reduction that kernels support."""
    return bsym.sym.id in REDUCTIONS or bsym.sym.id == MATVEC or bsym.sym in (prims.var_mean, prims.var)


def reduces(bsym: BoundSymbol) -> Space | None:
    """Return the space of a reduction; None if the reduced dimensions are not adjacent.

    None also if they are in the middle, and each batch entry is too small for a program of its own.
    """
    if bsym.sym.id == MATVEC:
        rows, columns = bsym.args[0].shape
        return Space(rows, columns, by_row=True)
    a, dims = bsym.args[0], sorted(bsym.args[1])
    count, last = len(dims), list(range(a.ndim))
    if not count or 0 in a.shape:
        return None
    if dims == last[-count:]:
        return Space(math.prod(a.shape[:-count]), math.prod(a.shape[-count:]), by_row=True)
    first = dims[0]
    if first == 0 and dims[-1] == a.ndim - 1:
        return _reduces_ends(a.shape, dims)
    if dims != last[first : first + count]:
        return None
    batch, rows, columns = map(math.prod, (a.shape[:first], a.shape[first : first + count], a.shape[first + count :]))
    return Space(rows, columns, by_column=True, batch=batch) if has_work(batch, rows, columns) else None


def _reduces_ends(shape: Sequence[int], dims: Sequence[int]) -> Space | None:
    """Return the space of a reduction over the first and the last dimensions; None if it is small or symbolic."""
    kept = [d for d in range(len(shape)) if d not in dims]
    if any(type(n) is not int for n in shape) or kept != list(range(kept[0], kept[-1] + 1)):
        return None
    spans = shape[: kept[0]], shape[kept[0] : kept[-1] + 1], shape[kept[-1] + 1 :]
    batch, rows, columns = map(math.prod, spans)
    space = Space(rows, columns, batch=batch, by_ends=True)
    return space if space.size >= MIN_ENTRY * _MIN_ENTRIES else None


def has_work(batch: int, rows: int, columns: int) -> bool:
    """Check whether the batch entries are large enough for programs of their own."""
    return batch == 1 or rows * columns >= MIN_ENTRY


def space_of(operations: Sequence[BoundSymbol]) -> Space:
    """Return the common space of all these operations. Raise `Unfit` if they have none."""
    spaces: list[Space] = []
    largest = 0
    products = [op for op in operations if op.sym.id == MATVEC]
    if products:
        _check_products(operations)
    if any(map(is_scan, operations)):
        return _space_of_scans(operations)
    for op in operations:
        for p in op.flat_outs:
            if isinstance(p, TensorProxy):
                largest = max(largest, math.prod(p.shape))
        if not is_reduction(op):
            continue
        own = reduces(op)
        if own is None:
            raise Unfit("reduces dimensions that are not adjacent")
        if products and op.sym.id != MATVEC and _is_of_single_row(own, products[0]):
            continue  # each program computes it
        spaces.append(own)
    found = _space_of_reductions(spaces)
    if found is None:
        return Space(largest, 1)
    if is_long(found) and found.by_column:
        raise Unfit(f"rows of {found.columns} elements do not fit into registers")
    if largest > found.size:
        raise Unfit("has values larger than the reduced tensor")
    if type(found.columns) is int:
        check_grid(found)
    return found


def check_grid(space: Space) -> None:
    """Raise `Unfit` if a grid has too few blocks for the columns."""
    if space.by_column and not space.by_row and space.columns > MOST_BLOCKS * 1024:
        raise Unfit(f"sums {space.columns} columns, more than a grid has blocks for")


def _space_of_reductions(spaces: Sequence[Space]) -> Space | None:
    """Return the common space of reductions, if there are any, or raise `Unfit`."""
    by_row = [space for space in spaces if space.by_row]
    others = [space for space in spaces if not space.by_row]
    for same in (by_row, others):
        if any(space != same[0] for space in same):
            raise Unfit("has reductions of different shapes")
    if not by_row or not others:
        return spaces[0] if spaces else None
    rows, columns = by_row[0], others[0]
    period = _period(rows, columns)
    if columns.by_ends or period is None:
        raise Unfit("has reductions of different shapes")
    return rows._replace(by_column=True, period=period)


def _period(rows: Space, columns: Space) -> int | None:
    """Return the period of the sums over columns in a space that is also reduced by rows; None if they do not fit."""
    if (rows.batch, rows.rows, rows.columns) == (columns.batch, columns.rows, columns.columns):
        return 1
    sizes = rows.rows, rows.columns, columns.rows, columns.columns
    if columns.batch != 1 or any(type(n) is not int for n in sizes) or rows.size != columns.size:
        return None
    few = columns.columns <= MAX_COLUMNS and columns.rows >= MIN_REPEATS
    return columns.columns // rows.columns if few and columns.columns % rows.columns == 0 else None


def _space_of_scans(operations: Sequence[BoundSymbol]) -> Space:
    """Return the common space of scans and elementwise operations, or raise `Unfit`."""
    if any(map(is_reduction, operations)):
        raise Unfit("has both scans and reductions")
    spaces = {(s[0], s[1], s[2]) for s in map(scanned, filter(is_scan, operations))}
    if len(spaces) > 1:
        raise Unfit("has scans of different shapes or directions")
    rows, columns, direction = spaces.pop()
    space = Space(rows, columns, direction=direction)
    if any(math.prod(p.shape) > space.size for op in operations for p in op.flat_outs if isinstance(p, TensorProxy)):
        raise Unfit("has values larger than the scanned tensor")
    late: set[str] = set()  # values that depend on a scan
    for op in operations:
        if is_scan(op) or not late.isdisjoint(op.arg_names):
            if not (is_scan(op) or op.sym.id in POINTWISE or op.sym in (prims.transpose, prims.flip) or _keeps(op)):
                raise Unfit("reads elements of a scan that other blocks compute")
            late.update(op.out_names)
    return space


def _keeps(op: BoundSymbol) -> bool:
    """Check whether the result has the elements of the operand in the same order."""
    if not op.sym.facts.keeps_order and op.sym is not prims.broadcast_in_dim:
        return False
    return math.prod(op.args[0].shape) == math.prod(op.output.shape)


def _is_of_single_row(own: Space, product: BoundSymbol) -> bool:
    """Check whether a reduction has the shape of a product's single row."""
    return own.by_row and (own.rows, own.columns) == (1, product.args[0].shape[1])


def _check_products(operations: Sequence[BoundSymbol]) -> None:
    """Raise `Unfit` if an operation needs elements of a product that other programs compute."""
    late: set[str] = set()
    for op in operations:
        if not late.isdisjoint(op.arg_names):
            if op.sym.id not in POINTWISE and not _keeps(op):
                raise Unfit("reads elements of a product that other programs compute")
            late.update(op.out_names)
        elif op.sym.id == MATVEC:
            late.update(op.out_names)


def after_columns(operations: Sequence[BoundSymbol]) -> set[str]:
    """Return the values that depend on a reduction over columns, or over the rows of all batch entries."""
    late: set[str] = set()
    for op in operations:
        own = reduces(op) if is_reduction(op) else None
        if (own is not None and (own.by_column or own.by_ends)) or any(name in late for name in op.arg_names):
            late.update(op.out_names)
    return late
