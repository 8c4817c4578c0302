# SPDX-License-Identifier: Apache-2.0
"""The executor "nvfuser": decide which operations can be fused, and which operations form one definition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thunder import prims
from thunder.extend import BoundSymbol, FusionExecutor, NumberProxy, SymbolicNumber, TensorProxy, Trace, dtypes
from thunder.toolkit.fusion import (
    Region,
    by_device,
    flattened,
    partition,
    reject_values,
    replace_regions,
    without_views,
)  # fmt: skip
from thunder_ex_nvfuser.definition import seeds_of
from thunder_ex_nvfuser.op_table import OPERATIONS, UNIFORM, VIEWS, stored
from thunder_ex_nvfuser.probe import unusable_device
from thunder_ex_nvfuser.region import FusedRegion

__all__ = ["NvFusion"]

MOST_DIMENSIONS = 8
# nvFuser needs a long time to segment and schedule larger definitions.
MOST_OPERATIONS = 150
_EXTREMES = (prims.amax.id, prims.amin.id)
_HALF = (dtypes.float16, dtypes.bfloat16)


class NvFusion(FusionExecutor):
    """Fuses regions of pointwise operations, reductions and shape operations with nvFuser."""

    def why_not_fusible(self, bsym: BoundSymbol) -> str | None:
        return _unfit(bsym)

    def fusion_pass(self, trace: Trace) -> Trace:
        if _looks_for_largest(trace):
            return trace
        count = 0

        def run(region: Region) -> Sequence[BoundSymbol] | None:
            nonlocal count
            before, inner, after = without_views(region, reshapes=False)
            operations = flattened(inner.operations, lambda op: _unfit(op) is None)
            if not any(op.sym.id not in VIEWS for op in operations) or not _follow(inner, operations):
                return None
            if not self.get_fuel():
                return None
            fn = FusedRegion(f"nvFusion{count}", inner, operations, self)
            count += 1
            whole = self.register_temporary_operation(
                fn.name, fn, inputs=inner.inputs, outputs=inner.outputs, bsyms=inner.operations
            )
            return [*before, whole, *after]

        return replace_regions(
            trace, partition(trace, by_device(self), max_size=MOST_OPERATIONS), run, "Fusion by nvFuser"
        )


def _looks_for_largest(trace: Trace) -> bool:
    """Check whether a trace computes amax or amin in half precision, or compares with the result as the gradient does.

    The gradient recomputes the elements and compares them for equality. In another fusion or kernel, nvFuser may round
    the same operations differently, and then no element is equal. If torch runs both traces, results are bitwise equal.
    """
    spread: set[str] = set()
    for op in flattened(trace.bound_symbols, lambda op: not op.subsymbols):
        if op.sym.id is prims.broadcast_in_dim.id:
            spread.update(op.out_names)
        elif any(p.dtype in _HALF for p in op.tensors()) and (
            op.sym.id in _EXTREMES or (op.sym.id is prims.eq.id and spread.intersection(op.arg_names))
        ):
            return True
    return False


def _follow(region: Region, operations: Sequence[BoundSymbol]) -> bool:
    """Check whether a region has an input tensor, and whether all its sizes can be computed from the inputs."""
    seeds = {p.name for p in seeds_of(operations)}
    leaves = {p.name for p in region.inputs if isinstance(p, NumberProxy)}
    tensors = [p for p in region.inputs if isinstance(p, TensorProxy) and p.name not in seeds]
    sizes = [d for p in tensors for d in p.shape if isinstance(d, SymbolicNumber)]
    leaves |= {d.leaves[0].name for d in sizes if len(d.leaves) == 1 and d.same(d.leaves[0].symbol)}
    made = [d for op in region.operations for p in op.tensors() for d in p.shape if isinstance(d, SymbolicNumber)]
    return bool(tensors) and all(p.name in leaves for d in made for p in d.leaves)


def _unfit(bsym: BoundSymbol) -> str | None:
    """Return why an operation cannot be fused, or None. A composite cannot be fused, but its parts may be."""
    sym = bsym.sym
    if sym.id == UNIFORM:  # the numbers of a seed on the CPU
        return _reject([bsym.output])
    if not sym.is_prim or sym.executor is not None:
        return "is not a primitive"
    entry = OPERATIONS.get(sym.id)
    if entry is None:
        return "nvFuser has no such function"
    values: list[Any] = [*bsym.flat_args, *bsym.flat_outs]
    reason = _reject(values)
    if reason is not None:
        return reason
    tensors = [p for p in values if isinstance(p, TensorProxy)]
    if sym.id in _EXTREMES and tensors[0].dtype in _HALF:
        return "its gradient would not find these elements again in half precision, so torch runs the program"
    if any(type(a) is complex for a in bsym.args):
        return "computes with complex numbers"
    return None if entry(bsym, str) is not None else f"nvFuser does not support this operation for {tensors[0].dtype}"


def _reject(values: Sequence[Any]) -> str | None:
    """Return why nvFuser does not support these values; None if it does."""
    if any(type(d) is int and d == 0 for p in values if isinstance(p, TensorProxy) for d in p.shape):
        return "has no elements"
    return reject_values(values, "nvFuser", stored, unusable_device, max_dimensions=MOST_DIMENSIONS)
