# SPDX-License-Identifier: Apache-2.0
"""Operators of the cross-entropy executor: their decompositions (`like`) and their implementations (`run`).

Each operator's metadata, and its gradient for second derivatives, are derived from its decomposition.
"""

from __future__ import annotations

from typing import Any

import torch

import thunder.torch as ltorch
from thunder.extend import dtypes
from thunder_ex_triton.cross_entropy import kernels, soft_kernels
from thunder_ex_triton.cross_entropy.kernels import Rows

__all__ = [
    "Loss",
    "LossBackward",
    "LossForward",
    "SoftBackward",
    "SoftForward",
    "gradient_of_probabilities",
    "wide_dtype",
]


# -- shared helpers ----------------------------------------------------------------------------------------------------
def _class_dim(x: Any) -> int:
    return 0 if x.ndim == 1 else 1


def wide_dtype(x: Any) -> torch.dtype:
    """Return the dtype in which the loss of `x` is computed. `x` is a tensor or a proxy."""
    return torch.float64 if x.dtype in (dtypes.float64, torch.float64) else torch.float32


def _wide(x: Any) -> Any:
    return ltorch.to(x, wide_dtype(x))


def _widened(x: Any, dtype: str | None) -> Any:
    return x if dtype is None else ltorch.to(x, getattr(torch, dtype))


def _rows_shape(x: torch.Tensor) -> tuple[int, ...]:
    return tuple(x.shape[:1] + x.shape[2:]) if x.ndim > 1 else ()


def _like_rows(x: torch.Tensor) -> tuple[torch.Tensor, Rows]:
    """Allocate a gradient of `x`, in the layout of `x` if `x` is dense, otherwise contiguous."""
    out = torch.empty_like(x)
    rows = Rows.of(out)
    if rows.tensor.data_ptr() != out.data_ptr():  # `Rows.of` copied, because no view has the layout of rows
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        rows = Rows.of(out)
    return out, rows


def _contiguous(x: torch.Tensor | None) -> torch.Tensor | None:
    return None if x is None else x.contiguous()


