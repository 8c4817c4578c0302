# SPDX-License-Identifier: Apache-2.0
"""The executor "nvfuser": which operations it takes, and which of them become one definition."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import Trace
from thunder.execution.regions import Region, flattened, fused, partition
from thunder.extend import FusionExecutor
from thunder.transforms.region import without_views
from thunder_ex_nvfuser.library import unusable_device
from thunder_ex_nvfuser.operations import OPERATIONS, VIEWS, stored
from thunder_ex_nvfuser.region import FusedRegion

__all__ = ["NvFusion"]

MOST_DIMENSIONS = 8
# A larger definition takes nvFuser long to divide and to schedule.
MOST_OPERATIONS = 150


class NvFusion(FusionExecutor):
    """Pointwise operations, reductions and shapes, handed to nvFuser a region at a time."""

    def fuse_whole_rejection(self, bsym: BoundSymbol) -> str | None:
        return _unfit(bsym)

    def fusion_pass(self, trace: Trace) -> Trace:
        count = 0

        def key(bsym: BoundSymbol) -> Hashable:
            if not bsym.out_names or self.fuse_rejection(bsym) is not None:
                return None
            return next(p.device for p in bsym.flat_outs if isinstance(p, TensorProxy))

        def run(region: Region) -> Sequence[BoundSymbol] | None:
            nonlocal count
            before, inner, after = without_views(region)
            operations = flattened(inner.operations, lambda op: _unfit(op) is None)
            if not any(op.sym.id not in VIEWS for op in operations) or not inner.inputs or not self.get_fuel():
                return None
            fn = FusedRegion(f"nvFusion{count}", inner, operations)
            count += 1
            whole = self.register_temporary_operation(
                fn.name, fn, inputs=inner.inputs, outputs=inner.outputs, bsyms=inner.operations
            )
            return [*before, whole, *after]

        return fused(trace, partition(trace, key, max_size=MOST_OPERATIONS), run, "Fusion by nvFuser")


def _unfit(bsym: BoundSymbol) -> str | None:
    """Why a primitive is not given to nvFuser; of a composite, that its parts have to be asked."""
    sym = bsym.sym
    if not sym.is_prim or sym.executor is not None:
        return "is no primitive"
    entry = OPERATIONS.get(sym.id)
    if entry is None:
        return "nvFuser has no such function"
    values: list[Any] = [*bsym.flat_args, *bsym.flat_outs]
    for p in values:
        if not isinstance(p, TensorProxy):
            return "works on what is no tensor"
        reason = _unfit_tensor(p)
        if reason is not None:
            return reason
    if len({p.device for p in values}) > 1:
        return "works on several devices"
    if any(isinstance(a, complex) for a in bsym.args):
        return "computes with complex numbers"
    return None if entry(bsym, lambda p: p.name) is not None else f"nvFuser does not do that with {values[0].dtype}"


def _unfit_tensor(p: TensorProxy) -> str | None:
    if p.ndim > MOST_DIMENSIONS:
        return f"has more than {MOST_DIMENSIONS} dimensions"
    if any(type(d) is not int for d in p.shape):
        return "works on a size that is only known at the call"
    if 0 in p.shape:
        return "has no elements"
    if stored(p.dtype) is None:
        return f"{p.dtype} is no type of nvFuser's"
    return unusable_device(p.device)
