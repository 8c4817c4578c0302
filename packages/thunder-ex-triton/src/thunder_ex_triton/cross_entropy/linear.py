# SPDX-License-Identifier: Apache-2.0
"""A linear layer fused with the cross-entropy of its result. Only a chunk of the logits exists at a time.

Tokens are processed in chunks. Forward computes the logits of a chunk and their loss, and overwrites the logits with
their gradient. It then immediately multiplies this gradient into the gradients of input, weight and bias. These
gradients are therefore computed before the cotangent of the loss is known. They are stored unscaled, which also
prevents underflow in half precision. The gradient of the weight is accumulated over the chunks in single precision.

If the number of classes makes the matrix multiplications slow (`matmul/rule.py`), weight, bias and logits are padded.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional as F

import thunder.torch as ltorch
from thunder.extend import known_shape, to_torch_dtype
from thunder_ex_triton.cross_entropy import kernels
from thunder_ex_triton.cross_entropy.kernels import Rows
from thunder_ex_triton.cross_entropy.operators import wide_dtype
from thunder_ex_triton.matmul.rule import Sizes, padded_sizes

__all__ = ["LinearLoss", "LinearLossForward"]

# The bytes of a chunk's logits: enough for fast matmuls, but few compared with the gradient of the weight.
_CHUNK_BYTES = 1 << 29


def chunk_rows(rows: int, classes: int, itemsize: int) -> int:
    """Return the number of tokens in a chunk. Chunks are equal, and as few as the memory limit allows."""
    chunks = max(1, -(-rows * classes * itemsize // _CHUNK_BYTES))
    even = -(-rows // chunks)
    return min(rows, -(-even // 128) * 128)


def memory_classes(x: Any, w: Any) -> int:
    """Return the number of classes for which a chunk's logits have memory: more than `w` has, where padding pays."""
    (*shape, hidden), classes = known_shape(x), known_shape(w)[0]
    sizes = Sizes(math.prod(shape), classes, hidden)
    padded = padded_sizes(sizes, to_torch_dtype(x.dtype), x.device.type, b_columns=True)
    return classes if padded is None or padded.k != hidden else padded.n


def workspace(x: Any, w: Any, *how: Any) -> int:
    """Return the bytes of a chunk's logits and of the padded weight, for the proxies of a trace."""
    (*shape, hidden), classes, itemsize = known_shape(x), known_shape(w)[0], x.dtype.bytes
    columns = memory_classes(x, w)
    padded = columns * hidden * itemsize if columns != classes else 0
    return int(chunk_rows(math.prod(shape), classes, itemsize) * columns * itemsize + padded)


def _kind(dtype: str | None) -> Any:
    return None if dtype is None else getattr(torch, dtype)


class LinearLoss:
    """`triton_linear_crossentropy`: computes only the loss."""

    @staticmethod
    def like(
        x: Any, w: Any, bias: Any, labels: Any, weight: Any, ignore_index: int, reduction: str, label_smoothing: float,
        loss_dtype: str | None,
    ) -> Any:  # fmt: skip
        """Decompose into torch's operations."""
        logits = ltorch.linear(ltorch.reshape(x, (-1, x.shape[-1])), w, bias)
        if loss_dtype is not None:
            logits = ltorch.to(logits, _kind(loss_dtype))
        return ltorch.cross_entropy(
            logits, labels, weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
        )

    @staticmethod
    def run(
        x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, labels: torch.Tensor, weight: torch.Tensor | None,
        ignore_index: int, reduction: str, label_smoothing: float, loss_dtype: str | None,
    ) -> torch.Tensor:  # fmt: skip
        """Run the kernels."""
        how = (weight, ignore_index, reduction, label_smoothing, loss_dtype)
        loss: torch.Tensor = _chunked(x, w, bias, labels, *how, wanted=None)[0]
        return loss


