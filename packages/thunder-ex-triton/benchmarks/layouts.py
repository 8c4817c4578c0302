# SPDX-License-Identifier: Apache-2.0
"""Benchmark of fusions over permuted, broadcast and split operands on a GPU: thunder, torch.compile and eager.

    python benchmarks/layouts.py [--markdown FILE] [--only ROW] [--repetitions 3]

The shapes are those of base-size image, audio and state-space models. Times, traffic and numbers of kernels are those
of `fusion.py`. Gradients of weights and biases are sums over all other dimensions, so a backward has columns to sum.
"""

from __future__ import annotations

from typing import Any

import torch
from fusion import Row, row_text
from torch.nn import functional as F

from thunder.toolkit.benchmarking import copy_bandwidth, parser, report, table


def as_image(x: Any) -> Any:
    """Return a channels-last image of pixels with channels."""
    return x.permute(0, 3, 1, 2)


def scaled_residual(y: torch.Tensor, r: torch.Tensor, gamma: torch.Tensor) -> Any:
    """Return the end of ConvNeXt's block: a scale for each channel, and the residual in channels-last."""
    return as_image(r) + as_image(y * gamma)


def norm_of_image(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    """Normalize the channels of a contiguous image, whose result is channels-last."""
    return F.layer_norm(x.permute(0, 2, 3, 1), w.shape, w, b, 1e-6)


def windows(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    """Return the beginning of Swin's block: a norm, a cyclic shift, and windows of 7 x 7 pixels."""
    n, h, _, c = x.shape
    y = F.layer_norm(x, w.shape, w, b).roll((-3, -3), (1, 2))
    return y.view(n, h // 7, 7, h // 7, 7, c).transpose(2, 3).reshape(-1, 49, c)


def whole_image(y: torch.Tensor, r: torch.Tensor, bias: torch.Tensor) -> Any:
    """Return the end of Swin's attention: a bias, the image of windows, the shift back, and the residual."""
    n, h, _, c = r.shape
    y = (y + bias).view(n, h // 7, h // 7, 7, 7, c).transpose(2, 3).reshape(n, h, h, c)
    return r + y.roll((3, 3), (1, 2))


def biased_softmax(s: torch.Tensor, bias: torch.Tensor) -> Any:
    """Return attention's probabilities with a bias for each head, whose gradient sums over the windows."""
    return F.softmax(s + bias, -1)


def gelu_of_image(x: torch.Tensor, bias: torch.Tensor) -> Any:
    """Return what follows SegFormer's depthwise convolution: a bias and GELU in channels-last, and rows of pixels."""
    return F.gelu(as_image(x) + bias[:, None, None]).flatten(2).transpose(1, 2)


def gelu_of_signal(x: torch.Tensor, bias: torch.Tensor) -> Any:
    """Return what follows an audio convolution: a bias for each channel of a contiguous signal, and GELU."""
    return F.gelu(x + bias[:, None])


def norm_of_signal(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    """Return the end of Wav2Vec2's feature encoder: rows of frames from a contiguous signal, normalized."""
    return F.layer_norm(x.transpose(1, 2), w.shape, w, b)


def gated(x: torch.Tensor, z: torch.Tensor, d: torch.Tensor) -> Any:
    """Return the end of Mamba's block: a skip for each channel, and a gate that comes in rows of tokens."""
    return x * d[:, None] * F.silu(z.transpose(1, 2))


ROWS = (
    Row("ConvNeXt: scale + residual, 64x56x56x96", scaled_residual, ((64, 56, 56, 96), (64, 56, 56, 96), (96,)), 3, 3),
    Row("ConvNeXt: scale + residual, 64x14x14x384", scaled_residual, ((64, 14, 14, 384),) * 2 + ((384,),), 3, 3),
    Row("ConvNeXt: LayerNorm of channels, 64x192x28x28", norm_of_image, ((64, 192, 28, 28), (192,), (192,)), 2, 3),
    Row("Swin: LayerNorm + roll + windows, 64x56x56x96", windows, ((64, 56, 56, 96), (96,), (96,)), 2, 3),
    Row("Swin: windows + roll + residual, 64x56x56x96", whole_image, ((4096, 49, 96), (64, 56, 56, 96), (96,)), 3, 2),
    Row("Swin: bias + softmax, 4096x3x49x49", biased_softmax, ((4096, 3, 49, 49), (3, 49, 49)), 2, 3),
    Row("SegFormer: bias + GELU, 16x128x128x256", gelu_of_image, ((16, 128, 128, 256), (256,)), 2, 3),
    Row("Wav2Vec2: bias + GELU, 8x512x15999", gelu_of_signal, ((8, 512, 15999), (512,)), 2, 3),
    Row("Wav2Vec2: LayerNorm of channels, 8x512x1600", norm_of_signal, ((8, 512, 1600), (512,), (512,)), 2, 3),
    Row("Mamba: skip + gate, 8x1536x2048", gated, ((8, 1536, 2048), (8, 2048, 1536), (1536,)), 3, 5),
)


def main() -> None:
    arguments = parser(__doc__, repetitions=3)
    arguments.add_argument("--only", default="", help="measure only the rows whose name contains this")
    options = arguments.parse_args()
    rows = []
    for row in ROWS:
        if options.only in row.name:
            rows.append(row_text(row, options.repetitions))
            print(*rows[-1], sep=" | ", flush=True)
            torch.cuda.empty_cache()
    contenders = ("thunder", "torch.compile", "eager")
    head = ["bfloat16", *(f"{name} {part}" for name in contenders for part in ("forward", "backward"))]
    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    report(f"{table(head, rows)}\n\n{machine}; a copy runs at {copy_bandwidth() / 1e12:.2f} TB/s", options)


if __name__ == "__main__":
    main()
