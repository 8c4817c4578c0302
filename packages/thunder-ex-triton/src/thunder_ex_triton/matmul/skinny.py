# SPDX-License-Identifier: Apache-2.0
"""Products of 2 to 16 rows and a weight, as in decoding a small batch: which of them Triton's kernels compute.

The pass runs before executors claim operations. It replaces `linear` and `matmul` that torch would run, where the
rule or a measurement says so, together with the dequantization of the weight (`QuantizationTransform`), the bias, and
the addition that alone reads the result (a residual connection). The option `triton_skinny=False` turns this off.

The rule: torch would dequantize a weight of eight bits into memory, which takes several times the bandwidth of reading
it, so the kernels compute products with such weights. cuBLAS computes all other products, unless measurements decide
otherwise (`thunder.jit(…, measured=True)`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

import thunder.torch as ltorch
from thunder import prims
from thunder.extend import BoundSymbol, TensorProxy, Trace, bytes_of, dtypes, is_left_to_torch, rewrite
from thunder.toolkit.measuring import Candidate, example_tensor, measured_choice, size_class
from thunder_ex_triton.matmul.matvec import dequantized, product_of
from thunder_ex_triton.matmul.skinny_kernels import ROWS, TILES, parts_of, skinny_product
from thunder_ex_triton.probe import interpreting, unusable_device

__all__ = ["OPTION", "SkinnyProduct", "is_skinny", "like", "register", "run", "workspace"]

OPTION = "triton_skinny"
DTYPES = (dtypes.float16, dtypes.bfloat16, dtypes.float32)
FEWEST_ELEMENTS = 1 << 18  # of a quantized weight; kernels of smaller ones take as long as their launch
_COLD = 1 << 27  # the bytes of weights that candidates read in turn, because a program finds none in the cache
_MOST_COPIES = 32
_TORCH = "torch"


class SkinnyProduct(NamedTuple):
    """A product: `x @ weight.T`, where the weight is quantized if it has a scale."""

    x: TensorProxy
    weight: TensorProxy
    scale: TensorProxy | None
    bias: TensorProxy | None


def like(x: Any, weight: Any, scale: Any, bias: Any, residual: Any, tile: str) -> Any:
    """Decompose into torch's operations."""
    if scale is not None:
        weight = ltorch.to(weight, scale.dtype) * scale
    out = ltorch.linear(x, weight, bias)
    return out if residual is None else out + residual


def run(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor | None, bias: torch.Tensor | None,
    residual: torch.Tensor | None, tile: str,
) -> torch.Tensor:  # fmt: skip
    """Compute the product with a tiling of `TILES`."""
    rows = x.reshape(-1, x.shape[-1])
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    added = None if residual is None else residual.contiguous()
    scales = None if scale is None else scale.contiguous()
    terms = None if bias is None else bias.contiguous()
    out = skinny_product(rows, weight.contiguous(), scales, terms, added, TILES[tile])
    return out.view(*x.shape[:-1], weight.shape[0])


def workspace(x: Any, weight: Any, scale: Any, bias: Any, residual: Any, tile: str) -> int:
    """Return the bytes of the parts."""
    parts, _ = parts_of(weight.shape[0], weight.shape[1], TILES[tile])
    return 0 if parts == 1 else parts * math.prod(x.shape[:-1]) * weight.shape[0] * 4


def is_skinny(product: SkinnyProduct) -> bool:
    """Check whether the kernels can compute a product."""
    x, weight, scale, bias = product
    tensors = [p for p in product if p is not None]
    if not all(isinstance(p, TensorProxy) and all(type(n) is int for n in p.shape) for p in tensors):
        return False
    if weight.ndim != 2 or not 2 <= math.prod(x.shape[:-1]) <= ROWS or 0 in weight.shape or x.ndim < 2:
        return False
    if interpreting() and x.dtype is dtypes.bfloat16:
        return False  # the interpreter multiplies the bits
    if x.dtype not in DTYPES or unusable_device(x.device) is not None or any(p.device is not x.device for p in tensors):
        return False
    if bias is not None and (bias.dtype is not x.dtype or bias.ndim != 1):
        return False
    return weight.dtype is x.dtype if scale is None else scale.dtype is x.dtype


def default_of(product: SkinnyProduct) -> str:
    """Return the candidate that the rule selects: the name of a tiling, or torch."""
    large = math.prod(product.weight.shape) >= FEWEST_ELEMENTS
    return next(iter(TILES)) if product.scale is not None and large else _TORCH


