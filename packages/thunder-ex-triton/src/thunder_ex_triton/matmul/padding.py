# SPDX-License-Identifier: Apache-2.0
"""The pass that pads matrix multiplications, and the operator that cuts off the padding of their results.

The pass runs before executors claim operations. It replaces a matrix multiplication `a @ b` that torch would run by
`pad(a) @ pad(b)`, where the rule says so (`rule.py`). Those that read the same tensor share its padded copy, also
through transposes and reshapes. A gradient of cross-entropy that only they read is written into padded memory, without
a copy. Padding consists of zeros, so values change only by the rounding of another kernel of cuBLAS.

A result with padded rows is cut by `triton_padded_matmul`. The result is contiguous, as torch's. It is a view with
gaps between its rows if only operations of this program read it that accept such rows, and whose results do not depend
on the strides of operands. Values that leave the program (results, values saved for backward) are always contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch.nn import functional as F

import thunder.torch as ltorch
from thunder import prims
from thunder.extend import BoundSymbol, Executor, OpTags, TensorProxy, Trace, is_left_to_torch, rewrite, to_torch_dtype
from thunder.toolkit.measuring import Candidate, example_tensor, measured_choice, size_class
from thunder_ex_triton.launch import blocks, kernel
from thunder_ex_triton.matmul.rule import Sizes, aligned_sizes, pays

__all__ = ["LINEAR", "MATMULS", "PaddedMatmul", "register", "transposes"]

MATMULS = frozenset({"torch.matmul", "torch.mm", "torch.bmm", prims.matmul.id})
LINEAR = frozenset({"torch.linear", prims.linear.id})
# Operations that accept rows with gaps, and the position of this argument. Their results do not depend on its strides.
_READS_ROWS = {
    "torch.cross_entropy": 0,
    "torch.log_softmax": 0,
    "torch.softmax": 0,
    "triton_crossentropy.triton_crossentropy": 0,
    "triton_crossentropy.triton_crossentropy_forward": 0,
    "triton_crossentropy.triton_crossentropy_backward": 1,
    "triton_crossentropy.triton_crossentropy_soft_forward": 0,
    "triton_crossentropy.triton_crossentropy_soft_backward": 1,
}
_LOSS_BACKWARD = "triton_crossentropy.triton_crossentropy_backward"
_BLOCK = 1024  # the elements that a program copies


@kernel
def pack_rows(x_ptr, out_ptr, columns, stride, BLOCK: tl.constexpr):
    """Copy rows that have gaps between them."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < columns
    tl.store(out_ptr + row * columns + at, tl.load(x_ptr + row * stride + at, mask=inside), mask=inside)


