# SPDX-License-Identifier: Apache-2.0
"""Runs fusions and the kernels of decoding at odd sizes under a memory checker, which finds accesses out of bounds.

    compute-sanitizer --tool memcheck python packages/thunder-ex-triton/benchmarks/sanitize.py

Sizes are odd, so that every tile has a boundary mask; inputs are strided, broadcast and of symbolic sizes. Fusions of
every template run forward and backward twice, launched by Triton and by a warm call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

import thunder


def run(f: Callable[..., Any], *args: torch.Tensor, **options: Any) -> None:
    """Run forward and backward, twice."""
    jitted = thunder.jit(f, executors=["triton", "triton_crossentropy"], **options)
    for _ in range(2):
        out = jitted(*args)
        results = out if isinstance(out, tuple) else (out,)
        torch.autograd.grad(sum(x.float().square().sum() for x in results), [x for x in args if x.requires_grad])


def heads(q: Any, c: Any) -> Any:
    """Apply rotary embedding to heads."""
    q = q.view(2, 17, 3, 8).transpose(1, 2)
    return q * c + torch.cat((-q[..., 4:], q[..., :4]), -1) * c


def decode(dtype: torch.dtype) -> None:
    """Run the kernels of decoding: products of one and few rows with weights of all kinds, and attention to a cache."""

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=dtype)

    def mlp(h: Any, norm: Any, gate: Any, up: Any, down: Any) -> Any:
        x = F.rms_norm(h, norm.shape, norm)
        return h + F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)

    def attention(qkv: Any, keys: Any, values: Any, at: Any, cos: Any, sin: Any) -> Any:
        q, k, v = qkv.view(1, 1, -1, 16).transpose(1, 2).split((6, 2, 2), 1)
        q, k = (x * cos + torch.cat((-x[..., 8:], x[..., :8]), -1) * sin for x in (q, k))
        keys.index_copy_(2, at, k)
        values.index_copy_(2, at, v)
        mask = torch.arange(keys.shape[2], device="cuda")[None] <= at
        return F.scaled_dot_product_attention(q, keys, values, mask, enable_gqa=True)

    with torch.no_grad():
        jitted = thunder.jit(mlp)
        args = make(259), make(277, 259), make(277, 259), make(259, 277)
        for rows in (1, 3):
            for _ in range(2):
                jitted(make(rows, 1, 259), *args)
        for kind in ("int8", "float8"):
            model = torch.nn.Sequential(torch.nn.Linear(259, 277), torch.nn.Linear(277, 7)).to("cuda", dtype)
            quantized = thunder.jit(model, transforms=[thunder.transforms.QuantizationTransform(kind)])
            for rows in (1, 3, 1):
                quantized(make(rows, 259))
        cache = make(1, 2, 131, 16), make(1, 2, 131, 16)
        attended = thunder.jit(attention)
        for position in (0, 63, 130, 130):
            attended(make(1, 1, 160), *cache, torch.tensor([position], device="cuda"), make(1, 16), make(1, 16))


def check(dtype: torch.dtype) -> None:
    """Run all programs in one dtype."""

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=dtype).requires_grad_()

    run(lambda a, b: (a * b + a).tanh() * b, make(37, 131), make(131))
    run(lambda a, w, b: F.layer_norm(a, w.shape, w, b), make(5, 7, 33), make(33), make(33))
    run(lambda a, w: F.rms_norm(F.dropout(a, 0.3) + a, w.shape, w), make(65, 1000), make(1000))
    run(lambda a: F.softmax(a[:, 1:-1].mT * 2, -1), make(19, 77))
    run(lambda a: torch.cat((a[..., 3:], -a[..., :3]), -1) * F.pad(a[:, 1:], (0, 1)), make(9, 21))
    run(lambda a, b: F.gelu(a + b, approximate="tanh"), make(300, 515), make(515))
    run(lambda a, w: F.softmax(a * w, -1), make(3, 33001), make(33001))
    run(lambda a, w: F.layer_norm(a, w.shape, w), make(130, 12289), make(12289))
    run(heads, make(2, 17, 24), make(17, 8))
    run(lambda a, w: a * w, make(1, 5)[:, ::2], make(3))
    labels = torch.tensor([3, 1, 4, -100, 5] * 3, device="cuda")
    run(lambda a: F.cross_entropy(a, labels), make(15, 1003))
    for count in (3103, 17001):  # sorted by this wheel's kernel, and by torch
        tokens = torch.arange(count, device="cuda") ** 2 % 37
        run(lambda a, w: F.embedding(tokens, w, padding_idx=3) * a, make(33), make(37, 33))
    jitted = thunder.jit(lambda a, w: F.layer_norm(a, w.shape, w) * a.shape[0], cache="symbolic values")
    for n in (3, 17, 64):
        jitted(make(n, 101), make(101)).sum().backward()


if __name__ == "__main__":
    for dtype in (torch.float32, torch.bfloat16):
        check(dtype)
    for dtype in (torch.float16, torch.bfloat16):
        decode(dtype)
    torch.cuda.synchronize()
    print("all programs ran")
