# SPDX-License-Identifier: Apache-2.0
"""`QuantizationTransform`: weights in eight or four bits, dequantized where they are used.

Contract: the weights of the selected submodules (by default every `torch.nn.Linear`) are stored as integers and scales.
Each use dequantizes the weight to its original dtype, as operations of the program. Nothing else is quantized.
Quantized weights are frozen. `state_dict()` and `load_state_dict` use the original layout.

`int8` is symmetric, with one scale for each row (output channel): `weight ≈ int8 * scale`, `scale = max |row| / 127`.
Numbers are rounded to the nearest integer. `float8` is the same with the numbers of `torch.float8_e4m3fn` and
`scale = max |row| / 448`: small weights of a row keep more of their digits, and large ones fewer. `nf4` is the 4-bit
NormalFloat of bitsandbytes, quantized in blocks. It requires that library.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from typing import Any

import torch

from thunder.core.errors import ThunderError
from thunder.transforms.base import Transform, check_names, check_option
from thunder.transforms.modules import Variant, become, chosen_modules, saved_tensors

__all__ = ["QuantizationTransform", "dequantize", "quantize_float8", "quantize_int8"]

KINDS = ("int8", "float8", "nf4")
_LARGEST_FLOAT8 = 448  # of torch.float8_e4m3fn


def _scaled(weight: torch.Tensor, largest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Divide each row by its scale, so that its numbers are at most `largest`. Return the quotients and the scales."""
    dims = tuple(range(1, weight.ndim))
    scale = (weight.detach().float().abs().amax(dims, keepdim=True) / largest).to(weight.dtype)
    # A row of zeros has a scale of zero. For this row, any nonzero divisor gives zeros.
    divisor = torch.where(scale == 0, torch.ones_like(scale), scale).float()
    return weight.detach().float() / divisor, scale


def quantize_int8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize a weight to int8. Return the integers and the scale of each row."""
    numbers, scale = _scaled(weight, 127)
    return numbers.round().clamp(-127, 127).to(torch.int8), scale


def quantize_float8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize a weight to `torch.float8_e4m3fn`. Return the numbers and the scale of each row."""
    numbers, scale = _scaled(weight, _LARGEST_FLOAT8)
    # A scale that was rounded down gives numbers above the largest, which would be converted to NaN.
    return numbers.clamp(-_LARGEST_FLOAT8, _LARGEST_FLOAT8).to(torch.float8_e4m3fn), scale