def choose(product: SkinnyProduct) -> str:
    """Return the candidate for a product: the name of a tiling, or torch."""
    x, weight, scale, bias = product
    default = default_of(product)
    names = [default, *[name for name in (*TILES, _TORCH) if name != default]]
    candidates = [Candidate(name, _preparing(product, name), repr(TILES.get(name))) for name in names]
    sizes = [math.prod(x.shape[:-1]), *map(size_class, weight.shape)]
    shape_class = [*sizes, str(x.dtype), str(weight.dtype), scale is not None, bias is not None]
    return measured_choice("matmul of few rows", shape_class, candidates, x.device)


def _preparing(product: SkinnyProduct, name: str) -> Callable[[], Callable[[], Any]]:
    """Return the function that prepares a candidate. Calls read different weights, as the layers of a model do."""

    def prepare() -> Callable[[], Any]:
        x, weight, scale, bias = [None if p is None else example_tensor(p) for p in product]
        assert x is not None and weight is not None
        copies = max(1, min(_MOST_COPIES, _COLD // bytes_of(product.weight)))
        weights = [weight.clone() for _ in range(copies)]
        calls = iter(range(1 << 60))

        def call() -> torch.Tensor:
            w = weights[next(calls) % copies]
            if name != _TORCH:
                return run(x, w, scale, bias, None, name)
            return F.linear(x, w if scale is None else w.to(scale.dtype) * scale, bias)

        return call

    return prepare


def register(registry: Any, executor: str) -> None:
    """Register the operator, the option and the pass."""
    registry.register_option(
        OPTION, type=bool, default=True, help="whether Triton's kernels compute products of a weight and 2 to 16 rows"
    )
    skinny = registry.register_operator(
        "triton_skinny_linear", executor=executor, like=like, fn=run, workspace=workspace
    )

    def replace(trace: Trace, context: Any) -> Trace:
        if not context.options.get(OPTION, True):
            return trace
        found = _Replacements(trace, context.executors, skinny)
        return rewrite(trace, "Products of few rows", found, drops_dead_code=True) if found.products else trace

    registry.register_transform(
        OPTION, replace, phase="before_execution", before="triton_padded_matmul", executor=executor
    )


class _Replacements:
    """The products of one trace that the kernels compute, and the additions that they include."""

    def __init__(self, trace: Trace, executors: Sequence[Any], skinny: Any):
        self.skinny = skinny
        self.made_by = {name: op for op in trace.bound_symbols for name in op.out_names}
        #: By the name of the result.
        self.products: dict[str, tuple[SkinnyProduct, str]] = {}
        for op in trace.bound_symbols:
            product = self.product(op)
            if product is None or not is_skinny(product) or not is_left_to_torch(op, executors):
                continue
            tile = choose(product)
            if tile != _TORCH:
                self.products[op.out_names[0]] = product, tile
        readers: dict[str, list[BoundSymbol]] = {}
        for op in trace.bound_symbols if self.products else ():
            for name in op.arg_names:
                readers.setdefault(name, []).append(op)
        #: The additions, by the name of their result, with the product and the other operand.
        self.additions: dict[str, tuple[str, Any]] = {}
        for name in self.products:
            if len(readers.get(name, ())) == 1:
                self._include(name, readers[name][0])

    def product(self, op: BoundSymbol) -> SkinnyProduct | None:
        found = product_of(op, self.made_by)
        if found is None or not isinstance(found[1], TensorProxy):
            return None
        x, weight, bias = found
        numbers, scale = dequantized(weight, self.made_by)
        return SkinnyProduct(x, numbers, scale, bias)

    def _include(self, name: str, op: BoundSymbol) -> None:
        """Include an addition of two tensors of one shape and dtype, of which one is a product."""
        if op.sym.id not in ("torch.add", prims.add.id) or len(op.args) != 2 or op.kwargs:
            return
        a, b = op.args
        if not (isinstance(a, TensorProxy) and isinstance(b, TensorProxy)) or a.name == b.name:
            return
        other = b if a.name == name else a
        if a.shape == b.shape == op.output.shape and a.dtype is b.dtype is op.output.dtype:
            self.additions.setdefault(op.out_names[0], (name, other))

    def __call__(self, op: BoundSymbol) -> Any:
        if len(op.out_names) != 1:
            return None
        name = op.out_names[0]
        if name in self.additions:
            product, residual = self.additions[name]
            return self.call(product, residual)
        return self.call(name, None) if name in self.products else None

    def call(self, name: str, residual: Any) -> Any:
        (x, weight, scale, bias), tile = self.products[name]
        return self.skinny(x, weight, scale, bias, residual, tile)
