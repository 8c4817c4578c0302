# SPDX-License-Identifier: Apache-2.0
"""All that this package calls of TransformerEngine. Some of it is private: `library.py` has the versions that do.

In and out are plain tensors. A quantized matrix is its bytes, the numbers that they are multiplied by (its inverse
scales), and where it is asked for the same of its transpose: on Hopper a product wants both factors with the dimension
that is summed over last. `Float8…Storage` objects are made around them for one call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import transformer_engine.pytorch  # noqa: F401  (loads the libraries that what follows needs)
import transformer_engine_torch as tex
from transformer_engine.common import recipe as recipes
from transformer_engine.pytorch.constants import DType
from transformer_engine.pytorch.cpp_extensions import general_gemm
from transformer_engine.pytorch.tensor.float8_blockwise_tensor import Float8BlockQuantizer
from transformer_engine.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer, Float8Quantizer
from transformer_engine.pytorch.tensor.storage.float8_blockwise_tensor_storage import Float8BlockwiseQTensorStorage
from transformer_engine.pytorch.tensor.storage.float8_tensor_storage import Float8TensorStorage

from thunder_ex_te.reference import Quantized

__all__ = ["multiply", "quantize", "quantize_scaled", "recipes", "update_scales"]

F = TypeVar("F", bound=Callable[..., Any])
TYPES = {"e4m3": DType.kFloat8E4M3, "e5m2": DType.kFloat8E5M2}


def _on_its_device(fn: F) -> F:
    """Decorator: kernels run on the GPU of the first argument."""

    @functools.wraps(fn)
    def run(x: Any, *args: Any) -> Any:
        if not x.is_cuda or x.get_device() == torch.cuda.current_device():
            return fn(x, *args)
        with torch.cuda.device(x.get_device()):
            return fn(x, *args)

    return run  # type: ignore[return-value]


def _block(kind: str) -> int:
    """The dimensions of the blocks that have a scale each: `e4m3 1x128` has 1, `e4m3 128x128` 2, plain `e4m3` none."""
    return 0 if " " not in kind else 1 if kind.endswith(" 1x128") else 2


@functools.lru_cache(maxsize=256)
def _quantizer(kind: str, power_2: bool, epsilon: float, rows: bool, columns: bool) -> Any:
    """What quantizes by nothing but the tensor itself. With one scale, a transpose comes with the matrix only."""
    type, block = TYPES[kind.partition(" ")[0]], _block(kind)
    how = {"rowwise": rows or not block, "columnwise": columns, "force_pow_2_scales": power_2, "amax_epsilon": epsilon}
    if block:
        made = Float8BlockQuantizer(type, block_scaling_dim=block, **how)
    else:
        made = Float8CurrentScalingQuantizer(type, device=torch.device("cuda"), **how)
    made.internal = True  # the result is no tensor, but what holds its parts
    return made


@_on_its_device
def quantize(x: torch.Tensor, kind: str, power_2: bool, epsilon: float, rows: bool, columns: bool) -> Quantized:
    """`x` in fp8, by its own largest elements. Its dimensions before the last are rows."""
    found = tex.quantize(x.contiguous(), _quantizer(kind, power_2, epsilon, rows, columns))
    if _block(kind):
        made = Quantized(
            found._rowwise_data, found._rowwise_scale_inv, found._columnwise_data, found._columnwise_scale_inv
        )
        return _with_matrix(made)
    return _of_one_scale(found, rows, columns)


@_on_its_device
def quantize_scaled(
    x: torch.Tensor, kind: str, scale: torch.Tensor, amax: torch.Tensor, rows: bool, columns: bool
) -> Quantized:
    """`x` times a known scale in fp8. Its largest absolute value goes to `amax`."""
    quantizer = Float8Quantizer(scale, amax, TYPES[kind], rowwise=True, columnwise=columns)
    quantizer.internal = True
    return _of_one_scale(tex.quantize(x.contiguous(), quantizer), rows, columns)


def _of_one_scale(found: Any, rows: bool, columns: bool) -> Quantized:
    scale = found._scale_inv
    made = Quantized(
        found._data if rows else None,
        scale if rows else None,
        found._transpose if columns else None,
        scale if columns else None,
    )
    return _with_matrix(made)


def _with_matrix(made: Quantized) -> Quantized:
    """The transpose of a tensor of more dimensions is a matrix."""
    if made.transposed is None or made.transposed.ndim == 2:
        return made
    return made._replace(transposed=made.transposed.view(made.transposed.shape[0], -1))


def _factor(data: torch.Tensor, scale: torch.Tensor, kind: str, dtype: torch.dtype) -> Any:
    type, block = TYPES[kind.partition(" ")[0]], _block(kind)
    if block:
        return Float8BlockwiseQTensorStorage(data, scale, None, None, type, None, block == 2, fake_dtype=dtype)
    return Float8TensorStorage(data=data, fp8_scale_inv=scale, fp8_dtype=type, fake_dtype=dtype)


@_on_its_device
def multiply(
    a: torch.Tensor, a_scale: torch.Tensor, a_kind: str, b: torch.Tensor, b_scale: torch.Tensor, b_kind: str,
    dtype: torch.dtype, bias: torch.Tensor | None, split: bool,
) -> torch.Tensor:  # fmt: skip
    """`a @ b.mT + bias` of fp8 factors. `split`: sums are carried on in float32 after every few products."""
    right, left = _factor(b, b_scale, b_kind, dtype), _factor(a, a_scale, a_kind, dtype)
    found = general_gemm(right, left, out_dtype=dtype, layout="TN", bias=bias, use_split_accumulator=split)
    return found[0]  # type: ignore[no-any-return]


@_on_its_device
def update_scales(
    amax: torch.Tensor, histories: Sequence[torch.Tensor], scales: Sequence[torch.Tensor], algorithm: str, kind: str,
    margin: int,
) -> None:  # fmt: skip
    """Enters each largest value into its history (the first of `[length, 1]`, which moves on), and sets its scale."""
    tex.fused_amax_and_scale_update_after_reduction(amax, list(histories), list(scales), algorithm, TYPES[kind], margin)
