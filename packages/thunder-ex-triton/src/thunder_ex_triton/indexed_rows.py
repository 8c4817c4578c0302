# SPDX-License-Identifier: Apache-2.0
"""Values that are added up at the rows of zeros, as the gradient of `x[index]` does: one sort, in place of torch's two.

The pass replaces `index_put(zeros, (index,), values, accumulate=True)`. The kernels are those of the gradient of an
embedding's table (`embedding.py`): their sums have a fixed order.
"""

from __future__ import annotations

import math
from typing import Any

import torch

import thunder.torch as ltorch
from thunder import prims
from thunder.extend import BoundSymbol, TensorProxy, Trace, dtypes, known_shape, rewrite
from thunder_ex_triton.embedding import LARGEST, TAKEN, WIDEST, sums_of_rows, workspace_of_sums
from thunder_ex_triton.probe import unusable_device

__all__ = ["add_rows", "like", "register"]

_ZEROS = frozenset({"torch.new_zeros", "torch.zeros", "torch.zeros_like"})
_INDICES = (dtypes.int64, dtypes.int32)


def add_rows(values: torch.Tensor, index: torch.Tensor, rows: int) -> torch.Tensor:
    """Return the sums of the values with the same index, for each index from 0 to `rows - 1`."""
    shape = (rows, *values.shape[index.ndim :])
    if values.numel() == 0:
        return values.new_zeros(shape)
    values = values.reshape(index.numel(), -1)
    if values.shape[1] > WIDEST:
        return values.new_zeros(rows, values.shape[1]).index_put_((index.reshape(-1),), values, True).reshape(shape)
    index = torch.where(index < 0, index + rows, index).reshape(-1)
    return sums_of_rows(values, index, rows, -1).reshape(shape)


def like(values: Any, index: Any, rows: int) -> Any:
    """Decompose into torch's operations."""
    zeros = ltorch.zeros((rows, *values.shape[index.ndim :]), dtype=values.dtype, device=values.device)
    return ltorch.index_put(zeros, (index,), values, True)


def _workspace(values: Any, index: Any, rows: int) -> int:
    shape = known_shape(values)
    return workspace_of_sums(values.dtype, math.prod(shape[: index.ndim]), math.prod(shape[index.ndim :]))


def register(registry: Any, executor: str) -> None:
    """Register the operator and the pass."""
    operator = registry.register_operator(
        "triton_add_rows", executor=executor, like=like, fn=add_rows, workspace=_workspace
    )

    def add(trace: Trace, context: Any) -> Trace:
        made_by = {name: op.sym.id for op in trace.bound_symbols for name in op.out_names}

        def replace(op: BoundSymbol) -> Any:
            if op.sym is not prims.index_put and op.sym.id != "torch.index_put":
                return None
            zeros, indices, values, *accumulate = (*op.args, *op.kwargs.values())
            if accumulate != [True] or len(indices) != 1 or made_by.get(zeros.name) not in _ZEROS:
                return None
            return operator(values, indices[0], zeros.shape[0]) if _takes(zeros, indices[0], values) else None

        return rewrite(trace, "Sums of indexed rows", replace, drops_dead_code=True)

    registry.register_transform("triton_add_rows", add, phase="before_execution", executor=executor)


def _takes(zeros: Any, index: Any, values: Any) -> bool:
    """Check whether the kernels support the tensors."""
    if (
        not isinstance(index, TensorProxy)
        or unusable_device(values.device) is not None
        or index.device != values.device
        or index.dtype not in _INDICES
    ):
        return False
    shapes = (zeros.shape, index.shape, values.shape)
    if values.dtype not in TAKEN or any(type(n) is not int for shape in shapes for n in shape):
        return False
    return (*index.shape, *zeros.shape[1:]) == tuple(values.shape) and max(zeros.shape[0], index.numel()) < LARGEST