def dequantize(numbers: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Dequantize a weight in int8 or float8."""
    return numbers.to(scale.dtype) * scale


class Int8(Variant):
    """A submodule whose weight is stored as int8 with a scale for each row."""

    stored = "weight_int8"  # the name of the buffer
    weight_scale: torch.Tensor

    def quantized(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Quantize a weight."""
        return quantize_int8(weight)

    def quantize(self, weight: torch.Tensor) -> None:
        """Store a weight as numbers of eight bits and scales."""
        numbers, scale = self.quantized(weight)
        self.register_buffer(self.stored, numbers, persistent=False)  # type: ignore[attr-defined]
        self.register_buffer("weight_scale", scale, persistent=False)  # type: ignore[attr-defined]

    @property
    def weight(self) -> torch.Tensor:
        """Return the dequantized weight."""
        return dequantize(getattr(self, self.stored), self.weight_scale)

    def load_weight(self, weight: torch.Tensor) -> None:
        """Write another weight into the same memory."""
        own: torch.Tensor = getattr(self, self.stored)
        if weight.shape != own.shape:
            raise ValueError(f"weight has the shape {tuple(weight.shape)}, not {tuple(own.shape)}")
        numbers, scale = self.quantized(weight.to(self.weight_scale.device, self.weight_scale.dtype))
        own.copy_(numbers)
        self.weight_scale.copy_(scale)

    def state_to_original(self) -> dict[str, torch.Tensor]:
        return {"weight": self.weight, **saved_tensors(self)}

    def original_names(self) -> tuple[str, ...]:
        return ("weight", *saved_tensors(self))

    def state_from_original(self, state: dict[str, torch.Tensor]) -> None:
        own = saved_tensors(self)
        for name, value in state.items():
            if name == "weight":
                self.load_weight(value)
            else:
                own[name].copy_(value)


class Float8(Int8):
    """A submodule whose weight is stored as `torch.float8_e4m3fn` with a scale for each row."""

    prefix = "Float8"
    stored = "weight_float8"

    def quantized(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return quantize_float8(weight)


class Nf4(Int8):
    """A submodule whose weight is stored by bitsandbytes, with four bits per number."""

    prefix = "Nf4"
    BLOCK = 64
    weight_nf4: torch.Tensor

    def quantize(self, weight: torch.Tensor) -> None:
        packed, scales = self._packed(weight)
        self.register_buffer("weight_nf4", packed, persistent=False)  # type: ignore[attr-defined]
        self.register_buffer("weight_scale", scales, persistent=False)  # type: ignore[attr-defined]
        self.weight_shape, self.weight_dtype = tuple(weight.shape), weight.dtype

    def _packed(self, weight: torch.Tensor) -> Any:
        return torch.ops.bitsandbytes.quantize_4bit(weight.detach().contiguous(), self.BLOCK, "nf4", torch.uint8)

    @property
    def weight(self) -> torch.Tensor:
        return torch.ops.bitsandbytes.dequantize_4bit(  # type: ignore[no-any-return]
            self.weight_nf4, self.weight_scale, self.BLOCK, "nf4", list(self.weight_shape), self.weight_dtype
        )

    def load_weight(self, weight: torch.Tensor) -> None:
        if tuple(weight.shape) != self.weight_shape:
            raise ValueError(f"weight has the shape {tuple(weight.shape)}, not {self.weight_shape}")
        packed, scales = self._packed(weight.to(self.weight_nf4.device, self.weight_dtype))
        self.weight_nf4.copy_(packed)
        self.weight_scale.copy_(scales)


_VARIANTS: dict[str, type[Int8]] = {"int8": Int8, "float8": Float8, "nf4": Nf4}


class QuantizationTransform(Transform):
    """Weight-only quantization.

    `kind` is "int8", "float8" or "nf4". `modules` contains names or patterns of submodules that have a weight; None
    selects every `torch.nn.Linear`. `skip` contains names or patterns of submodules to exclude, e.g. the head of a
    language model.
    """

    changes_results = False  # the transform only changes the module

    def __init__(self, kind: str = "int8", *, modules: Sequence[str] | None = None, skip: Sequence[str] = ()):
        check_option("QuantizationTransform", "kind", kind, kind in KINDS, f"one of {', '.join(KINDS)}")
        if modules is not None:
            check_names("QuantizationTransform", "modules", modules)
        check_names("QuantizationTransform", "skip", skip)
        if kind == "nf4" and importlib.util.find_spec("bitsandbytes") is None:
            raise ImportError(
                "QuantizationTransform('nf4') needs bitsandbytes: pip install bitsandbytes, or use 'int8'"
            )
        self.kind = kind
        self.modules = modules
        self.skip = tuple(skip)

    def transform_module(self, module: torch.nn.Module) -> None:
        if self.kind == "nf4":
            # bitsandbytes is optional, so it is imported only for this kind.
            importlib.import_module("bitsandbytes")
        can, what = (_is_linear, "torch.nn.Linear") if self.modules is None else (_has_weight, "module with a weight")
        chosen = chosen_modules(module, can, self.modules, option="QuantizationTransform", what=what, skip=self.skip)
        for name, sub in chosen:
            weight = sub._parameters.get("weight")
            if isinstance(sub, Variant) and not isinstance(sub, Int8):
                raise ThunderError(
                    f"QuantizationTransform: {name} already has an adapter. Put QuantizationTransform before "
                    "LoRATransform"
                )
            if weight is None:
                continue
            if weight.is_meta:
                raise ValueError(
                    f"QuantizationTransform: the weight of {name} is on the meta device: put MaterializationTransform "
                    "before this transform"
                )
            if not weight.is_floating_point() or math.prod(weight.shape) == 0:
                continue
            del sub._parameters["weight"]
            become(sub, _VARIANTS[self.kind]).quantize(weight)

    def __repr__(self) -> str:
        return f"thunder.transforms.QuantizationTransform({self.kind!r})"


def _is_linear(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Linear)


def _has_weight(module: torch.nn.Module) -> bool:
    """Check whether a module has its own matrix or convolution kernel as weight."""
    weight = module._parameters.get("weight")
    return (weight is not None and weight.ndim >= 2) or isinstance(module, Variant)
