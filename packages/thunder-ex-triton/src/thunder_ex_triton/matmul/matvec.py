# SPDX-License-Identifier: Apache-2.0
"""Products of a matrix and a single row, as in decoding a token: an operator that fusions compute.

Such a product reads a weight once, and is limited by memory. It is a sum over rows of the weight, `sum(weight * x)`,
so the kernels of fusions compute it like any reduction: with the norm of `x` before, and the activation or residual
connection after it. Two products of one input are one kernel. The scales of a quantized weight multiply its rows' sums,
so a kernel converts each number to single precision and does nothing else with it, and the sums are more precise.

The pass runs before executors claim operations. It replaces `linear` and `matmul` that torch would run, where
`is_profitable` says so. The option `triton_matvec=False` turns this off.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional as F

import thunder.torch as ltorch
from thunder import prims
from thunder.extend import BoundSymbol, TensorProxy, Trace, dtypes, is_left_to_torch, rewrite, to_torch_device
from thunder_ex_triton.matmul.padding import LINEAR, MATMULS, transposes
from thunder_ex_triton.probe import unusable_device

__all__ = [
    "DTYPES", "OPTION", "dequantized", "is_profitable", "like", "product_of", "register", "run",
]  # fmt: skip

OPTION = "triton_matvec"
DTYPES = (dtypes.float16, dtypes.bfloat16)
QUANTIZED = (dtypes.int8, dtypes.float8_e4m3fn)
FEWEST_COLUMNS = 256  # of shorter rows, a kernel of fusions would compute many for each program
MOST_COLUMNS = 1 << 15
_FLOAT8_GPU = (8, 9)  # the oldest compute capability with instructions for float8


def like(weight: Any, x: Any, scale: Any = None) -> Any:
    """Decompose into torch's operations. A weight with a scale of each row is quantized."""
    if scale is not None:
        weight = ltorch.to(weight, scale.dtype) * scale
    return ltorch.linear(x, weight)


def run(weight: torch.Tensor, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
    """Compute the product on its own. (Fusions contain it nearly always.)"""
    return F.linear(x, weight if scale is None else weight.to(scale.dtype) * scale)


def is_profitable(x: Any, weight: Any) -> bool:
    """Check whether a fusion computes the product of a single row `x` and the transpose of `weight`."""
    if not all(isinstance(p, TensorProxy) and all(type(n) is int for n in p.shape) for p in (x, weight)):
        return False
    if weight.ndim != 2 or not x.ndim or math.prod(x.shape[:-1]) != 1 or 0 in weight.shape:
        return False
    if x.dtype not in DTYPES or weight.dtype is not x.dtype or unusable_device(x.device) is not None:
        return False
    return FEWEST_COLUMNS <= weight.shape[1] <= MOST_COLUMNS


def dequantized(weight: TensorProxy, made_by: dict[str, BoundSymbol]) -> tuple[TensorProxy, TensorProxy | None]:
    """Return the numbers and the scales of the rows that a weight is computed from; else the weight, and None."""
    product = made_by.get(weight.name)
    if product is None or product.sym.id not in ("torch.mul", prims.mul.id) or len(product.tensors()) != 2:
        return weight, None
    converted, scale = product.args
    conversion = made_by.get(converted.name)
    if conversion is None or not _converts(conversion) or weight.ndim != 2:
        return weight, None
    numbers = conversion.args[0]
    fits = numbers.dtype in QUANTIZED and numbers.shape == weight.shape and scale.shape == (weight.shape[0], 1)
    fits = fits and converted.dtype is scale.dtype is weight.dtype
    return (numbers, scale) if fits and not _is_old_gpu(numbers) else (weight, None)


def _is_old_gpu(numbers: TensorProxy) -> bool:
    """Check whether a tensor in float8 is on a GPU without instructions that convert it."""
    device = to_torch_device(numbers.device)
    old = device.type == "cuda" and torch.cuda.get_device_capability(device) < _FLOAT8_GPU
    return old and numbers.dtype is dtypes.float8_e4m3fn


def _converts(op: BoundSymbol) -> bool:
    """Check whether an operation converts the dtype of a tensor, and does nothing else."""
    while not op.sym.is_prim and len(op.subsymbols) == 1 and op.subsymbols[0].out_names == op.out_names:
        op = op.subsymbols[0]
    return op.sym is prims.convert_element_type


def register(registry: Any, executor: str) -> None:
    """Register the operator, the option and the pass."""
    registry.register_option(
        OPTION, type=bool, default=True, help="whether fusions compute products of a matrix and a single row"
    )
    matvec = registry.register_operator("triton_matvec", executor=executor, like=like, fn=run)

    def replace(trace: Trace, context: Any) -> Trace:
        if not context.options.get(OPTION, True):
            return trace
        made_by = {name: op for op in trace.bound_symbols for name in op.out_names}

        def replacement(op: BoundSymbol) -> Any:
            found = product_of(op, made_by)
            if found is None or not is_profitable(*found[:2]) or not is_left_to_torch(op, context.executors):
                return None
            x, weight, bias = found
            numbers, scale = dequantized(weight, made_by)
            out = matvec(numbers, x) if scale is None else matvec(numbers, x, scale)
            return out if bias is None else out + bias

        if not any(product_of(op, made_by) is not None for op in trace.bound_symbols):
            return trace
        return rewrite(trace, "Products of single rows", replacement, drops_dead_code=True)

    registry.register_transform(OPTION, replace, phase="before_execution", executor=executor)


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
