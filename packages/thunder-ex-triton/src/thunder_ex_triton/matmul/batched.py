# SPDX-License-Identifier: Apache-2.0
"""Batched products of small matrices, as in attention to windows: which of them Triton's kernel computes.

The pass runs before executors claim operations. It replaces `matmul` and `bmm` of two batches that torch would run,
where the rule or a measurement says so (`thunder.jit(…, measured=True)`), in the gradients as well. The kernel reads
operands by their strides. So it reads the tensor before a reshape that merges dimensions of the batch, which copies
permuted and broadcast operands (gradients of `matmul` contain such reshapes). The option `triton_batched=False` turns
this off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

import thunder.torch as ltorch
from thunder.extend import BoundSymbol, TensorProxy, Trace, dtypes, is_left_to_torch, rewrite
from thunder.toolkit.measuring import Candidate, example_tensor, measured_choice, size_class
from thunder_ex_triton.matmul.batched_kernels import BATCH_DIMS, TILES, batched_product
from thunder_ex_triton.matmul.padding import MATMULS, transposes
from thunder_ex_triton.probe import interpreting, unusable_device

__all__ = ["DTYPES", "OPTION", "TORCH", "Operand", "Product", "default_of", "like", "register", "run", "tiling_of"]

OPTION = "triton_batched"
HALF = (dtypes.float16, dtypes.bfloat16)
DTYPES = (*HALF, dtypes.float32)
TORCH = "torch"
FEWEST_MATRICES = 8  # for measurements
FEWEST_BY_RULE = 96  # fewer take as long as a launch
LARGEST = 1024  # of all sizes of the matrices: cuBLAS is better at larger ones
_VECTOR = 8  # elements of 16 bytes, at whose multiples the rows begin that cuBLAS' fast kernels read
_MOST_PROGRAMS = (1 << 31) - 1


class Operand(NamedTuple):
    """A batch of matrices: `source`, or the transposes of its matrices."""

    source: TensorProxy
    transposed: bool

    @property
    def batch(self) -> tuple[int, ...]:
        return tuple(self.source.shape[:-2])

    @property
    def sizes(self) -> tuple[int, int]:
        rows, columns = self.source.shape[-2:]
        return (columns, rows) if self.transposed else (rows, columns)

    def read(self) -> TensorProxy:
        """Return the matrices, as a view."""
        return ltorch.mT(self.source) if self.transposed else self.source


class Product(NamedTuple):
    """A product of two batches of matrices."""

    a: Operand
    b: Operand

    @property
    def batch(self) -> tuple[int, ...]:
        return tuple(torch.broadcast_shapes(self.a.batch, self.b.batch))

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The rows and columns of the result, and the inner size."""
        (m, k), (_, n) = self.a.sizes, self.b.sizes
        return m, n, k


def like(a: Any, b: Any, tile: str) -> Any:
    """Decompose into torch's operations."""
    return ltorch.matmul(a, b)


def run(a: torch.Tensor, b: torch.Tensor, tile: str) -> torch.Tensor:
    """Compute the product with a tiling of `TILES`."""
    return batched_product(a, b, TILES[tile])


def default_of(product: Product) -> str:
    """Return the candidate that the rule selects: the name of a tiling, or torch.

    Tilings are selected only where one was measured to be faster than cuBLAS (`benchmarks/batched.py`).
    """
    many = math.prod(product.batch) >= FEWEST_BY_RULE and product.a.source.dtype in HALF
    return (tiling_of(*product.sizes) if many else None) or TORCH


def tiling_of(m: int, n: int, k: int) -> str | None:
    """Return the tiling for products of many matrices in half precision; None if cuBLAS is faster or not measured."""
    if max(m, n, k) <= 64:  # a single tile: 0.3 to 0.8 of cuBLAS' time, 0.97 where memory is the limit
        if (m % 2 and n % 2 and k % 2) or n <= 16 < k:
            return None  # neither operands nor the result have vectors, or not measured
        return next(name for name, tile in TILES.items() if m <= tile.rows and n <= tile.columns and k <= tile.inner)
    # Scores and values of attention to a number of tokens for which rows begin anywhere: 0.23 to 0.8
    if m % _VECTOR and n % _VECTOR and k % _VECTOR == 0 and k <= 80 and 64 < min(m, n) <= max(m, n) <= 512:
        return "64x32x64" if n <= 96 and k <= 64 else "64x64x32"
    if m % _VECTOR and k % _VECTOR and n % _VECTOR == 0 and n <= 64 < min(m, k) <= max(m, k) <= 512:
        return "64x32x64" if n <= 32 else "64x64x64" if k > 128 and k % 2 else "64x64x32"
    # The same for 128 tokens, with heads of 64: 0.74 to 0.92
    return "128x64x64" if m == 128 and (n, k) in ((128, 64), (64, 128)) else None