class LinearLossForward:
    """Computes the loss, the sum of weights, and the gradients of the unscaled loss."""

    @staticmethod
    def like(
        x: Any, w: Any, bias: Any, labels: Any, weight: Any, ignore_index: int, reduction: str, label_smoothing: float,
        loss_dtype: str | None, wanted: tuple[bool, bool, bool],
    ) -> tuple[Any, ...]:  # fmt: skip
        """Decompose into torch's operations."""
        flat = ltorch.reshape(x, (-1, x.shape[-1]))
        logits = ltorch.linear(flat, w, bias)
        wide = ltorch.to(logits, wide_dtype(logits))
        loss = LinearLoss.like(x, w, bias, labels, weight, ignore_index, reduction, label_smoothing, loss_dtype)
        one = ltorch.ones((), dtype=wide_dtype(x), device=x.device)
        counts = ltorch.ne(labels, ignore_index)
        of_row = ltorch.to(counts, wide.dtype)
        if weight is not None:
            of_row = of_row * ltorch.to(ltorch.index_select(weight, 0, ltorch.where(counts, labels, 0)), wide.dtype)
        _, lse = ltorch.cross_entropy_forward(wide, labels, _as(weight, wide), ignore_index, "sum", label_smoothing)
        g = ltorch.cross_entropy_backward(
            one, wide, labels, lse, _as(weight, wide), ignore_index, "sum", label_smoothing
        )
        gradients = (
            ltorch.to(ltorch.reshape(ltorch.matmul(g, ltorch.to(w, g.dtype)), x.shape), x.dtype),
            ltorch.matmul(g.mT, ltorch.to(flat, g.dtype)),
            ltorch.sum(g, 0),
        )
        return loss, ltorch.sum(of_row), *(x for x, want in zip(gradients, wanted) if want)

    @staticmethod
    def run(
        x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, labels: torch.Tensor, weight: torch.Tensor | None,
        ignore_index: int, reduction: str, label_smoothing: float, loss_dtype: str | None,
        wanted: tuple[bool, bool, bool],
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        """Run the kernels."""
        how = (weight, ignore_index, reduction, label_smoothing, loss_dtype)
        return _chunked(x, w, bias, labels, *how, wanted=wanted)


def _as(weight: Any, like: Any) -> Any:
    return None if weight is None else ltorch.to(weight, like.dtype)


class _Gradients:
    """The gradients that are accumulated over the chunks."""

    def __init__(self, x: torch.Tensor, w: torch.Tensor, wanted: tuple[bool, bool, bool]):
        wide = wide_dtype(w)
        self.x = torch.empty_like(x) if wanted[0] else None
        self.w = torch.empty(w.shape, dtype=wide, device=w.device) if wanted[1] else None
        self.bias = torch.zeros(w.shape[0], dtype=wide, device=w.device) if wanted[2] else None
        self.begun = False

    def add(self, g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, start: int) -> None:
        """Accumulate the contribution of a chunk that begins at row `start`. `g` is the gradient of its logits."""
        if self.x is not None:
            torch.mm(g, w, out=self.x[start : start + len(g)] if len(g) < len(self.x) else self.x)
        if self.w is not None:
            self._add_to_weight(self.w, g.t(), x)
        if self.bias is not None:
            self._add_to_bias(self.bias, g)
        self.begun = True

    def _add_to_bias(self, out: torch.Tensor, g: torch.Tensor) -> None:
        """Accumulate by a matmul with ones if rows are aligned: there `sum(0)` needs 140 MiB for partial sums."""
        if g.dtype is out.dtype:
            torch.addmv(out, g.t(), g.new_ones(g.shape[0]), out=out)
        elif g.is_cuda and g.shape[1] * g.element_size() % 16 == 0:
            torch.addmm(out[None], g.new_ones((1, g.shape[0])), g, out_dtype=out.dtype, out=out[None])
        else:
            out += g.sum(0, dtype=out.dtype)

    def _add_to_weight(self, out: torch.Tensor, g: torch.Tensor, x: torch.Tensor) -> None:
        if g.dtype is out.dtype:
            torch.addmm(out, g, x, beta=int(self.begun), out=out)
        elif g.is_cuda:  # a half-precision matmul that accumulates in single precision
            overload = torch.ops.aten.addmm.dtype_out
            overload(out, g, x, torch.float32, beta=int(self.begun), out=out)
        else:
            torch.addmm(out, g.to(out.dtype), x.to(out.dtype), beta=int(self.begun), out=out)


def _chunked(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, labels: torch.Tensor, weight: torch.Tensor | None,
    ignore_index: int, reduction: str, label_smoothing: float, loss_dtype: str | None, *,
    wanted: tuple[bool, bool, bool] | None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Return the loss. If gradients are requested, also return the sum of weights and the gradients."""
    flat, labels = x.reshape(-1, x.shape[-1]), labels.contiguous()
    weight = None if weight is None else weight.contiguous()
    number, classes = flat.shape[0], w.shape[0]
    step = chunk_rows(number, classes, x.element_size())
    columns = memory_classes(flat, w)
    if columns != classes:  # the padding of the logits is overwritten by zeros, their gradient
        w = F.pad(w, (0, 0, 0, columns - classes))
        bias = None if bias is None else F.pad(bias, (0, columns - classes))
    gradients = None if wanted is None else _Gradients(flat, w, wanted)
    logits = torch.empty((step, columns), dtype=x.dtype, device=x.device)
    partials = []
    for start in range(0, number, step):
        chunk, of_chunk, t = flat, logits, labels
        if step < number:
            rows = slice(start, min(start + step, number))
            chunk, of_chunk, t = flat[rows], logits[: rows.stop - start], labels[rows]
        if bias is None:
            torch.mm(chunk, w.t(), out=of_chunk)
        else:
            torch.addmm(bias, chunk, w.t(), out=of_chunk)
        r = Rows.of(of_chunk[:, :classes])
        _, lse, partial = kernels.forward(
            r, t, weight, ignore_index, label_smoothing, rows_dtype=None, save_lse=gradients is not None
        )
        partials.append(partial)
        if gradients is not None and lse is not None:
            kernels.backward(
                None, r, t, lse, None, weight, ignore_index, label_smoothing, by_row=False, mean=False,
                out=Rows.of(of_chunk),
            )  # fmt: skip
            gradients.add(of_chunk, chunk, w, start)
    whole = partials[0] if len(partials) == 1 else torch.cat([p.view(3, -1) for p in partials], 1).view(-1)
    dtype = x.dtype if loss_dtype is None else _kind(loss_dtype)
    loss, total = kernels.finish(r, whole, mean=reduction == "mean", dtype=dtype)
    if gradients is None:
        return (loss,)
    of_x = None if gradients.x is None else gradients.x.view(x.shape)
    of_classes = [g if g is None or columns == classes else g[:classes].detach() for g in (gradients.w, gradients.bias)]
    return loss, total, *(g for g in (of_x, *of_classes) if g is not None)


def profitable(rows: int, classes: int, itemsize: int) -> bool:
    """Check whether chunks save much memory without costing time."""
    return rows * classes * itemsize >= 1 << 27 and chunk_rows(rows, classes, itemsize) >= 512
