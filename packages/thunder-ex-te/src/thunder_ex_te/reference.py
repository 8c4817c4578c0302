# SPDX-License-Identifier: Apache-2.0
"""Reference implementations of the kernels in plain torch, on any device."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

__all__ = ["Quantized", "dequantize", "multiply", "quantize", "quantize_by_scale"]

TYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
BLOCK = 128


class Quantized(NamedTuple):
    """A matrix in fp8 and its inverse scales, and the same of its transpose. Parts that are not requested are None."""

    data: Any
    scale: Any
    transposed: Any
    transposed_scale: Any


def _blocks(kind: str) -> tuple[int, int] | None:
    """Return the rows and columns of a scale's block; None if the tensor has one scale."""
    return {"": None, "1x128": (1, BLOCK), "128x128": (BLOCK, BLOCK)}[kind.partition(" ")[2]]


def _type(kind: str) -> torch.dtype:
    return TYPES[kind.partition(" ")[0]]


def _scale(amax: torch.Tensor, kind: str, power_2: bool, epsilon: float) -> torch.Tensor:
    """Return the scale that maps `amax` to the format's largest number; 1 if `amax` is zero or not finite."""
    found = torch.finfo(_type(kind)).max / amax.float().clamp(min=epsilon)
    if power_2:
        found = torch.exp2(torch.floor(torch.log2(found)))
    most = torch.finfo(torch.float32).max
    return torch.where(torch.isfinite(amax) & (amax > 0), found.clamp(max=most), 1.0)


def _cast(x: torch.Tensor, kind: str) -> torch.Tensor:
    most = torch.finfo(_type(kind)).max
    return x.clamp(-most, most).to(_type(kind)).view(torch.uint8)


def _by_blocks(x: torch.Tensor, kind: str, power_2: bool, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize a matrix by blocks. Return the data and the inverse scales, in the layout that matmuls need."""
    blocks = _blocks(kind)
    assert blocks is not None
    n, m = x.shape
    down, across = -(-n // blocks[0]), -(-m // blocks[1])
    padded = torch.nn.functional.pad(x.float(), (0, across * blocks[1] - m, 0, down * blocks[0] - n))
    tiles = padded.view(down, blocks[0], across, blocks[1])
    scale = _scale(tiles.abs().amax((1, 3)), kind, power_2, epsilon)
    data = _cast((tiles * scale[:, None, :, None]).reshape(padded.shape)[:n, :m].contiguous(), kind)
    laid_out = (1 / scale).t() if blocks[0] == 1 else 1 / scale
    wide = torch.zeros(laid_out.shape[0], -(-laid_out.shape[1] // 4) * 4, device=x.device)
    wide[:, : laid_out.shape[1]] = laid_out
    return data, wide


def quantize(
    x: torch.Tensor, kind: str, power_2: bool = False, epsilon: float = 0.0, rows: bool = True, columns: bool = True
) -> Quantized:
    """Quantize like `kernels.quantize`."""
    matrix = x.reshape(-1, x.shape[-1])
    if _blocks(kind) is None:
        return quantize_by_scale(x, kind, _scale(x.abs().amax().view(1), kind, power_2, epsilon), rows, columns)
    data, scale = _by_blocks(matrix, kind, power_2, epsilon)
    other, other_scale = _by_blocks(matrix.t(), kind, power_2, epsilon)
    found = data.view(x.shape), scale, other, other_scale
    return Quantized(*[part if wanted else None for part, wanted in zip(found, (rows, rows, columns, columns))])


def quantize_by_scale(
    x: torch.Tensor, kind: str, scale: torch.Tensor, rows: bool = True, columns: bool = True
) -> Quantized:
    """Quantize like `kernels.quantize_scaled`, without recording the amax."""
    data, inverse = _cast(x.float() * scale, kind), 1 / scale
    other = data.reshape(-1, x.shape[-1]).t().contiguous()
    found = data, inverse, other, inverse
    return Quantized(*[part if wanted else None for part, wanted in zip(found, (rows, rows, columns, columns))])


def dequantize(data: torch.Tensor, scale: torch.Tensor, kind: str) -> torch.Tensor:
    """Dequantize fp8 data to double precision."""
    values, blocks = data.view(_type(kind)).double(), _blocks(kind)
    if blocks is None:
        return values * scale.double()
    matrix = values.reshape(-1, values.shape[-1])
    n, m = matrix.shape
    s = scale.double().t() if blocks[0] == 1 else scale.double()
    s = s.repeat_interleave(blocks[0], 0)[:n].repeat_interleave(blocks[1], 1)[:, :m]
    return (matrix * s).reshape(values.shape)


def multiply(
    a: torch.Tensor, a_scale: torch.Tensor, a_kind: str, b: torch.Tensor, b_scale: torch.Tensor, b_kind: str,
    dtype: torch.dtype, bias: torch.Tensor | None = None, *, split: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Multiply like `kernels.multiply`, accumulating in double precision."""
    out = dequantize(a, a_scale, a_kind) @ dequantize(b, b_scale, b_kind).mT
    return (out if bias is None else out + bias.double()).to(dtype)
