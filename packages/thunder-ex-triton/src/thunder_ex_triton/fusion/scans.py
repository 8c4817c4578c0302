# SPDX-License-Identifier: Apache-2.0
"""Scans that kernels compute: linear recurrences, cumulative sums and the like, and `associative_scan`.

A kernel goes along the scanned dimension in blocks. `tl.associative_scan` scans a block, and what the blocks before it
amount to is carried from block to block. Operands are read once, and results are written once, with the operations
before and after the scan. Half precision is computed and carried in single precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from thunder import prims
from thunder.extend import BoundSymbol, TensorProxy, dtypes
from thunder_ex_triton.fusion.index import Group, Index
from thunder_ex_triton.fusion.op_table import POINTWISE, compute_type, literal, operands_of
from thunder_ex_triton.probe import interpreting

__all__ = [
    "ASSOCIATIVE",
    "FEWEST_ROWS",
    "Scan",
    "combining",
    "is_scan",
    "scan_index",
    "scan_of",
    "scanned",
    "unfit_scan",
]

ASSOCIATIVE = "torch.associative_scan"  # the id of scans with a function of the user
# torch has kernels for the other scans. They are slow where many rows are scanned, and fast for few long ones.
FEWEST_ROWS = 1024

_LOG1P = "tl.log(1.0 + {})" if interpreting() else "libdevice.log1p({})"


class Scan(NamedTuple):
    """How a kernel computes a scan.

    `lines` is the body of the function that combines `left0, left1, …` and `right0, right1, …`.
    """

    operands: tuple[Any, ...]  # tensors; None for the position along the scanned dimension
    lines: tuple[str, ...]
    results: tuple[int, ...]  # the position among the operands, for each output of the operation
    carried: tuple[int, ...]  # the operands whose combination the next block needs


def combining(name: str, count: int, lines: Sequence[str]) -> list[str]:
    """Return the source of a function of this body that combines two elements of `count` operands each."""
    given = [f"{side}{i}" for side in ("left", "right") for i in range(count)]
    return ["@triton.jit", f"def {name}({', '.join(given)}):", *(f"    {line}" for line in lines), ""]


def _extremum(order: str) -> tuple[str, ...]:
    """Return the lines that choose the later of equal elements, and NaN before all numbers, as torch does."""
    later = f"(right0 != right0) | ((left0 == left0) & (right0 {order} left0))"
    return (f"later = {later}", "return tl.where(later, right0, left0), tl.where(later, right1, left1)")


# For each primitive `(a, dim)`: the lines of the function that combines two elements.
_LINES: dict[Any, tuple[str, ...]] = {
    prims.cumsum.id: ("return left0 + right0",),
    prims.cumprod.id: ("return left0 * right0",),
    prims.cummax.id: _extremum(">="),
    prims.cummin.id: _extremum("<="),
    prims.logcumsumexp.id: (
        "most = tl.maximum(left0, right0, propagate_nan=tl.PropagateNan.ALL)",
        "least = tl.minimum(left0, right0, propagate_nan=tl.PropagateNan.ALL)",
        f"added = most + {_LOG1P.format('tl.exp(least - most)')}",
        "return tl.where((least == most) & (tl.abs(most) == float('inf')), most, added)",
    ),
}


def is_scan(bsym: BoundSymbol) -> bool:
    """Check whether an operation is a scan that kernels may compute."""
    return bsym.sym.id in _LINES or bsym.sym.id == ASSOCIATIVE or bsym.sym is prims.linear_recurrence


def scanned(bsym: BoundSymbol) -> tuple[int, int, int]:
    """Return the number of rows, the number of elements that are scanned in each, and the direction (1 or -1)."""
    dim, shape = _dim(bsym), _results(bsym)[0].shape
    reverse = bsym.sym is prims.linear_recurrence and len(bsym.args) > 3 and bsym.args[3]
    return math.prod([*shape[:dim], *shape[dim + 1 :]]), shape[dim], -1 if reverse else 1


def scan_index(bsym: BoundSymbol) -> Index:
    """Return the index at which a kernel computes the results of a scan: `x` counts through all other dimensions."""
    dim, shape = _dim(bsym), _results(bsym)[0].shape
    rows = Index([Group("x", (*shape[:dim], *shape[dim + 1 :]))]).dims()
    return Index([*rows[:dim], Group("r", (shape[dim],)), *rows[dim:]])


def _dim(bsym: BoundSymbol) -> int:
    position = 1 if bsym.sym.id in _LINES else 2
    return int(bsym.args[position]) % _results(bsym)[0].ndim


def _results(bsym: BoundSymbol) -> list[Any]:
    return list(bsym.flat_outs)


def scan_of(bsym: BoundSymbol) -> Scan:
    """Return how a kernel computes a scan."""
    if bsym.sym is prims.linear_recurrence:
        lines = ("return left0 * right0, right0 * left1 + right1",)
        return Scan(tuple(bsym.args[:2]), lines, results=(1,), carried=(1,))
    if bsym.sym.id == ASSOCIATIVE:
        every = tuple(range(len(bsym.args[1])))
        return Scan(tuple(bsym.args[1]), tuple(_lines(bsym.args[0])), every, every)
    if bsym.sym in (prims.cummax, prims.cummin):
        return Scan((bsym.args[0], None), _LINES[bsym.sym.id], (0, 1), (0, 1))
    return Scan((bsym.args[0],), _LINES[bsym.sym.id], (0,), (0,))


def _lines(combine: Any) -> list[str]:
    """Return the lines of the user's function, whose operations are elementwise primitives."""
    names = {p.name: f"left{i}" for i, p in enumerate(combine.left)}
    names.update((p.name, f"right{i}") for i, p in enumerate(combine.right))
    lines = []
    for op in combine.operations:
        operands = [names[a.name] if isinstance(a, TensorProxy) else literal(a) for a in operands_of(op)]
        name = names[op.output.name] = f"w{len(lines)}"
        lines.append(f"{name} = {POINTWISE[op.sym.id](op, *operands)}")
    # A constant or a comparison may have another type than the tiles that are scanned.
    results = [f"{names[p.name]}.to({compute_type(p.dtype)})" for p in combine.output]
    return [*lines, f"return {', '.join(results)}"]


def unfit_scan(bsym: BoundSymbol, unfit: Callable[[BoundSymbol], str | None]) -> str | None:
    """Return why kernels do not compute a scan; None if they do. `unfit` answers the same for other operations."""
    tensors: Sequence[TensorProxy] = [*bsym.tensors(), *_results(bsym)]
    if any(p.dtype is dtypes.bool8 or not p.ndim for p in tensors):
        return "scans booleans, or a single number"
    rows, columns, _ = scanned(bsym)
    if columns < 2:
        return "scans a single element"
    if bsym.sym.id == ASSOCIATIVE:
        inner = bsym.args[0].operations
        return next(filter(None, (_unfit_part(op, unfit) for op in inner)), None)
    if bsym.sym is not prims.linear_recurrence and rows < FEWEST_ROWS:
        return "scans few rows, for which torch's kernels are fast"
    return None


def _unfit_part(op: BoundSymbol, unfit: Callable[[BoundSymbol], str | None]) -> str | None:
    if op.sym.id not in POINTWISE or op.sym is prims.tanh:  # the code of tanh is assembly for blocks of elements
        return f"combines elements by {op.sym.name}"
    return unfit(op)