# -- class indices -----------------------------------------------------------------------------------------------------
class Loss:
    """`triton_crossentropy`: computes only the loss. Its arguments are those of `torch.nn.functional.cross_entropy`.

    With `loss_dtype`, class indices are the targets, and the loss is that of the logits in this wider dtype.
    """

    @staticmethod
    def like(
        logits: Any, labels: Any, weight: Any, size_average: Any, ignore_index: int, reduce: Any, reduction: str,
        label_smoothing: float, loss_dtype: str | None = None,
    ) -> Any:  # fmt: skip
        """Decompose into torch's operations."""
        return ltorch.cross_entropy(
            _widened(logits, loss_dtype), labels, weight, size_average, ignore_index, reduce, reduction, label_smoothing
        )

    @staticmethod
    def run(
        logits: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor | None, size_average: Any, ignore_index: int,
        reduce: Any, reduction: str, label_smoothing: float, loss_dtype: str | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Run the kernels."""
        if labels.shape == logits.shape:
            return _soft_loss(logits, labels, weight, reduction, label_smoothing, save=False)[0]
        return _loss(logits, labels, weight, ignore_index, reduction, label_smoothing, loss_dtype, save=False)[0]


class LossForward:
    """Computes the loss and the values saved for backward: the log-sum-exp of each row, and the sum of weights."""

    @staticmethod
    def like(
        logits: Any, labels: Any, weight: Any, ignore_index: int, reduction: str, label_smoothing: float,
        loss_dtype: str | None = None,
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        """Decompose into torch's operations."""
        how = (weight, ignore_index, reduction, label_smoothing)
        loss, lse = ltorch.cross_entropy_forward(_widened(logits, loss_dtype), labels, *how)
        counts = ltorch.ne(labels, ignore_index)
        lse = ltorch.where(ltorch.reshape(counts, lse.shape), lse, 0.0)  # the kernel does not read ignored rows
        if weight is None:
            total = ltorch.sum(counts, dtype=wide_dtype(logits))
        else:
            chosen = ltorch.index_select(_wide(weight), 0, ltorch.reshape(ltorch.where(counts, labels, 0), (-1,)))
            total = ltorch.sum(ltorch.where(ltorch.reshape(counts, (-1,)), chosen, 0.0))
        return loss, lse, total

    @staticmethod
    def run(
        logits: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor | None, ignore_index: int, reduction: str,
        label_smoothing: float, loss_dtype: str | None = None,
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        """Run the kernels."""
        return _loss(logits, labels, weight, ignore_index, reduction, label_smoothing, loss_dtype, save=True)


def _loss(
    logits: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor | None, ignore_index: int, reduction: str,
    label_smoothing: float, loss_dtype: str | None, *, save: bool,
) -> tuple[Any, Any, Any]:  # fmt: skip
    x = Rows.of(logits)
    by_row, dtype = reduction == "none", logits.dtype if loss_dtype is None else getattr(torch, loss_dtype)
    loss, lse, partial = kernels.forward(
        x, labels.contiguous(), _contiguous(weight), ignore_index, label_smoothing, save_lse=save,
        rows_dtype=dtype if by_row else None,
    )  # fmt: skip
    reduced, total = kernels.finish(
        x, partial, mean=reduction == "mean", dtype=dtype, single=logits.ndim == 1 and not label_smoothing
    )
    shape = _rows_shape(logits)
    if lse is not None:
        lse = lse.view(shape)
    return reduced if loss is None else loss.view(shape), lse, total


class LossBackward:
    """Computes the gradient of the logits. With `columns`, its rows are padded by zeros to this number of classes."""

    @staticmethod
    def like(
        g: Any, logits: Any, labels: Any, lse: Any, total: Any, weight: Any, ignore_index: int, reduction: str,
        label_smoothing: float, columns: int | None = None,
    ) -> Any:  # fmt: skip
        """Decompose into torch's operations."""
        how = (weight, ignore_index, reduction, label_smoothing)
        out = ltorch.cross_entropy_backward(g, logits, labels, lse, *how)
        return out if columns is None else ltorch.pad(out, (0, columns - logits.shape[-1]))

    @staticmethod
    def run(
        g: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor, lse: torch.Tensor, total: torch.Tensor,
        weight: torch.Tensor | None, ignore_index: int, reduction: str, label_smoothing: float,
        columns: int | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Run the kernels."""
        if columns is None:
            out, rows = _like_rows(logits)
        else:
            out = torch.empty((logits.shape[0], columns), dtype=logits.dtype, device=logits.device)
            rows = Rows.of(out)
        kernels.backward(
            g.contiguous(), Rows.of(logits), labels.contiguous(), lse, total, _contiguous(weight), ignore_index,
            label_smoothing, by_row=reduction == "none", mean=reduction == "mean", out=rows,
        )  # fmt: skip
        return out


# -- class probabilities -----------------------------------------------------------------------------------------------
def _by_class(weight: Any, logits: Any) -> Any:
    shape = (-1,) if logits.ndim == 1 else (1, -1, *([1] * (logits.ndim - 2)))
    return ltorch.reshape(_wide(weight), shape)


def _smoothed(target: Any, smoothing: float, classes: int) -> Any:
    return target * (1 - smoothing) + smoothing / classes


class SoftForward:
    """Computes the loss and, for backward, each row's lse and sum of weighted probabilities."""

    @staticmethod
    def like(logits: Any, target: Any, weight: Any, reduction: str, label_smoothing: float) -> tuple[Any, Any, Any]:
        """Decompose into torch's operations."""
        dim = _class_dim(logits)
        loss = ltorch.cross_entropy(logits, target, weight, reduction=reduction, label_smoothing=label_smoothing)
        lse = ltorch.logsumexp(_wide(logits), dim)
        mass = _smoothed(_wide(target), label_smoothing, logits.shape[dim])
        if weight is not None:
            mass = mass * _by_class(weight, logits)
        return loss, lse, ltorch.sum(mass, dim)

    @staticmethod
    def run(
        logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, reduction: str, label_smoothing: float
    ) -> tuple[Any, Any, Any]:
        """Run the kernels."""
        return _soft_loss(logits, target, weight, reduction, label_smoothing, save=True)


def _soft_loss(
    logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, reduction: str, label_smoothing: float, *,
    save: bool,
) -> tuple[Any, Any, Any]:  # fmt: skip
    x, t = Rows.of(logits), Rows.of(target)
    by_row = reduction == "none"
    loss, lse, mass, partial = soft_kernels.forward(
        x, t, _contiguous(weight), label_smoothing, keep_rows=by_row, save=save
    )
    shape = _rows_shape(logits)
    if lse is not None and mass is not None:
        lse, mass = lse.view(shape), mass.view(shape)
    if loss is not None:
        return loss.view(shape), lse, mass
    return kernels.finish(x, partial, mean=reduction == "mean")[0], lse, mass


class SoftBackward:
    """Computes the gradient of the logits."""

    @staticmethod
    def like(
        g: Any, logits: Any, target: Any, lse: Any, mass: Any, weight: Any, reduction: str, label_smoothing: float
    ) -> Any:
        """Decompose into torch's operations."""
        dim = _class_dim(logits)
        t = _smoothed(_wide(target), label_smoothing, logits.shape[dim])
        if weight is not None:
            t = t * _by_class(weight, logits)
        softmax = ltorch.exp(_wide(logits) - ltorch.unsqueeze(lse, dim))
        of_x = _of_element(g, logits, reduction) * (softmax * ltorch.unsqueeze(mass, dim) - t)
        return ltorch.to(of_x, logits.dtype)

    @staticmethod
    def run(
        g: torch.Tensor, logits: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, mass: torch.Tensor,
        weight: torch.Tensor | None, reduction: str, label_smoothing: float,
    ) -> torch.Tensor:  # fmt: skip
        """Run the kernels."""
        out, rows = _like_rows(logits)
        soft_kernels.backward(
            g.contiguous(), Rows.of(logits), Rows.of(target), lse, mass, _contiguous(weight), label_smoothing,
            by_row=reduction == "none", mean=reduction == "mean", out=rows,
        )  # fmt: skip
        return out


def gradient_of_probabilities(
    g: Any, logits: Any, target: Any, lse: Any, weight: Any, reduction: str, label_smoothing: float
) -> Any:
    """Return the gradient of the target. It is pointwise and rarely needed, so torch's operations compute it."""
    log_p = _wide(logits) - ltorch.unsqueeze(lse, _class_dim(logits))
    out = -(_of_element(g, logits, reduction) * log_p) * (1 - label_smoothing)
    if weight is not None:
        out = out * _by_class(weight, logits)
    return ltorch.to(out, target.dtype)


def _of_element(g: Any, logits: Any, reduction: str) -> Any:
    """Return the cotangent of the loss, broadcast to the elements of the logits."""
    g, dim = _wide(g), _class_dim(logits)
    if reduction == "none":
        return ltorch.unsqueeze(g, dim)
    return g / max(logits.numel() // max(logits.shape[dim], 1), 1) if reduction == "mean" else g
