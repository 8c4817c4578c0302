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
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

import thunder.torch as ltorch
from thunder import prims
from thunder.extend import BoundSymbol, OpTags, TensorProxy, Trace, are_named, dtypes, rewrite, to_torch_device
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
MOST_ROWS = 1
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
    if weight.ndim != 2 or not x.ndim or not 1 <= math.prod(x.shape[:-1]) <= MOST_ROWS or 0 in weight.shape:
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
        if not context.options.get(OPTION, True) or all(ex.name != executor for ex in context.executors):
            return trace
        found = _Replacements(trace, context.executors, matvec)
        return rewrite(trace, "Products of single rows", found, drops_dead_code=True) if found.products else trace

    registry.register_transform(OPTION, replace, phase="before_execution")


class _Product(NamedTuple):
    """A product: `x @ weight.T + bias`, where the weight is quantized if it has a scale."""

    x: TensorProxy
    weight: TensorProxy
    scale: TensorProxy | None
    bias: TensorProxy | None


class _Replacements:
    """The products of one trace that fusions compute, and those that are joined.

    Layers of different sizes that read the same row (queries, keys and values) are one product with a concatenation of
    their weights. The kernel reads each row from its own weight, so nothing is copied.
    """

    def __init__(self, trace: Trace, executors: Sequence[Any], matvec: Any):
        self.matvec = matvec
        self.made_by = {name: op for op in trace.bound_symbols for name in op.out_names}
        others = [ex for ex in executors if not ex.is_fallback]
        named = are_named(executors)
        #: By the name of the result.
        self.products: dict[str, _Product] = {}
        for op in trace.bound_symbols:
            found = product_of(op, self.made_by)
            if found is None or not is_profitable(*found[:2]) or any(ex.takes(op, named=named) for ex in others):
                continue
            x, weight, bias = found
            self.products[op.output.name] = _Product(x, *dequantized(weight, self.made_by), bias)
        self.groups = self._groups(trace) if len(self.products) > 1 else {}
        self.parts: dict[str, Any] = {}  # the results of joined products

    def _groups(self, trace: Trace) -> dict[str, list[str]]:
        """Return the products that are joined, by each of their names: those that only views read."""
        read = {n for op in trace.bound_symbols if OpTags.VIEW_OP not in op.sym.tags for n in op.arg_names}
        groups: dict[Any, list[str]] = {}
        for name, (x, weight, scale, bias) in self.products.items():
            inputs = all(p is None or p.name not in self.made_by for p in (weight, scale, bias))
            if inputs and name not in read and math.prod(x.shape[:-1]) == 1:
                key = (x.name, weight.shape[1], weight.dtype, scale is None, bias is None)
                groups.setdefault(key, []).append(name)
        # Products of one size are one kernel in any case.
        joined = [g for g in groups.values() if len({self.products[n].weight.shape[0] for n in g}) > 1]
        return {name: group for group in joined for name in group}

    def __call__(self, op: BoundSymbol) -> Any:
        name = op.out_names[0] if len(op.out_names) == 1 else ""
        if name not in self.products:
            return None
        if name not in self.groups:
            return self._call(self.products[name])
        if name not in self.parts:
            group = [self.products[n] for n in self.groups[name]]
            weight, scale, bias = map(_joined, [*zip(*group)][1:])
            out = self._call(_Product(group[0].x, weight, scale, bias))
            parts = ltorch.split(out, [product.weight.shape[0] for product in group], -1)
            self.parts.update(zip(self.groups[name], parts))
        return self.parts[name]

    def _call(self, product: _Product) -> Any:
        x, weight, scale, bias = product
        out = self.matvec(weight, x) if scale is None else self.matvec(weight, x, scale)
        return out if bias is None else out + bias


def _joined(tensors: Sequence[Any]) -> Any:
    return None if tensors[0] is None else ltorch.cat(tensors)


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
