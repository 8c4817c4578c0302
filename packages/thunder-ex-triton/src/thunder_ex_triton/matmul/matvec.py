# SPDX-License-Identifier: Apache-2.0
"""Products of a matrix and a single row, as in decoding a token: an operator that fusions compute.

Such a product reads a weight once, and is limited by memory. It is a sum over rows of the weight, `sum(weight * x)`,
so the kernels of fusions compute it like any reduction: with the norm of `x` before, the dequantization of the weight,
and the activation or residual connection after it. Two products of one input are one kernel.

The pass runs before executors claim operations. It replaces `linear` and `matmul` that torch would run, where
`is_profitable` says so. The option `triton_matvec=False` turns this off.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional as F

import thunder.torch as ltorch
from thunder.extend import BoundSymbol, TensorProxy, Trace, are_named, dtypes, rewrite
from thunder_ex_triton.matmul.padding import LINEAR, MATMULS, transposes
from thunder_ex_triton.probe import unusable_device

__all__ = ["DTYPES", "OPTION", "is_profitable", "like", "product_of", "register", "run"]

OPTION = "triton_matvec"
DTYPES = (dtypes.float16, dtypes.bfloat16)
FEWEST_COLUMNS = 256  # of shorter rows, a kernel of fusions would compute many for each program
MOST_COLUMNS = 1 << 15


def like(weight: Any, x: Any) -> Any:
    """Decompose into torch's operations."""
    return ltorch.linear(x, weight)


def run(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Compute the product on its own. (Fusions contain it nearly always.)"""
    return F.linear(x, weight)


def is_profitable(x: Any, weight: Any) -> bool:
    """Check whether a fusion computes the product of a single row `x` and the transpose of `weight`."""
    if not all(isinstance(p, TensorProxy) and all(type(n) is int for n in p.shape) for p in (x, weight)):
        return False
    if weight.ndim != 2 or not x.ndim or math.prod(x.shape[:-1]) != 1 or 0 in weight.shape:
        return False
    if x.dtype not in DTYPES or weight.dtype is not x.dtype or unusable_device(x.device) is not None:
        return False
    return FEWEST_COLUMNS <= weight.shape[1] <= MOST_COLUMNS


def register(registry: Any, executor: str) -> None:
    """Register the operator, the option and the pass."""
    registry.register_option(
        OPTION, type=bool, default=True, help="whether fusions compute products of a matrix and a single row"
    )
    matvec = registry.register_operator("triton_matvec", executor=executor, like=like, fn=run)

    def replace(trace: Trace, context: Any) -> Trace:
        if not context.options.get(OPTION, True) or all(ex.name != executor for ex in context.executors):
            return trace
        others = [ex for ex in context.executors if not ex.is_fallback]
        named = are_named(context.executors)
        made_by = {name: op for op in trace.bound_symbols for name in op.out_names}

        def replacement(op: BoundSymbol) -> Any:
            found = product_of(op, made_by)
            if found is None or not is_profitable(*found[:2]) or any(ex.takes(op, named=named) for ex in others):
                return None
            x, weight, bias = found
            out = matvec(weight, x)
            return out if bias is None else out + bias

        if not any(product_of(op, made_by) is not None for op in trace.bound_symbols):
            return trace
        return rewrite(trace, "Products of single rows", replacement, drops_dead_code=True)

    registry.register_transform(OPTION, replace, phase="before_execution")


def product_of(op: BoundSymbol, made_by: dict[str, BoundSymbol]) -> tuple[Any, Any, Any] | None:
    """Return the row, the weight and the bias of a product; None if `op` is another operation."""
    x, weight, bias = (*op.args, *op.kwargs.values(), None, None, None)[:3]
    if op.sym.id in LINEAR:
        fits = bias is None or (isinstance(bias, TensorProxy) and bias.ndim == 1 and bias.dtype is x.dtype)
        return (x, weight, bias) if fits else None
    transposing = made_by.get(weight.name) if op.sym.id in MATMULS and isinstance(weight, TensorProxy) else None
    if transposing is None or not transposes(transposing):
        return None  # a row of the weight is not contiguous
    return x, transposing.args[0], None
