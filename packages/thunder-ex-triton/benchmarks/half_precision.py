# SPDX-License-Identifier: Apache-2.0
"""Benchmark of fusions in half precision on a GPU: what the roundings of intermediate results cost.

    python benchmarks/half_precision.py [--dtype float16] [--markdown FILE]

Prints microseconds of forward and backward with the installed sources. Run it with the sources before and after a
change. Backward calls autograd, whose host time hides the kernels of small programs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
from fusion import chain, rope
from torch import nn
from torch.nn import functional as F
from triton.testing import do_bench

import thunder
from thunder.toolkit.benchmarking import parser, report, table

Program = tuple[Callable[..., Any], list[torch.Tensor]]


def times(fn: Callable[..., Any], inputs: list[torch.Tensor]) -> tuple[float, float | None]:
    """Return the microseconds of forward and backward; None for programs without gradients."""
    jitted = thunder.jit(fn, cuda_graphs="never")
    results = jitted(*inputs)
    forward: float = do_bench(lambda: jitted(*inputs), warmup=25, rep=100) * 1e3
    results = [r for r in (results if isinstance(results, tuple) else (results,)) if r is not None and r.requires_grad]
    if not results:
        return forward, None
    gradients, leaves = [torch.randn_like(r) for r in results], [x for x in inputs if x.requires_grad]
    backward: float = do_bench(
        lambda: torch.autograd.grad(results, leaves, gradients, retain_graph=True), warmup=25, rep=100
    )
    return forward, backward * 1e3


def programs(dtype: torch.dtype) -> dict[str, Callable[[], Program]]:
    """Return functions that make a program and its inputs, by the program's name."""

    def made(*shape: int, grad: bool = True) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=dtype).requires_grad_(grad)

    def rms_norm(rows: int, columns: int) -> Program:
        def block(x: Any, y: Any, w: Any) -> Any:
            h = x + y
            return h, F.rms_norm(h, w.shape, w)

        return block, [made(rows, columns), made(rows, columns), made(columns)]

    def layer_norm() -> Program:
        def block(x: Any, y: Any, w: Any, b: Any) -> Any:
            h = x + y
            return h, F.layer_norm(h, w.shape, w, b)

        return block, [made(65536, 768), made(65536, 768), made(768), made(768)]

    def batch_norm() -> Program:
        norm = nn.BatchNorm2d(256).to("cuda", dtype)
        images = made(64, 256, 56, 56, grad=False).contiguous(memory_format=torch.channels_last).requires_grad_()

        def block(x: Any, b: Any) -> Any:
            return F.relu(F.batch_norm(x + b, None, None, norm.weight, norm.bias, True))

        return block, [images, made(1, 256, 1, 1)]

    def momentum() -> Program:
        def step(*tensors: Any) -> None:
            for p, g, m in zip(tensors[:4], tensors[4:8], tensors[8:]):
                m.mul_(0.9).add_(g)
                p.add_(m, alpha=-1e-3)

        return step, [made(4096, 4096, grad=False) for _ in range(12)]

    wide = 8192, 14336
    return {
        "residual + RMSNorm 16384x4096": lambda: rms_norm(16384, 4096),
        "residual + RMSNorm 8192x16384": lambda: rms_norm(8192, 16384),
        "residual + LayerNorm 65536x768": layer_norm,
        "bias + GELU 32768x3072": lambda: (lambda x, b: F.gelu(x + b), [made(32768, 3072), made(3072)]),
        "bias + GELU 8192x14336": lambda: (lambda x, b: F.gelu(x + b), [made(*wide), made(wide[1])]),
        "bias + batch norm + ReLU, 64x256x56x56 channels-last": batch_norm,
        "momentum of 4 tensors 4096x4096": momentum,
        "rotary q, k 2x32x4096x128": lambda: (
            rope, [*(made(2, 32, 4096, 128) for _ in range(2)), *(made(4096, 128, grad=False) for _ in range(2))]
        ),
        "100 pointwise operations 8192x8192": lambda: (chain, [made(8192, 8192), made(8192, 8192)]),
        "SwiGLU 8192x14336": lambda: (lambda a, b: F.silu(a) * b, [made(*wide), made(*wide)]),
        "softmax 8192x4096": lambda: (lambda x: x.softmax(-1), [made(8192, 4096)]),
        "a / b 8192x14336": lambda: (lambda a, b: a / b, [made(*wide), made(*wide)]),
        "x / (1 + abs(x)) 8192x14336": lambda: (lambda x: x / (1 + x.abs()), [made(*wide)]),
    }  # fmt: skip


def main() -> None:
    arguments = parser(__doc__, repetitions=None)
    arguments.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16"])
    options = arguments.parse_args()
    rows = []
    for name, make in programs(getattr(torch, options.dtype)).items():
        forward, backward = times(*make())
        rows.append([name, f"{forward:.1f}", "" if backward is None else f"{backward:.1f}"])
    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}"
    report(f"{table([f'µs, {options.dtype}', 'forward', 'backward'], rows)}\n\n{machine}", options)


if __name__ == "__main__":
    main()
