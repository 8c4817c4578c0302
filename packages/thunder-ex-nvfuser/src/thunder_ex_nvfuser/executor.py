# SPDX-License-Identifier: Apache-2.0
"""The executor "nvfuser": decide which operations can be fused, and which operations form one definition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import thunder.torch as ltorch
from thunder import prims
from thunder.extend import BoundSymbol, FusionExecutor, NumberProxy, Saved, SymbolicNumber, TensorProxy, Trace, dtypes
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
# The ids of operations that subtract the largest element before `exp`.
_SHIFTED_BY_LARGEST = frozenset(
    symbol.id
    for symbol in (
        ltorch.softmax, ltorch.log_softmax, ltorch.logsumexp, ltorch.scaled_dot_product_attention,
        ltorch.attention_forward,
    )
)  # fmt: skip


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
    """Check whether a gradient looks for amax or amin of computed values: in this trace, or in its backward program.

    The gradient recomputes the elements and compares them for equality. In another fusion or kernel, nvFuser may round
    the same operations differently (in half precision, or where it contracts a product and a sum), and so may torch:
    then no element is equal. If torch runs both traces, results are bitwise equal. Elements that the trace is given, or
    only converts to a wider dtype, are the same everywhere.
    """
    returned = trace.output
    has_backward = isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Saved)
    spread: set[str] = set()
    computed: set[str] = set()
    for op in _leaves(trace.bound_symbols):
        known = computed.isdisjoint(op.arg_names)
        if op.sym.id in VIEWS:
            if op.sym.id is prims.broadcast_in_dim.id or not spread.isdisjoint(op.arg_names):
                spread.update(op.out_names)
        elif op.sym.id in _EXTREMES or (op.sym.id is prims.eq.id and not spread.isdisjoint(op.arg_names)):
            looked_for = has_backward or op.sym.id not in _EXTREMES
            if any(p.dtype in _HALF for p in op.tensors()) or (looked_for and not known):
                return True
            known = known and op.sym.id in _EXTREMES  # the largest of given elements is one of them
        elif op.sym.id in _SHIFTED_BY_LARGEST or (op.sym.id in OPERATIONS and not _widens(op)):
            known = False
        if not known:
            computed.update(op.out_names)
    return False


def _widens(op: BoundSymbol) -> bool:
    """Check whether an operation is a conversion that rounds nothing."""
    if op.sym.id is not prims.convert_element_type.id:
        return False
    a, out = op.args[0].dtype, op.output.dtype
    return dtypes.is_float_dtype(a) and dtypes.is_float_dtype(out) and a.bytes < out.bytes


def _leaves(operations: Iterable[BoundSymbol]) -> Iterator[BoundSymbol]:
    """Yield the primitives of a program, but leave operations of `_SHIFTED_BY_LARGEST` whole.

    The largest element only shifts these operations' exponents, and their gradient rules do not look for it again.
    """
    for op in operations:
        if op.sym.id in _SHIFTED_BY_LARGEST or not op.subsymbols:
            yield op
        else:
            yield from _leaves(op.subsymbols)


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
