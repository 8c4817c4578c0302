# SPDX-License-Identifier: Apache-2.0
"""Runs all kernels at odd sizes under a memory checker, which finds accesses out of bounds.

    compute-sanitizer --tool memcheck python packages/thunder-ex-triton/benchmarks/sanitize.py [PART ...]

Sizes are odd, so that every tile has a boundary mask; inputs are strided, broadcast and of symbolic sizes. Fusions of
every template run forward and backward twice, launched by Triton and by a warm call. Then come the kernels of images in
both layouts, of scans, of padded, quantized and batched products, of routing, of updates, of decoding, and all tiles of
convolutions. Without arguments all parts run: `fusions`, `layers`, `decoding`, `products`, `depthwise` and `grouped`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

import thunder
from thunder_ex_triton.convolutions.family import Family
from thunder_ex_triton.depthwise.rule import DEPTHWISE
from thunder_ex_triton.grouped.rule import GROUPED, NARROW
from thunder_ex_triton.matmul import batched, batched_kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # the interpreter needs TRITON_INTERPRET=1, and no checker


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
        return torch.randn(shape, device=DEVICE, dtype=dtype)

    def mlp(h: Any, norm: Any, gate: Any, up: Any, down: Any) -> Any:
        x = F.rms_norm(h, norm.shape, norm)
        return h + F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)

    def attention(qkv: Any, keys: Any, values: Any, at: Any, cos: Any, sin: Any) -> Any:
        q, k, v = qkv.view(1, 1, -1, 16).transpose(1, 2).split((6, 2, 2), 1)
        q, k = (x * cos + torch.cat((-x[..., 8:], x[..., :8]), -1) * sin for x in (q, k))
        keys.index_copy_(2, at, k)
        values.index_copy_(2, at, v)
        mask = torch.arange(keys.shape[2], device=DEVICE)[None] <= at
        return F.scaled_dot_product_attention(q, keys, values, mask, enable_gqa=True)

    with torch.no_grad():
        jitted = thunder.jit(mlp)
        args = make(259), make(277, 259), make(277, 259), make(259, 277)
        for rows in (1, 3):
            for _ in range(2):
                jitted(make(rows, 1, 259), *args)
        for kind in ("int8", "float8"):
            model = torch.nn.Sequential(torch.nn.Linear(259, 277), torch.nn.Linear(277, 7)).to(DEVICE, dtype)
            quantized = thunder.jit(model, transforms=[thunder.transforms.QuantizationTransform(kind)])
            for rows in (1, 3, 1):
                quantized(make(rows, 259))
            large = thunder.jit(
                torch.nn.Linear(1033, 519).to(DEVICE, dtype),
                transforms=[thunder.transforms.QuantizationTransform(kind)],
            )
            for rows in (2, 7, 16):  # enough elements for the kernels of few rows
                large(make(rows, 1033))
        cache = make(1, 2, 131, 16), make(1, 2, 131, 16)
        attended = thunder.jit(attention)
        for position in (0, 63, 130, 130):
            attended(make(1, 1, 160), *cache, torch.tensor([position], device=DEVICE), make(1, 16), make(1, 16))
        few = thunder.jit(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True))
        for queries in (1, 5):
            few(make(1, 6, queries, 16), make(1, 2, 131, 16), make(1, 2, 131, 16))
        for rows in (1, 3):
            thunder.jit(lambda x: x.argmax(-1))(make(rows, 16411))


class Images(torch.nn.Module):
    """Convolutions, norms, pooling and resampling of images, which a pass orders channels-last."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 24, 3, padding=1), torch.nn.Conv2d(24, 24, 3, padding=1, groups=24)
        self.batch, self.group = torch.nn.BatchNorm2d(24), torch.nn.GroupNorm(3, 24)
        self.scale = torch.nn.Parameter(torch.ones(24, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return an image of odd sizes."""
        y = F.relu(self.batch(self.first(x)))
        y = F.silu(self.group(self.second(y))) * self.scale + y
        small = F.avg_pool2d(y, 2, ceil_mode=True, padding=1) + F.max_pool2d(y, 2, ceil_mode=True, padding=1)
        y = y + F.interpolate(small, size=y.shape[2:], mode="bilinear") + F.interpolate(small, size=y.shape[2:])
        return F.layer_norm(y.permute(0, 2, 3, 1), (24,))


def image_of(shape: Any, dtype: torch.dtype, last: bool = False) -> torch.Tensor:
    x = torch.randn(tuple(shape), device=DEVICE, dtype=dtype)
    return x.movedim(1, -1).contiguous().movedim(-1, 1) if last else x


def convolve(family: Family, weight: torch.Tensor, a: torch.Tensor, stride: Any, padding: Any, last: bool) -> None:
    """Run a convolution and its gradients with all tiles. The gradient has the layout of the input, and another one."""
    bias = image_of(weight.shape[:1], weight.dtype)
    for tile in family.tiles("forward", last):
        g = family.compute("forward", a, None, weight, bias, stride, padding, tile)
        for each in (g, image_of(g.shape, g.dtype, not last)):
            family.compute("input", a, each, weight, None, stride, padding, tile)
    for tile in family.tiles("weight", last):
        family.compute("weight", a, g, weight, True, stride, padding, tile)


def depthwise(dtype: torch.dtype) -> None:
    """Run depthwise convolutions."""
    for shape, size, *how in (
        ((2, 37, 9, 7), (7, 7), (1, 1), (3, 3)),
        ((3, 33, 7, 9), (3, 5), (2, 3), (0, 2)),
        ((3, 37, 65), (4,), (1,), (3,)),
    ):
        for last in (False, True):
            weight = image_of((shape[1], 1, *size), dtype)
            convolve(DEPTHWISE, weight, image_of(shape, dtype, last), *how, last)


def grouped(dtype: torch.dtype) -> None:
    """Run convolutions with several channels in a group, and with few channels."""
    for shape, filters, groups, size, stride, padding, last in (
        ((2, 21, 9, 7), 15, 3, (5, 3), (1, 1), (3, 1), True),
        ((1, 34, 7, 9), 134, 2, (3, 3), (2, 1), (0, 2), False),
        ((3, 15, 65), 51, 3, (33,), (1,), (16,), False),
        ((2, 96, 35), 96, 2, (16,), (1,), (8,), True),
        ((3, 3, 19, 17), 37, 1, (7, 7), (2, 2), (3, 3), True),
        ((2, 1, 67), 131, 1, (10,), (5,), (0,), False),
    ):
        weight = image_of((filters, shape[1] // groups, *size), dtype)
        convolve(NARROW if groups == 1 else GROUPED, weight, image_of(shape, dtype, last), stride, padding, last)


def products(dtype: torch.dtype) -> None:
    """Run every tiling of batched products of small matrices: transposed, broadcast, at odd addresses, with gaps."""

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=DEVICE, dtype=dtype)

    for name in batched_kernels.TILES:
        for m, k, n in ((1, 131, 257), (49, 33, 49), (129, 7, 65)):
            a, b = make(2, 3, m, k), make(3, n, k).mT
            batched.run(a, b, name)
            batched.run(a.transpose(2, 3).contiguous().mT, b.contiguous(), name)
            batched.run(make(6 * m * k + 1)[1:].view(2, 3, m, k), make(k, n).expand(2, 3, k, n), name)
            batched.run(make(2, m, 3, k + 5)[..., 5:].transpose(1, 2), make(3, k, 2 * n)[..., 1::2], name)


def routed(x: Any, logits: Any) -> Any:
    """Send tokens to experts and back."""
    weights, ids = torch.topk(logits.float().softmax(-1), 2, dim=-1)
    _, order = torch.sort(ids.reshape(-1))
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.size(0), device=order.device)
    y = F.silu(x[order // 2]) * weights.reshape(-1)[order].unsqueeze(-1).to(x.dtype)
    return y[inverse].view(x.shape[0], 2, -1).sum(dim=1)


def layers(dtype: torch.dtype) -> None:
    """Run the kernels of images, scans, padded products, routing and updates."""

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=DEVICE, dtype=dtype).requires_grad_()

    torch.manual_seed(0)
    for memory in (torch.contiguous_format, torch.channels_last):
        model = Images().to(DEVICE, dtype)
        jitted = thunder.jit(model)
        for _ in range(2):
            jitted(make(3, 3, 37, 43).to(memory_format=memory)).float().square().sum().backward()
    run(lambda x: torch.exp(x.permute(0, 2, 3, 1)) + x.mT.sum(), make(2, 33, 33, 33).permute(0, 3, 1, 2))
    for dim, shape in enumerate(((37, 3, 1031), (37, 35, 31), (1031, 1, 515))):
        run(lambda x, d=dim: torch.cumsum(x.sigmoid(), d) * 2, make(*shape))
    run(
        lambda x, w: F.cross_entropy(F.linear(x, w), torch.arange(515, device=DEVICE) % 7),
        make(515, 136),
        make(1003, 136),
    )
    padded = thunder.jit(F.linear)
    padded(make(4099 if DEVICE == "cuda" else 67, 768), make(5003, 768)).float().sum().backward()
    loss = thunder.jit(
        lambda x, w: F.cross_entropy(F.linear(x, w), torch.arange(515, device=DEVICE) % 7),
        triton_linear_cross_entropy=True,
    )
    loss(make(515, 136), make(1003, 136)).backward()
    run(routed, make(1031, 33), make(1031, 5))
    rows = torch.arange(1031, device=DEVICE) ** 2 % 517
    run(lambda x: x[rows] * 2, make(517, 33))
    model = torch.nn.Sequential(torch.nn.Linear(37, 131), torch.nn.LayerNorm(131), torch.nn.Linear(131, 5)).to(
        DEVICE, dtype
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=False, foreach=True)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    jitted = thunder.jit(step)
    for _ in range(3):
        jitted(make(19, 37).detach())


def check(dtype: torch.dtype) -> None:
    """Run all programs in one dtype."""

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=DEVICE, dtype=dtype).requires_grad_()

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
    labels = torch.tensor([3, 1, 4, -100, 5] * 3, device=DEVICE)
    run(lambda a: F.cross_entropy(a, labels), make(15, 1003))
    for count in (3103, 17001):  # sorted by this wheel's kernel, and by torch
        tokens = torch.arange(count, device=DEVICE) ** 2 % 37
        run(lambda a, w: F.embedding(tokens, w, padding_idx=3) * a, make(33), make(37, 33))
    jitted = thunder.jit(lambda a, w: F.layer_norm(a, w.shape, w) * a.shape[0], cache="symbolic values")
    for n in (3, 17, 64):
        jitted(make(n, 101), make(101)).sum().backward()


PARTS = {
    "fusions": (check, (torch.float32, torch.bfloat16)),
    "layers": (layers, (torch.float32, torch.bfloat16)),
    "decoding": (decode, (torch.float16, torch.bfloat16)),
    "products": (products, (torch.float16, torch.float32) if DEVICE == "cpu" else (torch.bfloat16, torch.float32)),
    "depthwise": (depthwise, (torch.float32, torch.bfloat16)),
    "grouped": (grouped, (torch.float16,) if DEVICE == "cpu" else (torch.bfloat16,)),
}

if __name__ == "__main__":
    for name in sys.argv[1:] or PARTS:
        programs, dtypes = PARTS[name]
        for dtype in dtypes:
            programs(dtype)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        print("all programs ran:", name)