def choose(product: Product) -> str:
    """Return the candidate for a product: the name of a tiling, or torch."""
    a, b = product
    m, n, k = product.sizes
    default = default_of(product)
    names = [default, *[name for name in (*TILES, TORCH) if name != default]]
    candidates = [Candidate(name, _preparing(product, name), repr(TILES.get(name))) for name in names]
    layout = [a.transposed, b.transposed, a.batch == product.batch, b.batch == product.batch]
    shape_class = [size_class(math.prod(product.batch)), *map(size_class, (m, n, k)), layout, str(a.source.dtype)]
    return measured_choice("matmul of small matrices", shape_class, candidates, a.source.device)


def _preparing(product: Product, name: str) -> Callable[[], Callable[[], Any]]:
    """Return the function that prepares a candidate."""

    def prepare() -> Callable[[], Any]:
        tensors = [example_tensor(operand.source) for operand in product]
        a, b = [x.mT if operand.transposed else x for x, operand in zip(tensors, product)]
        return (lambda: torch.matmul(a, b)) if name == TORCH else (lambda: run(a, b, name))

    return prepare


def register(registry: Any, executor: str) -> None:
    """Register the operator, the option and the pass."""
    registry.register_option(
        OPTION, type=bool, default=True, help="whether Triton's kernel computes batched products of small matrices"
    )
    matmul = registry.register_operator("triton_batched_matmul", executor=executor, like=like, fn=run)

    def replace(trace: Trace, context: Any) -> Trace:
        if not context.options.get(OPTION, True):
            return trace
        found = _Replacements(trace, context.executors, matmul)
        return rewrite(trace, "Products of small matrices", found, drops_dead_code=True) if found.products else trace

    registry.register_transform(
        OPTION, replace, phase="before_execution", before="triton_padded_matmul", executor=executor
    )


class _Replacements:
    """The products of one trace that the kernel computes."""

    def __init__(self, trace: Trace, executors: Sequence[Any], matmul: Any):
        self.matmul = matmul
        self.made_by = {name: op for op in trace.bound_symbols for name in op.out_names}
        #: By the name of the result, with the name of the tiling.
        self.products: dict[str, tuple[Product, str]] = {}
        for op in trace.bound_symbols:
            product = self.product(op) if op.sym.id in MATMULS else None
            if product is None or not is_left_to_torch(op, executors):
                continue
            tile = choose(product)
            if tile != TORCH:
                self.products[op.out_names[0]] = product, tile

    def product(self, op: BoundSymbol) -> Product | None:
        """Return the product that an operation computes, if the kernel supports it; else None."""
        operands = *op.args, *op.kwargs.values()
        if len(operands) != 2 or not _is_supported(*operands):
            return None
        a, b = operands
        product = Product(self.operand(a), self.operand(b))
        if a.shape[:-2] != b.shape[:-2] or product.a.batch != product.b.batch:  # reshapes of other dimensions
            product = Product(self.operand(a, merged=False), self.operand(b, merged=False))
        m, n, _ = product.sizes
        count = math.prod(product.batch)
        fits = count >= FEWEST_MATRICES and max(product.sizes) <= LARGEST and count * m * n <= _MOST_PROGRAMS
        return product if fits else None

    def operand(self, p: TensorProxy, *, merged: bool = True) -> Operand:
        """Return the tensor that the kernel reads: the one before transposes, and if `merged`, before reshapes."""
        transposed = False
        while True:
            op = self.made_by.get(p.name)
            if op is not None and transposes(op):
                transposed = not transposed
            elif op is None or not merged or not _merges_batch(op):
                return Operand(p, transposed)
            p = op.args[0]

    def __call__(self, op: BoundSymbol) -> Any:
        found = self.products.get(op.out_names[0]) if len(op.out_names) == 1 else None
        if found is None:
            return None
        product, tile = found
        given = zip(product, (*op.args, *op.kwargs.values()))
        # If no dimensions of the batch were merged, the kernel reads the operation's own operand.
        out = self.matmul(*[p if operand.batch == p.shape[:-2] else operand.read() for operand, p in given], tile)
        return out if out.shape == op.output.shape else ltorch.reshape(out, tuple(op.output.shape))


def _is_batch(p: Any) -> bool:
    """Check whether a value is a batch of matrices of known sizes that the kernel reads."""
    if not isinstance(p, TensorProxy) or not 3 <= p.ndim <= BATCH_DIMS + 2:
        return False
    return all(type(n) is int and n > 0 for n in p.shape)


def _is_supported(a: Any, b: Any) -> bool:
    """Check whether the kernel can compute a product."""
    if not (_is_batch(a) and _is_batch(b)) or unusable_device(a.device) is not None or a.device is not b.device:
        return False
    if interpreting() and a.dtype is dtypes.bfloat16:
        return False  # the interpreter multiplies the bits
    return a.dtype in DTYPES and b.dtype is a.dtype


def _merges_batch(op: BoundSymbol) -> bool:
    """Check whether an operation is a reshape of a batch that does not change the matrices."""
    if not op.sym.facts.keeps_order or len(op.out_names) != 1 or not _is_batch(op.args[0]) or not _is_batch(op.output):
        return False
    source, out = op.args[0], op.output
    return bool(source.shape[-2:] == out.shape[-2:] and source.dtype is out.dtype and source.ndim >= out.ndim)
