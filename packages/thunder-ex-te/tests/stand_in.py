# SPDX-License-Identifier: Apache-2.0
"""What stands for TransformerEngine where it cannot run: the parts that are called, with fp8 emulated by torch.

It demands of its arguments what the library demands, so that wrong calls fail here too.
"""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from types import SimpleNamespace
from typing import Any

import torch

from thunder_ex_te import reference

KINDS = {7: "e4m3", 8: "e5m2"}


class DType(IntEnum):
    """The types of the library, as it numbers them."""

    kFloat8E4M3 = 7
    kFloat8E5M2 = 8


# -- quantizers and what they make -------------------------------------------------------------------------------------
class Float8CurrentScalingQuantizer:
    """One scale, by the tensor's own largest value."""

    block_scaling_dim = 0

    def __init__(self, dtype: Any, device: Any, *, rowwise: bool, columnwise: bool, **how: Any):
        self.dtype, self.rows, self.columns, self.internal = dtype, rowwise, columnwise, False
        self.how = how

    def make(self, x: Any) -> Any:
        kind = KINDS[self.dtype]
        found = reference.quantize(x, kind, self.how["force_pow_2_scales"], self.how["amax_epsilon"])
        return Float8TensorStorage.of(found, self)


class Float8Quantizer:
    """One scale that is given; the largest value is noted, where none larger was."""

    def __init__(self, scale: Any, amax: Any, dtype: Any, *, rowwise: bool, columnwise: bool):
        assert scale.dtype is amax.dtype is torch.float32 and scale.numel() == amax.numel() == 1
        self.scale, self.amax, self.dtype, self.rows, self.columns = scale, amax, dtype, rowwise, columnwise

    def make(self, x: Any) -> Any:
        self.amax.copy_(torch.maximum(self.amax, x.abs().amax().float()))
        return Float8TensorStorage.of(reference.quantize_by_scale(x, KINDS[self.dtype], self.scale), self)


class Float8BlockQuantizer:
    """A scale for each block."""

    def __init__(self, dtype: Any, *, rowwise: bool, columnwise: bool, block_scaling_dim: int, **how: Any):
        self.dtype, self.rows, self.columns = dtype, rowwise, columnwise
        self.block_scaling_dim, self.how = block_scaling_dim, how

    def make(self, x: Any) -> Any:
        kind = KINDS[self.dtype] + (" 1x128" if self.block_scaling_dim == 1 else " 128x128")
        data, scale, other, other_scale = reference.quantize(
            x, kind, self.how["force_pow_2_scales"], self.how["amax_epsilon"], self.rows, self.columns
        )
        if other is not None and x.ndim > 2:
            other = other.view(x.shape[-1], *x.shape[:-1])
        return Float8BlockwiseQTensorStorage(
            data, scale, other, other_scale, self.dtype, None, self.block_scaling_dim == 2
        )


class Float8TensorStorage:
    """What holds the parts of a tensor with one scale."""

    def __init__(self, *, data: Any, fp8_scale_inv: Any, fp8_dtype: Any, fake_dtype: Any, data_transpose: Any = None):
        assert fp8_scale_inv.dtype is torch.float32
        self._data, self._scale_inv, self._transpose = data, fp8_scale_inv, data_transpose
        self.kind = KINDS[fp8_dtype]

    @classmethod
    def of(cls, found: Any, quantizer: Any) -> Any:
        data, scale, other, _ = found
        assert quantizer.rows, "a transpose comes with the matrix only"
        other = other.view(data.shape[-1], *data.shape[:-1])
        return cls(
            data=data, fp8_scale_inv=scale, fp8_dtype=quantizer.dtype, fake_dtype=None,
            data_transpose=other if quantizer.columns else None,
        )  # fmt: skip

    @property
    def factor(self) -> Any:
        return self._data, self._scale_inv, self.kind


class Float8BlockwiseQTensorStorage:
    """What holds the parts of a tensor with blocks."""

    def __init__(
        self, rowwise_data: Any, rowwise_scale_inv: Any, columnwise_data: Any, columnwise_scale_inv: Any,
        fp8_dtype: Any, quantizer: Any, is_2D_scaled: bool, *, fake_dtype: Any = None,
    ):  # fmt: skip
        self._rowwise_data, self._rowwise_scale_inv = rowwise_data, rowwise_scale_inv
        self._columnwise_data, self._columnwise_scale_inv = columnwise_data, columnwise_scale_inv
        self.kind = KINDS[fp8_dtype] + (" 128x128" if is_2D_scaled else " 1x128")

    @property
    def factor(self) -> Any:
        return self._rowwise_data, self._rowwise_scale_inv, self.kind


calls: list[str] = []  # what was run, in order


