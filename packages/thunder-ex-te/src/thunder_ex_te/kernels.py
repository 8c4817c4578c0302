# SPDX-License-Identifier: Apache-2.0
"""All calls of TransformerEngine. Some of the called interfaces are private: `probe.py` lists the supported versions.

Arguments and results are plain tensors. A quantized matrix consists of data (bytes) and inverse scales. If requested,
the data and inverse scales of its transpose are added: on Hopper a matmul needs both operands with the contracted
dimension last. `Float8…Storage` objects are created around these tensors for the duration of one call.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import transformer_engine.pytorch  # noqa: F401  (loads the libraries of the imports below)
import transformer_engine_torch as tex
from transformer_engine.common import recipe as recipes
from transformer_engine.pytorch.constants import DType, TE_DType
from transformer_engine.pytorch.cpp_extensions import general_gemm, general_grouped_gemm
from transformer_engine.pytorch.tensor.float8_blockwise_tensor import Float8BlockQuantizer
from transformer_engine.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer, Float8Quantizer
from transformer_engine.pytorch.tensor.storage.float8_blockwise_tensor_storage import Float8BlockwiseQTensorStorage
from transformer_engine.pytorch.tensor.storage.float8_tensor_storage import Float8TensorStorage

from thunder.toolkit.launch import current_cuda_device, current_stream, on_its_device
from thunder_ex_te.reference import Quantized

__all__ = [
    "multiply", "multiply_groups", "quantize", "quantize_groups", "quantize_norm", "quantize_scaled", "recipes",
    "update_scales",
]  # fmt: skip

TYPES = {"e4m3": DType.kFloat8E4M3, "e5m2": DType.kFloat8E5M2}


def _block(kind: str) -> int:
    """Return the number of dimensions of a scale's block: 1 for `e4m3 1x128`, 2 for `e4m3 128x128`, 0 for `e4m3`."""
    return 0 if " " not in kind else 1 if kind.endswith(" 1x128") else 2


def _quantizer(*how: Any) -> Any:
    """Return a quantizer with current scaling.

    It has memory for a scale and an amax, in which kernels of two streams or CUDA graphs must not write at one time.
    """
    device = current_cuda_device()
    if device < 0:
        return _quantizer_of(device, 0, *how)
    make = _quantizer_of.__wrapped__ if torch.cuda.is_current_stream_capturing() else _quantizer_of
    return make(device, current_stream(device), *how)


@functools.lru_cache(maxsize=256)
def _quantizer_of(device: int, stream: int, kind: str, power_2: bool, epsilon: float, rows: bool, columns: bool) -> Any:
    """Return a quantizer for a stream. With one scale per tensor, it writes a transpose only beside the matrix."""
    type, block = TYPES[kind.partition(" ")[0]], _block(kind)
    how = {"rowwise": rows or not block, "columnwise": columns, "force_pow_2_scales": power_2, "amax_epsilon": epsilon}
    if block:
        made = Float8BlockQuantizer(type, block_scaling_dim=block, **how)
    else:
        made = Float8CurrentScalingQuantizer(type, device=torch.device("cuda", max(device, 0)), **how)
    made.internal = True  # return a storage object instead of a tensor subclass
    return made


@on_its_device
def quantize(x: torch.Tensor, kind: str, power_2: bool, epsilon: float, rows: bool, columns: bool) -> Quantized:
    """Quantize `x` to fp8 with current scaling. All dimensions before the last are flattened to rows."""
    return _parts(tex.quantize(x.contiguous(), _quantizer(kind, power_2, epsilon, rows, columns)), kind, rows, columns)


@on_its_device
def quantize_scaled(
    x: torch.Tensor, kind: str, scale: torch.Tensor, amax: torch.Tensor, rows: bool, columns: bool
) -> Quantized:
    """Quantize `x` to fp8 with a given scale. Write the largest absolute value to `amax`."""
    return _parts(tex.quantize(x.contiguous(), _scaled(kind, scale, amax, columns)), kind, rows, columns)


@on_its_device
def quantize_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, kind: str, power_2: bool,
    epsilon: float, scale: torch.Tensor | None, amax: torch.Tensor | None, rows: bool, columns: bool,
) -> tuple[Quantized, torch.Tensor | None, torch.Tensor]:  # fmt: skip
    """Return the norm of `x` over its last dimension in fp8, the mean and rstd.

    The RMS norm has no bias, and mean is None.

    The result is quantized with the given `scale`. If `scale` is None, current scaling is used.
    """
    matrix, weight = x.contiguous().view(-1, x.shape[-1]), weight.contiguous()
    if scale is None or amax is None:
        quantizer = _quantizer(kind, power_2, epsilon, rows, columns)
    else:
        quantizer = _scaled(kind, scale, amax, columns)
    how = eps, None, quantizer, TE_DType[x.dtype], 0, False
    if bias is None:
        found, mean, deviation = tex.rmsnorm_fwd(matrix, weight, *how)
    else:
        found, mean, deviation = tex.layernorm_fwd(matrix, weight, bias.contiguous(), *how)
    made = _parts(found, kind, rows, columns)
    if made.data is not None:
        made = made._replace(data=made.data.view(x.shape))
    of_rows = (*x.shape[:-1], 1)
    return made, None if bias is None else mean.view(of_rows), deviation.view(of_rows)


