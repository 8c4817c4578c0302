# SPDX-License-Identifier: Apache-2.0
"""The operators of an fp8 trace: quantize, matmul, and update scales.

Operands and results are plain tensors. A quantized matrix is a tensor of bytes (`u8`) and a tensor of inverse scales
(`f32`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from thunder.extend import OpTags, TensorProxy, dtypes, to_dtype
from thunder_ex_te import scales, weights
from thunder_ex_te.probe import kernels
from thunder_ex_te.reference import Quantized

__all__ = ["NAMES", "register"]

BLOCK = 128


# -- quantize ----------------------------------------------------------------------------------------------------------
def scale_shape(rows: Any, columns: Any, kind: str) -> tuple[Any, ...]:
    """Return the shape of a matrix's inverse scales.

    For `1x128` the column blocks come first, and the last size is padded.
    """
    if " " not in kind:
        return (1,)
    if kind.endswith(" 1x128"):
        return -(-columns // BLOCK), -(-rows // 4) * 4
    across = -(-columns // BLOCK)
    return -(-rows // BLOCK), -(-across // 4) * 4


def _matrices(x: TensorProxy, kind: str, rows: bool, columns: bool) -> tuple[Any, ...]:
    n, m = math.prod(x.shape[:-1]), x.shape[-1]

    def make(wanted: bool, shape: tuple[Any, ...], dtype: Any) -> Any:
        return TensorProxy(like=x, shape=shape, dtype=dtype, requires_grad=False) if wanted else None

    return (
        make(rows, tuple(x.shape), dtypes.uint8),
        make(rows, scale_shape(n, m, kind), dtypes.float32),
        make(columns, (m, n), dtypes.uint8),
        make(columns, scale_shape(m, n, kind), dtypes.float32),
    )


def quantize_meta(
    x: TensorProxy, kind: str, power_2: bool = False, epsilon: float = 0.0, *, keep: bool = False, rows: bool = True,
    columns: bool = True,
) -> tuple[Any, ...]:  # fmt: skip
    """Quantize `x` to fp8. Return data and scales, and data and scales of the transpose: (data, scale, data, scale).

    With `keep`, the copies of a parameter are cached until the parameter changes. Parts that `rows` or `columns` do not
    request are None.
    """
    return _matrices(x, kind, rows, columns)


def quantize(
    x: torch.Tensor, kind: str, power_2: bool = False, epsilon: float = 0.0, *, keep: bool = False, rows: bool = True,
    columns: bool = True,
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    """Run the kernel."""

    def make(rows: bool, columns: bool) -> Quantized:
        return kernels().quantize(x, kind, power_2, epsilon, rows, columns)

    return weights.kept(x, (kind, power_2, epsilon), rows, columns, make) if keep else make(rows, columns)


def quantize_scaled_meta(
    x: TensorProxy, kind: str, slot: scales.Slot, *, keep: bool = False, rows: bool = True, columns: bool = True,
    note: bool = True, again: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """Quantize `x` like `te_quantize`, but with the delayed scale of `slot`.

    With `note`, the amax is recorded for the next scale. With `again`, the previous scale is used: the scale that
    quantized `x` earlier in the same step.
    """
    return _matrices(x, kind, rows, columns)


def quantize_scaled(
    x: torch.Tensor, kind: str, slot: scales.Slot, *, keep: bool = False, rows: bool = True, columns: bool = True,
    note: bool = True, again: bool = False,
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    """Run the kernel."""
    scale, amax = slot.at(x.device, note, again)

    def make(rows: bool, columns: bool) -> Quantized:
        return kernels().quantize_scaled(x, kind, scale, amax, rows, columns)

    return weights.kept(x, (kind, id(slot.tensors)), rows, columns, make) if keep else make(rows, columns)


def quantize_norm_meta(
    x: TensorProxy, weight: TensorProxy, bias: TensorProxy | None, eps: float, kind: str, power_2: bool = False,
    epsilon: float = 0.0, slot: scales.Slot | None = None, *, rows: bool = True, columns: bool = True,
    note: bool = True, again: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """Compute the norm of `x` over its last dimension in fp8.

    Quantize like `te_quantize` (with a slot: `te_quantize_scaled`).

    Without a bias the norm is the RMS norm. The results are the matrices, then mean (None for the RMS norm) and rstd of
    each row.
    """
    of_rows = TensorProxy(like=x, shape=(*x.shape[:-1], 1), dtype=dtypes.float32, requires_grad=False)
    mean = None if bias is None else TensorProxy(like=of_rows)
    return *_matrices(x, kind, rows, columns), mean, of_rows


def quantize_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, kind: str, power_2: bool = False,
    epsilon: float = 0.0, slot: scales.Slot | None = None, *, rows: bool = True, columns: bool = True,
    note: bool = True, again: bool = False,
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    """Run the kernel."""
    by = (None, None) if slot is None else slot.at(x.device, note, again)
    made, mean, deviation = kernels().quantize_norm(
        x, weight, bias, eps, kind, power_2, epsilon, *by, rows, columns
    )  # fmt: skip
    return *made, mean, deviation


def quantize_groups_meta(
    x: TensorProxy, sizes: Sequence[int], kind: str, power_2: bool = False, epsilon: float = 0.0,
    slots: Sequence[scales.Slot] | None = None, *, rows: bool = True, columns: bool = True, note: bool = True,
    again: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """Quantize groups of rows of the matrix `x`, each like `te_quantize` (with slots: `te_quantize_scaled`).

    The result has one tuple per part, each with an element per group: (all data, all scales, all transposed data, all
    their scales).
    """
    groups = [TensorProxy("group", like=x, shape=(n, x.shape[1])) for n in sizes]
    parts = zip(*[_matrices(each, kind, rows, columns) for each in groups])
    return tuple(None if part[0] is None else tuple(part) for part in parts)


def quantize_groups(
    x: torch.Tensor, sizes: Sequence[int], kind: str, power_2: bool = False, epsilon: float = 0.0,
    slots: Sequence[scales.Slot] | None = None, *, rows: bool = True, columns: bool = True, note: bool = True,
    again: bool = False,
) -> tuple[tuple[torch.Tensor, ...] | None, ...]:  # fmt: skip
    """Run the kernel."""
    by = None if slots is None else [slot.at(x.device, note, again) for slot in slots]
    found = kernels().quantize_groups(x, sizes, kind, power_2, epsilon, by, rows, columns)
    return tuple(None if part[0] is None else tuple(part) for part in zip(*found))


# -- matmul ------------------------------------------------------------------------------------------------------------
def multiply_meta(
    a: TensorProxy, a_scale: TensorProxy, a_kind: str, b: TensorProxy, b_scale: TensorProxy, b_kind: str, dtype: Any,
    bias: TensorProxy | None = None, *, split: bool = False,
) -> TensorProxy:  # fmt: skip
    """Compute `a @ b.mT + bias` of fp8 operands, in `dtype`. `split` selects the split accumulator."""
    return TensorProxy(like=a, shape=(*a.shape[:-1], b.shape[0]), dtype=to_dtype(dtype), requires_grad=False)


def multiply(
    a: torch.Tensor, a_scale: torch.Tensor, a_kind: str, b: torch.Tensor, b_scale: torch.Tensor, b_kind: str,
    dtype: torch.dtype, bias: torch.Tensor | None = None, *, split: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Run the kernel."""
    return kernels().multiply(a, a_scale, a_kind, b, b_scale, b_kind, dtype, bias, split)


