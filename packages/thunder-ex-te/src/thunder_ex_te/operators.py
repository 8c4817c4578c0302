# SPDX-License-Identifier: Apache-2.0
"""The operators that a trace of a program in fp8 consists of: quantize, multiply, and move scales on.

What passes between them are plain tensors: bytes (`u8`) and inverse scales (`f32`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from thunder.core import dtypes
from thunder.core.dtypes import to_dtype
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import OpTags
from thunder_ex_te import scales, weights
from thunder_ex_te.library import kernels
from thunder_ex_te.reference import Quantized

__all__ = ["NAMES", "register"]

BLOCK = 128


# -- quantize ----------------------------------------------------------------------------------------------------------
def scale_shape(rows: Any, columns: Any, kind: str) -> tuple[Any, ...]:
    """The shape of a matrix's inverse scales: blocks in one direction come first, and the other is padded to fours."""
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
    """`x` in fp8, with its inverse scales, and the same of its transpose: (data, scale, data, scale).

    `keep`: of a parameter they are kept until it changes. None stands for what `rows` or `columns` do not ask for.
    """
    return _matrices(x, kind, rows, columns)


def quantize(
    x: torch.Tensor, kind: str, power_2: bool = False, epsilon: float = 0.0, *, keep: bool = False, rows: bool = True,
    columns: bool = True,
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    """Runs it."""

    def make(rows: bool, columns: bool) -> Quantized:
        return kernels().quantize(x, kind, power_2, epsilon, rows, columns)

    return weights.kept(x, (kind, power_2, epsilon), rows, columns, make) if keep else make(rows, columns)


def quantize_scaled_meta(
    x: TensorProxy, kind: str, slot: scales.Slot, *, keep: bool = False, rows: bool = True, columns: bool = True,
    note: bool = True, again: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """As `te_quantize`, by a scale that is known: that of `slot`.

    `note`: its largest value counts for the next scale. `again`: it was quantized in this step, by the scale before.
    """
    return _matrices(x, kind, rows, columns)


def quantize_scaled(
    x: torch.Tensor, kind: str, slot: scales.Slot, *, keep: bool = False, rows: bool = True, columns: bool = True,
    note: bool = True, again: bool = False,
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    """Runs it."""
    found = slot.on(x.device)
    scale = found["before" if again else "scale"]
    amax = found["amax_history"][0] if note else torch.zeros_like(scale)

    def make(rows: bool, columns: bool) -> Quantized:
        return kernels().quantize_scaled(x, kind, scale, amax, rows, columns)

    return weights.kept(x, (kind, id(slot.tensors)), rows, columns, make) if keep else make(rows, columns)


# -- multiply ----------------------------------------------------------------------------------------------------------
def multiply_meta(
    a: TensorProxy, a_scale: TensorProxy, a_kind: str, b: TensorProxy, b_scale: TensorProxy, b_kind: str, dtype: Any,
    bias: TensorProxy | None = None, *, split: bool = False,
) -> TensorProxy:  # fmt: skip
    """`a @ b.mT + bias` of fp8 factors, in `dtype`. `split`: sums go on in float32 after every few products."""
    return TensorProxy(like=a, shape=(*a.shape[:-1], b.shape[0]), dtype=to_dtype(dtype), requires_grad=False)


def multiply(
    a: torch.Tensor, a_scale: torch.Tensor, a_kind: str, b: torch.Tensor, b_scale: torch.Tensor, b_kind: str,
    dtype: torch.dtype, bias: torch.Tensor | None = None, *, split: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Runs it."""
    return kernels().multiply(a, a_scale, a_kind, b, b_scale, b_kind, dtype, bias, split)


# -- scales ------------------------------------------------------------------------------------------------------------
def update_meta(slots: Sequence[scales.Slot]) -> None:
    """Moves these scales on: the step in which they were used is over."""


def update(slots: Sequence[scales.Slot]) -> None:
    """Runs it."""
    scales.update(slots)


NAMES = ("te_quantize", "te_quantize_scaled", "te_matmul", "te_update_scales")


def register(registry: Any, executor: str) -> None:
    """Brings the operators."""
    matmul, effect = (OpTags.MATMUL_OP,), (OpTags.SIDE_EFFECT, OpTags.NON_DIFFERENTIABLE)
    table = (
        (quantize_meta, quantize, ()), (quantize_scaled_meta, quantize_scaled, ()), (multiply_meta, multiply, matmul),
        (update_meta, update, effect),
    )  # fmt: skip
    for name, (meta, fn, tags) in zip(NAMES, table):
        registry.register_operator(name, executor=executor, meta=meta, fn=fn, tags=tags)
