# SPDX-License-Identifier: Apache-2.0
"""Fusions that write results to the memory of the program's inputs, e.g. an optimizer's update of a parameter.

A program of a kernel loads all its elements before it stores any, and each element belongs to one program. An input
may therefore have the memory of a result if each element of any result needs only the element of the input at its own
place: all values that are computed from this input are computed elementwise. In kernels that reduce, that holds for
numbers of rows or columns, e.g. the running statistics of a norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thunder.extend import BoundSymbol, FusionExecutor, OpTags, ResultMemory, Strides, TensorProxy, dense_strides
from thunder_ex_triton.cached_attention import is_cached_attention, strides_of_caches, update_in_place, written_caches
from thunder_ex_triton.fusion.layout import contiguous
from thunder_ex_triton.fusion.multi_tensor import MultiTensorUpdate
from thunder_ex_triton.fusion.op_table import POINTWISE
from thunder_ex_triton.fusion.region import FusedRegion
from thunder_ex_triton.matmul.padding import PaddedMatmul

__all__ = ["FusionMemory"]


_KERNELS = (FusedRegion, MultiTensorUpdate)


class FusionMemory(ResultMemory):
    """The memory of the results of fusions with known sizes, of padded matrix multiplications, and caches."""

    def __init__(self, executor: FusionExecutor):
        self.executor = executor

    def may_share(self, op: BoundSymbol) -> Sequence[str] | None:
        return ()  # kernels write to new memory

    def written(self, op: BoundSymbol) -> Sequence[str] | None:
        region: Any = op.sym.fn
        if is_cached_attention(op):
            return written_caches(op)
        return [op.args[i].name for i in region.into.values()] if type(region) in _KERNELS else None

    def strides(self, op: BoundSymbol, known: Mapping[str, Strides]) -> Mapping[str, Strides]:
        region = op.sym.fn
        if type(region) is MultiTensorUpdate:
            return region.result_strides(known)
        if region is PaddedMatmul.run:
            return {} if op.args[-1] else {op.output.name: _contiguous(op.output)}
        if is_cached_attention(op):
            return strides_of_caches(op, known)
        if type(region) is not FusedRegion:
            return {}
        if any(p.name not in known for p in region.inputs):
            return {p.name: (1,) for p in region.outputs if p.ndim == 1}
        layouts = zip(region.outputs, region.output_strides([known[p.name] for p in region.inputs]))
        found = {p.name: dense_strides(p.shape, strides) for p, strides in layouts}
        return {name: strides for name, strides in found.items() if strides is not None}

    def may_write(self, op: BoundSymbol) -> Callable[[str, TensorProxy, frozenset[str]], bool]:
        region = op.sym.fn
        if type(region) is MultiTensorUpdate:
            return lambda result, target, whole: region.may_write(result, whole)
        return super().may_write(op)

    def written_to(
        self, op: BoundSymbol, targets: Mapping[str, tuple[TensorProxy, frozenset[str]]]
    ) -> BoundSymbol | None:
        if is_cached_attention(op):
            return update_in_place(op, targets)
        region = op.sym.fn
        results = {name: target for name, (target, _) in targets.items()}
        if type(region) is MultiTensorUpdate:
            if not all(region.may_write(name, names) for name, (_, names) in targets.items()):
                return None
            fn: Any = region.writing(results, len(op.args))
        else:
            if type(region) is not FusedRegion or not _has_programs_of_elements(region, results):
                return None
            if not _is_elementwise_in(region, frozenset().union(*[names for _, names in targets.values()])):
                return None
            fn = region.writing(results)
        return self.executor.register_temporary_operation(
            op.sym.name, fn, inputs=(*op.args, *results.values()), outputs=op.output, bsyms=op.subsymbols,
            tags=(*op.sym.tags, OpTags.IN_PLACE_OP),
        )  # fmt: skip


def _contiguous(p: TensorProxy) -> Strides:
    found = dense_strides(p.shape, contiguous(p.shape))
    assert found is not None
    return found


def _has_programs_of_elements(region: FusedRegion, results: Mapping[str, TensorProxy]) -> bool:
    """Check whether each element of the results belongs to one program, which loads its operands before it stores it.

    In kernels that reduce, these are the results with an element for each row, or for each column. An input with other
    elements, or that is broadcast, may be read by all programs.
    """
    space = region.space
    if not space.reduces:
        return True
    if space.by_row == space.by_column or space.direction:
        return False
    count = space.all_rows if space.by_row else space.all_columns
    return count != space.size and all(math.prod(p.shape) == count for p in results.values())


def _is_elementwise_in(region: FusedRegion, names: frozenset[str]) -> bool:
    """Check whether all values that are computed from inputs are computed from their elements at the same place."""
    reached = set(names)
    for op in region.operations:
        if not reached.isdisjoint(op.arg_names):
            if op.sym.id not in POINTWISE or any(p.shape != op.output.shape for p in op.tensors() if p.name in reached):
                return False
            reached.update(op.out_names)
    return True