def multiply_groups_meta(
    a: Sequence[TensorProxy], a_scales: Sequence[TensorProxy], a_kind: str, b: Sequence[TensorProxy],
    b_scales: Sequence[TensorProxy], b_kind: str, dtype: Any, biases: Sequence[TensorProxy] | None = None, *,
    split: bool = False, joined: bool = True,
) -> Any:  # fmt: skip
    """Compute `te_matmul` of each pair of matrices. With `joined`, the results are the rows of one matrix."""

    def make(rows: Any) -> TensorProxy:
        return TensorProxy(like=a[0], shape=(rows, b[0].shape[0]), dtype=to_dtype(dtype), requires_grad=False)

    return make(sum(each.shape[0] for each in a)) if joined else tuple(make(each.shape[0]) for each in a)


def multiply_groups(
    a: Sequence[torch.Tensor], a_scales: Sequence[torch.Tensor], a_kind: str, b: Sequence[torch.Tensor],
    b_scales: Sequence[torch.Tensor], b_kind: str, dtype: torch.dtype, biases: Sequence[torch.Tensor] | None = None, *,
    split: bool = False, joined: bool = True,
) -> Any:  # fmt: skip
    """Run the kernel."""
    columns, rows = b[0].shape[0], [each.shape[0] for each in a]
    shapes = [(sum(rows), columns)] if joined else [(n, columns) for n in rows]
    out = [torch.empty(shape, dtype=dtype, device=a[0].device) for shape in shapes]
    kernels().multiply_groups(out, a, a_scales, a_kind, b, b_scales, b_kind, biases, split, joined)
    return out[0] if joined else tuple(out)


# -- scales ------------------------------------------------------------------------------------------------------------
def update_meta(slots: Sequence[scales.Slot]) -> None:
    """Update the delayed scales of these slots from their histories, at the end of a step."""


def update(slots: Sequence[scales.Slot]) -> None:
    """Run the kernel."""
    scales.update(slots)


NAMES = (
    "te_quantize", "te_quantize_scaled", "te_quantize_norm", "te_quantize_groups", "te_matmul", "te_matmul_groups",
    "te_update_scales",
)  # fmt: skip


def register(registry: Any, executor: str) -> None:
    """Register the operators."""
    matmul, effect = (OpTags.MATMUL_OP,), (OpTags.SIDE_EFFECT, OpTags.NON_DIFFERENTIABLE)
    table = (
        (quantize_meta, quantize, ()), (quantize_scaled_meta, quantize_scaled, ()),
        (quantize_norm_meta, quantize_norm, ()), (quantize_groups_meta, quantize_groups, ()),
        (multiply_meta, multiply, matmul), (multiply_groups_meta, multiply_groups, matmul),
        (update_meta, update, effect),
    )  # fmt: skip
    for name, (meta, fn, tags) in zip(NAMES, table):
        registry.register_operator(name, executor=executor, meta=meta, fn=fn, tags=tags)