@on_its_device
def quantize_groups(
    x: torch.Tensor, sizes: Sequence[int], kind: str, power_2: bool, epsilon: float,
    by: Sequence[tuple[torch.Tensor, torch.Tensor]] | None, rows: bool, columns: bool,
) -> list[Quantized]:  # fmt: skip
    """Quantize groups of rows of a matrix to fp8, each with a given scale and amax, or with current scaling."""
    if by is None:
        quantizers = [_quantizer(kind, power_2, epsilon, rows, columns)] * len(sizes)
    else:
        quantizers = [_scaled(kind, scale, amax, columns) for scale, amax in by]
    # Allocate each part separately: if parts shared an allocation, saving a part for backward would keep all of them.
    found = tex.split_quantize(x.contiguous(), list(sizes), quantizers, disable_bulk_allocation=True)
    return [_parts(each, kind, rows, columns) for each in found]


_of_scales: dict[tuple[str, int, int, bool], Any] = {}  # keyed by the ids of tensors that the quantizers keep alive


def _scaled(kind: str, scale: torch.Tensor, amax: torch.Tensor, columns: bool) -> Any:
    """Return a quantizer with a given scale."""
    key = kind, id(scale), id(amax), columns
    made = _of_scales.get(key)
    if made is None:
        if len(_of_scales) >= 4096:
            _of_scales.clear()
        made = _of_scales[key] = Float8Quantizer(scale, amax, TYPES[kind], rowwise=True, columnwise=columns)
        made.internal = True
    return made


def _parts(found: Any, kind: str, rows: bool, columns: bool) -> Quantized:
    """Return the requested parts of a storage object. The transpose is reshaped to two dimensions."""
    if _block(kind):
        made = Quantized(
            found._rowwise_data, found._rowwise_scale_inv, found._columnwise_data, found._columnwise_scale_inv
        )
    else:
        scale = found._scale_inv
        by_rows = (found._data, scale) if rows else (None, None)
        made = Quantized(*by_rows, *((found._transpose, scale) if columns else (None, None)))
    if made.transposed is None or made.transposed.ndim == 2:
        return made
    return made._replace(transposed=made.transposed.view(made.transposed.shape[0], -1))


def _factor(data: torch.Tensor, scale: torch.Tensor, kind: str, dtype: torch.dtype) -> Any:
    type, block = TYPES[kind.partition(" ")[0]], _block(kind)
    if block:
        return Float8BlockwiseQTensorStorage(data, scale, None, None, type, None, block == 2, fake_dtype=dtype)
    return Float8TensorStorage(data=data, fp8_scale_inv=scale, fp8_dtype=type, fake_dtype=dtype)


@on_its_device
def multiply(
    a: torch.Tensor, a_scale: torch.Tensor, a_kind: str, b: torch.Tensor, b_scale: torch.Tensor, b_kind: str,
    dtype: torch.dtype, bias: torch.Tensor | None, split: bool,
) -> torch.Tensor:  # fmt: skip
    """Compute `a @ b.mT + bias` of fp8 operands. `split` selects the split accumulator, which promotes to float32."""
    right, left = _factor(b, b_scale, b_kind, dtype), _factor(a, a_scale, a_kind, dtype)
    found = general_gemm(right, left, out_dtype=dtype, layout="TN", bias=bias, use_split_accumulator=split)
    return found[0]  # type: ignore[no-any-return]


@on_its_device
def multiply_groups(
    out: Sequence[torch.Tensor], a: Sequence[torch.Tensor], a_scales: Sequence[torch.Tensor], a_kind: str,
    b: Sequence[torch.Tensor], b_scales: Sequence[torch.Tensor], b_kind: str, biases: Sequence[torch.Tensor] | None,
    split: bool, joined: bool,
) -> None:  # fmt: skip
    """Write `a @ b.mT + bias` of each group to `out`: one matrix per group, or one matrix for all (`joined`)."""
    dtype = out[0].dtype
    split = split or bool(_block(a_kind))  # Block scaling requires it. Only `general_gemm` selects it itself.
    right = [_factor(*each, b_kind, dtype) for each in zip(b, b_scales)]
    left = [_factor(*each, a_kind, dtype) for each in zip(a, a_scales)]
    general_grouped_gemm(
        right, left, list(out), [None] * len(right), dtype, layout="TN",
        m_splits=[each.shape[0] for each in a], bias=None if biases is None else list(biases),
        use_bias=biases is not None, use_split_accumulator=split, single_output=joined,
    )  # fmt: skip


@on_its_device
def update_scales(
    amax: torch.Tensor, histories: Sequence[torch.Tensor], scales: Sequence[torch.Tensor], algorithm: str, kind: str,
    margin: int,
) -> None:  # fmt: skip
    """Push each amax into its history (shape `[length, 1]`, newest first), and update the scale."""
    tex.fused_amax_and_scale_update_after_reduction(amax, list(histories), list(scales), algorithm, TYPES[kind], margin)