class PaddedMatmul:
    """`triton_padded_matmul`: the first rows and columns of a matrix multiplication of padded operands."""

    @staticmethod
    def like(a: Any, b: Any, bias: Any, rows: int, columns: int, strided: bool) -> Any:
        """Decompose into torch's operations."""
        out = ltorch.matmul(a, b) if bias is None else ltorch.linear(a, ltorch.mT(b), bias)
        return out[..., :rows, :columns]

    @staticmethod
    def run(
        a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, rows: int, columns: int, strided: bool
    ) -> torch.Tensor:
        """Run the matrix multiplication. The result is contiguous unless it is `strided`."""
        out = torch.matmul(a, b) if bias is None else F.linear(a, b.mT, bias)
        cut = out[..., :rows, :columns]
        if strided or (out.ndim == 2 and columns == out.shape[1]):  # the first rows are contiguous
            return cut.detach()  # for autograd it is not a view
        if (out.ndim > 2 and rows != out.shape[-2]) or not out.is_contiguous():
            return cut.clone(memory_format=torch.contiguous_format)
        packed = torch.empty(cut.shape, dtype=out.dtype, device=out.device)
        grid = (packed.numel() // columns, blocks(columns, _BLOCK))
        pack_rows(grid, (out, packed), (columns, out.shape[-1], _BLOCK), 4)
        return packed

    @staticmethod
    def workspace(a: Any, b: Any, bias: Any, rows: int, columns: int, strided: bool) -> int:
        """Return the bytes of the padded result, for the proxies of a trace, if the result is copied."""
        if strided or columns == b.shape[-1]:
            return 0
        return int(a.numel() // a.shape[-1] * b.shape[-1] * a.dtype.bytes)


class _Operand(NamedTuple):
    """An operand as it is stored: `source`, or its transpose; and the sizes of the last two dimensions with padding."""

    source: TensorProxy
    transposed: bool
    padded: tuple[int, int]

    @property
    def is_padded(self) -> bool:
        return tuple(self.source.shape[-2:]) != self.padded


class _Product(NamedTuple):
    """A matrix multiplication that is padded, with the rows and columns of its padded result."""

    a: _Operand
    b: _Operand
    bias: Any
    rows: int
    columns: int


def register(registry: Any, executor: str) -> None:
    """Register the operator and the pass."""
    matmul = registry.register_operator(
        "triton_padded_matmul",
        executor=executor,
        like=PaddedMatmul.like,
        fn=PaddedMatmul.run,
        workspace=PaddedMatmul.workspace,
    )

    def pad(trace: Trace, context: Any) -> Trace:
        padder = _Padder(trace, context.executors, matmul)
        return rewrite(trace, "Pad matrix multiplications", padder) if padder.products else trace

    registry.register_transform("triton_padded_matmul", pad, phase="before_execution", executor=executor)


def chooses_padding(product: _Product, sizes: tuple[int, int, int], *, rule: bool) -> bool:
    """Check whether a matrix multiplication is padded: by measurement if the user asks for it, else by the rule.

    All copies are measured, although a program may share them. `sizes` are those of its last two dimensions.
    """
    m, n, k = sizes
    sources = [operand.source for operand in product[:2]]

    def prepare(pad: bool) -> Callable[[], Any]:
        tensors = [example_tensor(p) for p in sources]
        bias = None if product.bias is None else example_tensor(product.bias)
        if pad and bias is not None:
            bias = F.pad(bias, (0, product.columns - n))

        def run() -> torch.Tensor:
            given = [_with_zeros(x, operand.padded) if pad else x for x, operand in zip(tensors, product[:2])]
            a, b = [x.mT if operand.transposed else x for x, operand in zip(given, product[:2])]
            if pad and (m, n) != (product.rows, product.columns):
                return PaddedMatmul.run(a, b, bias, m, n, False)
            return torch.matmul(a, b) if bias is None else F.linear(a, b.mT, bias)

        return run

    candidates = [Candidate("torch", lambda: prepare(False)), Candidate("padded", lambda: prepare(True))]
    batches = [math.prod(p.shape[:-2]) for p in sources]
    layout = [operand.transposed for operand in product[:2]]
    shape_class = [*map(size_class, (m, n, k)), batches, layout, product.bias is not None, str(sources[0].dtype)]
    order = candidates[::-1] if rule else candidates
    return measured_choice("padding of a matmul", shape_class, order, sources[0].device) == "padded"


def _with_zeros(x: torch.Tensor, sizes: tuple[int, int]) -> torch.Tensor:
    (rows, columns), (r, c) = x.shape[-2:], sizes
    return F.pad(x, (0, c - columns, 0, r - rows)) if (rows, columns) != sizes else x


class _Padder:
    """The replacements of the operations of one trace."""

    def __init__(self, trace: Trace, executors: Sequence[Executor], matmul: Any):
        self.matmul = matmul
        self.executors = executors
        self.made_by = {name: op for op in trace.bound_symbols for name in op.out_names}
        self.readers: dict[str, list[BoundSymbol]] = {}
        for op in trace.bound_symbols:
            for name in set(op.arg_names):
                self.readers.setdefault(name, []).append(op)
        found = {op.out_names[0]: self.product_of(op) for op in trace.bound_symbols if len(op.out_names) == 1}
        self.products = {name: product for name, product in found.items() if product is not None}
        #: The tensors that are padded, and the sizes of their last two dimensions.
        self.padded: dict[str, set[tuple[int, int]]] = {}
        for product in self.products.values():
            for operand in (product.a, product.b):
                if operand.is_padded:
                    source, sizes = self.source_of(operand)
                    self.padded.setdefault(source.name, set()).add(sizes)
        self.unread_names: dict[str, bool] = {}
        self.copies: dict[tuple[str, tuple[int, int]], Any] = {}

    # -- analysis -----------------------------------------------------------------------------------------------------
    def product_of(self, op: BoundSymbol) -> _Product | None:
        """Return how a matrix multiplication is padded; None if it is not, or if `op` is another operation."""
        is_linear = op.sym.id in LINEAR
        if not is_linear and op.sym.id not in MATMULS:
            return None
        a, b, bias = (*op.args, *op.kwargs.values(), None)[:3]
        if not (_is_matrix(a) and _is_matrix(b)) or not (bias is None or (bias.ndim == 1 and _is_static(bias))):
            return None
        (a, a_columns), (b, b_columns) = self.stored(a), (b, True) if is_linear else self.stored(b)
        if a.shape[:-2] != b.shape[:-2] and (b.ndim > 2 or a_columns):
            return None  # an operand is broadcast, or torch copies it
        m, k = a.shape[:-3:-1] if a_columns else a.shape[-2:]
        n = b.shape[-2] if b_columns else b.shape[-1]
        batch = math.prod(a.shape[:-2])
        rows, batch = (m * batch, 1) if b.ndim == 2 else (m, batch)  # with one matrix b, torch multiplies all rows
        how: Any = {"batch": batch, "a_columns": a_columns, "b_columns": b_columns}
        unpadded = Sizes(rows, n, k)
        sizes = aligned_sizes(unpadded, to_torch_dtype(a.dtype), a.device.type, **how)
        if sizes is None or not is_left_to_torch(op, self.executors):
            return None
        rows = sizes.m if a_columns else m
        product = _Product(
            _Operand(a, a_columns, (sizes.k, rows) if a_columns else (rows, sizes.k)),
            _Operand(b, b_columns, (sizes.n, sizes.k) if b_columns else (sizes.k, sizes.n)),
            bias,
            rows,
            sizes.n,
        )
        rule = pays(unpadded, sizes, batch, a.dtype.bytes)
        return product if chooses_padding(product, (m, n, k), rule=rule) else None

    def stored(self, p: TensorProxy) -> tuple[TensorProxy, bool]:
        """Return the tensor that `p` is the transpose of, and True. If `p` is no transpose, return `p` and False."""
        op = self.made_by.get(p.name)
        return (op.args[0], True) if op is not None and transposes(op) else (p, False)

    def source_of(self, operand: _Operand) -> tuple[TensorProxy, tuple[int, int]]:
        """Return the tensor to pad for an operand, and the sizes with padding of its last two dimensions.

        If only columns are added, it is the tensor of which the operand is a reshape, so that products share its copy.
        """
        p, (rows, columns) = operand.source, operand.padded
        if rows != p.shape[-2]:
            return p, (rows, columns)
        while True:
            op = self.made_by.get(p.name)
            if op is None or not _keeps_rows(op):
                return p, (p.shape[-2], columns)
            p = op.args[0]

    def is_unread(self, name: str) -> bool:
        """Check whether no operation reads a value any more, because all readers read padded tensors instead."""
        if name not in self.unread_names:
            self.unread_names[name] = all(self._skips(op, name) for op in self.readers.get(name, ()))
        return self.unread_names[name]

    def _skips(self, op: BoundSymbol, name: str) -> bool:
        product = self.product(op)
        if product is None:
            return self.is_dropped(op)
        unpadded = [p for p, operand in zip(op.args, product[:2]) if not operand.is_padded]
        return all(p.name != name for p in (*unpadded, product.bias) if p is not None)

    def is_dropped(self, op: BoundSymbol) -> bool:
        """Check whether an operation is a view that nothing reads any more."""
        return (
            (transposes(op) or _keeps_rows(op)) and op.output.name not in self.padded and self.is_unread(op.output.name)
        )

    def product(self, op: BoundSymbol) -> _Product | None:
        return self.products.get(op.out_names[0]) if len(op.out_names) == 1 else None

    def accept_gaps(self, p: TensorProxy) -> bool:
        """Check whether all readers of a tensor accept gaps between its rows."""
        return all(self._accepts_gaps(op, p) for op in self.readers.get(p.name, ()))

    def _accepts_gaps(self, op: BoundSymbol, p: TensorProxy) -> bool:
        if self.product(op) is not None:
            bias = self.products[op.out_names[0]].bias
            return bias is None or bias.name != p.name
        if _keeps_rows(op):
            return self.accept_gaps(op.output)
        if op.sym.id in _READS_ROWS:
            reads = [i for i, x in enumerate(op.args) if isinstance(x, TensorProxy) and x.name == p.name]
            return reads == [_READS_ROWS[op.sym.id]] and not op.kwargs
        return self.is_dropped(op) or _is_elementwise(op)

    def gradient_columns(self, op: BoundSymbol) -> int | None:
        """Return the columns with padding of a gradient of cross-entropy that only padded matmuls read, or None."""
        if op.sym.id != _LOSS_BACKWARD or op.output.ndim != 2 or len(op.args) != 9:
            return None
        sizes = self.padded.get(op.output.name, set())
        if len(sizes) != 1 or not self.is_unread(op.output.name):
            return None
        ((rows, columns),) = sizes
        return columns if rows == op.output.shape[0] else None

    # -- replacements -------------------------------------------------------------------------------------------------
    def __call__(self, op: BoundSymbol) -> Any:
        product = self.product(op)
        if product is not None:
            return self.replacement(op, product)
        columns = self.gradient_columns(op)
        if columns is not None:
            self.copies[op.output.name, (op.output.shape[0], columns)] = op.sym(*op.args, columns)
            return (None,)
        return (None,) if self.is_dropped(op) else None

    def replacement(self, op: BoundSymbol, product: _Product) -> Any:
        """Compute a padded matrix multiplication, and cut its result."""
        is_linear = op.sym.id in LINEAR
        a, b = (self.matrix(x) if x.is_padded else None for x in product[:2])
        a = op.args[0] if a is None else a
        if b is None:
            b = ltorch.mT(op.args[1]) if is_linear else op.args[1]
        rows, columns = op.output.shape[-2:]
        bias = product.bias
        if (rows, columns) == (product.rows, product.columns):
            return ltorch.matmul(a, b) if bias is None else ltorch.linear(a, ltorch.mT(b), bias)
        if bias is not None and columns != product.columns:
            bias = ltorch.pad(bias, (0, product.columns - columns))
        even = op.output.ndim == 2 or rows == product.rows  # rows are evenly spaced, so reshapes are views
        strided = columns != product.columns and even and self.accept_gaps(op.output)
        return self.matmul(a, b, bias, rows, columns, strided)

    def matrix(self, operand: _Operand) -> Any:
        """Return a padded operand."""
        source, sizes = self.source_of(operand)
        out = self.copies.get((source.name, sizes))
        if out is None:
            rows, columns = (new - old for new, old in zip(sizes, source.shape[-2:]))
            out = self.copies[source.name, sizes] = ltorch.pad(source, (0, columns, 0, rows) if rows else (0, columns))
        shape = (*operand.source.shape[:-2], *operand.padded)
        if tuple(out.shape) != shape:
            out = ltorch.reshape(out, shape)
        return ltorch.mT(out) if operand.transposed else out


def _is_static(p: Any) -> bool:
    return isinstance(p, TensorProxy) and all(type(n) is int for n in p.shape)


def _is_matrix(p: Any) -> bool:
    return _is_static(p) and p.ndim >= 2


def transposes(op: BoundSymbol) -> bool:
    """Check whether an operation exchanges the last two dimensions of a tensor."""
    while not op.sym.is_prim and len(op.subsymbols) == 1 and op.subsymbols[0].out_names == op.out_names:
        op = op.subsymbols[0]
    if op.sym is not prims.transpose or not _is_matrix(op.args[0]):
        return False
    *batch, m, n = range(op.args[0].ndim)
    return tuple(op.args[1]) == (*batch, n, m)


def _keeps_rows(op: BoundSymbol) -> bool:
    """Check whether an operation is a reshape that does not change the last dimension."""
    if not op.sym.facts.keeps_order or len(op.out_names) != 1 or not (_is_matrix(op.args[0]) and _is_matrix(op.output)):
        return False
    a, out = op.args[0], op.output
    return bool(a.shape[-1] == out.shape[-1] and a.dtype is out.dtype)


def _is_elementwise(op: BoundSymbol) -> bool:
    """Check whether an operation computes a new tensor element by element. Gaps do not change its strides."""
    if OpTags.ELEMENTWISE_OP not in op.sym.tags or op.has_effect or len(op.out_names) != 1:
        return False
    return all(p.shape == op.output.shape or p.ndim <= 1 for p in op.tensors())