def quantize(x: Any, quantizer: Any) -> Any:
    """`transformer_engine_torch.quantize`."""
    assert x.is_contiguous() and x.dtype in (torch.float32, torch.float16, torch.bfloat16)
    calls.append("quantize")
    return quantizer.make(x.detach())


def split_quantize(x: Any, sizes: Any, quantizers: Any, *, disable_bulk_allocation: bool) -> list[Any]:
    """`transformer_engine_torch.split_quantize`."""
    assert x.ndim == 2 and x.is_contiguous() and sum(sizes) == x.shape[0] and len(sizes) == len(quantizers)
    assert disable_bulk_allocation and len({type(each) for each in quantizers}) == 1
    calls.append("quantize groups")
    return [each.make(piece) for each, piece in zip(quantizers, x.detach().split(sizes))]


def general_grouped_gemm(
    right: list[Any], left: list[Any], out: list[Any], quantization_params: list[Any], out_dtype: Any, *, layout: str,
    m_splits: list[int], bias: Any, use_bias: bool, use_split_accumulator: bool, single_output: bool,
) -> None:  # fmt: skip
    """Products of groups, into `out`."""
    assert layout == "TN" and len(right) == len(left) == len(m_splits) == len(quantization_params)
    assert all(each.dtype is out_dtype for each in out) and use_bias == (bias is not None)
    assert [a.factor[0].shape[0] for a in left] == m_splits
    results = out[0].split(m_splits) if single_output else out
    assert len(results) == len(left)
    biases = bias or [None] * len(left)
    before = len(calls)
    for b, a, result, each in zip(right, left, results, biases):
        how = {"out_dtype": out_dtype, "layout": layout, "use_split_accumulator": use_split_accumulator}
        result.copy_(general_gemm(b, a, bias=each, **how)[0])
    calls[before:] = ["product of groups"]


def rmsnorm_fwd(
    x: Any, weight: Any, eps: float, ln_out: Any, quantizer: Any, otype: Any, sm_margin: int, zero_centered_gamma: bool
) -> tuple[Any, ...]:
    """`transformer_engine_torch.rmsnorm_fwd`."""
    assert ln_out is None and sm_margin == 0 and zero_centered_gamma is False and x.is_contiguous() and x.ndim == 2
    assert weight.dtype is x.dtype is otype
    calls.append("norm")
    deviation = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    return quantizer.make((x.float() * deviation * weight.float()).to(x.dtype)), None, deviation.view(-1)


def layernorm_fwd(
    x: Any, weight: Any, bias: Any, eps: float, ln_out: Any, quantizer: Any, otype: Any, sm_margin: int,
    zero_centered_gamma: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """`transformer_engine_torch.layernorm_fwd`."""
    assert ln_out is None and sm_margin == 0 and zero_centered_gamma is False and x.is_contiguous() and x.ndim == 2
    assert weight.dtype is bias.dtype is x.dtype is otype
    calls.append("norm")
    variance, mean = torch.var_mean(x.float(), -1, keepdim=True, correction=0)
    deviation = torch.rsqrt(variance + eps)
    out = (x.float() - mean) * deviation * weight.float() + bias.float()
    return quantizer.make(out.to(x.dtype)), mean.view(-1), deviation.view(-1)


def general_gemm(
    right: Any, left: Any, *, out_dtype: Any, layout: str, bias: Any, use_split_accumulator: bool
) -> tuple[Any, ...]:
    """The product of `left` and `right` transposed."""
    assert layout == "TN"
    (a, a_scale, a_kind), (b, b_scale, b_kind) = left.factor, right.factor
    assert a.dtype is b.dtype is torch.uint8 and a.is_contiguous() and b.is_contiguous()
    assert b.ndim == 2 and a.shape[-1] == b.shape[-1] and a.shape[-1] % 16 == 0, "what is summed over"
    assert b.shape[0] % 16 == 0, "rows of the result would not be aligned"
    assert not (a_kind.startswith("e5m2") and b_kind.startswith("e5m2")), "cuBLAS has no product of two e5m2"
    assert not (a_kind.endswith("128x128") and b_kind.endswith("128x128")), "one of both has blocks of one row"
    assert bias is None or (bias.dtype is out_dtype and out_dtype is not torch.float32)
    calls.append("product")
    return reference.multiply(a, a_scale, a_kind, b, b_scale, b_kind, out_dtype, bias), None, None, None


def fused_amax_and_scale_update_after_reduction(
    amax: Any, histories: Any, scales: Any, algorithm: str, dtype: Any, margin: int
) -> None:
    """The step after which scales move on, in place."""
    calls.append("update")
    most = torch.finfo(reference.TYPES[KINDS[dtype]]).max
    for new, history, scale in zip(amax, histories, scales):
        history[0, 0] = new
        found = history.max() if algorithm == "max" else new
        if found > 0 and torch.isfinite(found):
            scale.fill_(min(most / float(found) / 2**margin, torch.finfo(torch.float32).max))
        history.copy_(history.roll(-1, 0))
        history[0] = 0


# -- recipes -----------------------------------------------------------------------------------------------------------
class Format(Enum):
    """Of forward and backward."""

    E4M3 = "e4m3"
    HYBRID = "hybrid"


@dataclass(frozen=True)
class QParams:
    """How scales are made."""

    power_2_scale: bool = False
    amax_epsilon: float = 0.0


@dataclass(frozen=True)
class MMParams:
    """How sums are carried on."""

    use_split_accumulator: bool = True


class Recipe:
    """The base of recipes."""

    backward_override: Any = None
    fp8_dpa: bool = False
    fp8_mha: bool = False

    def _is(self, name: str) -> bool:
        return type(self).__name__ == name

    def mxfp8(self) -> bool:
        return self._is("MXFP8BlockScaling")

    def nvfp4(self) -> bool:
        return self._is("NVFP4BlockScaling")

    def delayed(self) -> bool:
        return self._is("DelayedScaling")

    def float8_current_scaling(self) -> bool:
        return self._is("Float8CurrentScaling")

    def float8_block_scaling(self) -> bool:
        return self._is("Float8BlockScaling")


@dataclass
class DelayedScaling(Recipe):
    """Scales by what was."""

    margin: int = 0
    fp8_format: Format = Format.HYBRID
    amax_history_len: int = 1024
    amax_compute_algo: Any = "max"
    scaling_factor_compute_algo: Any = None
    reduce_amax: bool = True
    fp8_dpa: bool = False
    fp8_mha: bool = False


@dataclass
class Float8CurrentScaling(Recipe):
    """Scales by what is."""

    fp8_format: Format = Format.HYBRID
    fp8_quant_fwd_inp: QParams = QParams()
    fp8_quant_fwd_weight: QParams = QParams()
    fp8_quant_bwd_grad: QParams = QParams()
    fp8_gemm_fprop: MMParams = MMParams(False)
    fp8_gemm_dgrad: MMParams = MMParams()
    fp8_gemm_wgrad: MMParams = MMParams()
    fp8_dpa: bool = False
    backward_override: Any = None


@dataclass
class Float8BlockScaling(Recipe):
    """A scale for each block."""

    fp8_format: Format = Format.E4M3
    fp8_quant_fwd_inp: QParams = QParams(True)
    fp8_quant_fwd_weight: QParams = QParams(True)
    fp8_quant_bwd_grad: QParams = QParams(True)
    x_block_scaling_dim: int = 1
    w_block_scaling_dim: int = 2
    grad_block_scaling_dim: int = 1
    fp8_gemm_fprop: MMParams = MMParams()
    fp8_gemm_dgrad: MMParams = MMParams()
    fp8_gemm_wgrad: MMParams = MMParams()
    backward_override: Any = None


@dataclass
class MXFP8BlockScaling(Recipe):
    """For newer GPUs."""


@dataclass
class NVFP4BlockScaling(Recipe):
    """For newer GPUs."""


@dataclass
class CustomRecipe(Recipe):
    """Of the user's own making."""

    factory: Any = field(default=None)


def install() -> None:
    """Puts the stand-in where the library would be imported from."""
    here = sys.modules[__name__]
    content = {
        "transformer_engine": {},
        "transformer_engine.common": {"recipe": here},
        "transformer_engine.common.recipe": vars(here),
        "transformer_engine.pytorch": {"autocast": object},
        "transformer_engine.pytorch.constants": {
            "DType": DType, "TE_DType": {d: d for d in (torch.float32, torch.float16, torch.bfloat16)}
        },
        "transformer_engine.pytorch.cpp_extensions": {
            "general_gemm": general_gemm, "general_grouped_gemm": general_grouped_gemm
        },
        "transformer_engine.pytorch.tensor": {},
        "transformer_engine.pytorch.tensor.float8_tensor": vars(here),
        "transformer_engine.pytorch.tensor.float8_blockwise_tensor": vars(here),
        "transformer_engine.pytorch.tensor.storage": {},
        "transformer_engine.pytorch.tensor.storage.float8_tensor_storage": vars(here),
        "transformer_engine.pytorch.tensor.storage.float8_blockwise_tensor_storage": vars(here),
        "transformer_engine_torch": vars(SimpleNamespace(
            quantize=quantize, split_quantize=split_quantize, rmsnorm_fwd=rmsnorm_fwd, layernorm_fwd=layernorm_fwd,
            fused_amax_and_scale_update_after_reduction=fused_amax_and_scale_update_after_reduction,
        )),
    }  # fmt: skip
    for name, values in content.items():
        module = types.ModuleType(name)
        module.__dict__.update({k: v for k, v in values.items() if not k.startswith("__")})
        sys.modules[name] = module
    for name in content:
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, sys.modules[name])
