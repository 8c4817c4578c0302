# SPDX-License-Identifier: Apache-2.0
"""Attention to static caches that also rotates and writes the new key: values, caches, and which programs it is in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import thunder
from thunder_ex_triton.cached_attention import run

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.float16  # Triton's interpreter rounds bfloat16 differently
KEYS, SIZE = 130, 16
NAMES = ("triton_cached_attention", "triton_cached_attention_")


def random(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


def at(*positions: int) -> torch.Tensor:
    return torch.tensor(positions, device=DEVICE)


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def expected(q: Any, k: Any, v: Any, keys: Any, values: Any, position: Any, mask: Any, cos: Any, sin: Any) -> Any:
    """Return the attention and the caches in double precision."""
    q, k, v, keys, values = (x.double() for x in (q, k, v, keys, values))
    if cos is not None:
        q, k = rotate(q, cos.double(), sin.double()), rotate(k, cos.double(), sin.double())
    keys, values = keys.index_copy(2, position, k), values.index_copy(2, position, v)
    mask = mask.double() if mask is not None and mask.is_floating_point() else mask
    return F.scaled_dot_product_attention(q, keys, values, mask, scale=0.3, enable_gqa=True), keys, values


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize(
    "batch, heads, kv_heads, position", [(1, 4, 2, 0), (2, 1, 1, 63), (1, 2, 1, 64), (1, 2, 2, 129)]
)
def test_values(batch: int, heads: int, kv_heads: int, position: int, rotated: bool) -> None:
    q, k, v = random(batch, heads, 1, SIZE), random(batch, kv_heads, 1, SIZE), random(batch, kv_heads, 1, 32)
    keys, values = random(batch, kv_heads, KEYS, SIZE), random(batch, kv_heads, KEYS, 32)
    keys[:, :, position], values[:, :, position] = torch.nan, torch.inf  # the old entry is not read
    cos, sin = (random(1, SIZE), random(1, 1, 1, SIZE)) if rotated else (None, None)
    until = torch.arange(KEYS, device=DEVICE)[None] <= position
    for mask in (None, until, torch.zeros(1, KEYS, device=DEVICE, dtype=HALF).masked_fill(~until, -torch.inf)):
        args = q, k, v, keys.clone(), values.clone(), at(position), mask, cos, sin
        right = expected(*args)
        for writes in ((False, False), (True, False), (True, True))[:: 1 if mask is None else 2]:
            found = run(*args, 0.3, writes)
            for mine, exact in zip(found, right):
                torch.testing.assert_close(mine.double(), exact, rtol=4e-3, atol=4e-3)
            assert [a.data_ptr() == b.data_ptr() for a, b in zip(found[1:], args[3:5])] == [*writes]


def test_layouts() -> None:
    """Heads behind positions, parts of one projection, caches of other strides, a negative position."""
    qkv = random(1, 1, 8, SIZE).transpose(1, 2)
    q, k, v = qkv.split((4, 2, 2), 1)
    keys, values = random(1, KEYS, 2, SIZE).transpose(1, 2), random(1, 2, SIZE, KEYS).mT
    args = q, k, v, keys, values
    found = run(*args, at(-1), None, None, None, 0.3, (False, False))
    for mine, exact in zip(found, expected(*args, at(KEYS - 1), None, None, None)):
        torch.testing.assert_close(mine.double(), exact, rtol=4e-3, atol=4e-3)
    assert [x.stride() for x in found[1:]] == [keys.stride(), values.stride()]


class Attention(nn.Module):
    """Attention of a token with a cache. `write` stores the new keys."""

    def __init__(self, write: Any, rotates: bool = True, heads: int = 4, kv_heads: int = 2):
        super().__init__()
        self.write, self.rotates, self.heads, self.kv_heads = write, rotates, heads, kv_heads
        self.register_buffer("keys", random(1, kv_heads, KEYS, SIZE))
        self.register_buffer("values", random(1, kv_heads, KEYS, SIZE) * 2)
        self.register_buffer("positions", torch.arange(KEYS, device=DEVICE))
        self.register_buffer("cos", random(KEYS, SIZE))
        self.register_buffer("sin", random(KEYS, SIZE) / 2)

    def forward(self, qkv: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        qkv = qkv.view(1, position.numel(), -1, SIZE).transpose(1, 2)
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        cos, sin = self.cos[position], self.sin[position]
        if self.rotates:
            q, k = rotate(q, cos, sin), rotate(k, cos[None, None], sin[None, None])
        self.write(self.keys, position, k)
        self.write(self.values, position, v)
        return F.scaled_dot_product_attention(q, self.keys, self.values, self.mask(position), enable_gqa=True)

    def mask(self, position: torch.Tensor) -> torch.Tensor:
        return self.positions[None] <= position[:, None]


def copy(cache: torch.Tensor, position: torch.Tensor, new: torch.Tensor) -> None:
    cache.index_copy_(2, position, new)


def assign(cache: torch.Tensor, position: torch.Tensor, new: torch.Tensor) -> None:
    cache[:, :, position] = new


def calls(jitted: Any) -> list[Any]:
    return [op for op in thunder.last_traces(jitted)[-1].bound_symbols if op.sym.name in NAMES]


def check(module: nn.Module, *positions: Any, claimed: bool = True, **options: Any) -> list[Any]:
    """Compare several calls with eager, and the caches. Return the calls of the operator."""
    options = {"executors": ["triton", "torch"], "cuda_graphs": "never", **options}
    eager = type(module)(module.write, module.rotates, module.heads, module.kv_heads)
    jitted = thunder.jit(module, **options)
    with torch.no_grad():
        for position in positions:
            qkv = random(1, len(position), (module.heads + 2 * module.kv_heads) * SIZE) * (1 + position[0] / 100)
            found, right = jitted(qkv, at(*position)), eager(qkv, at(*position))
            torch.testing.assert_close(found, right, rtol=6e-3, atol=6e-3)
            for mine, other in ((module.keys, eager.keys), (module.values, eager.values)):
                torch.testing.assert_close(mine, other, rtol=6e-3, atol=6e-3)
    assert len(calls(jitted)) == claimed
    return calls(jitted)


@pytest.mark.parametrize("write", [copy, assign])
@pytest.mark.parametrize("rotates", [False, True])
def test_programs(write: Any, rotates: bool) -> None:
    (call,) = check(Attention(write, rotates), (0,), (1,), (129,))
    assert (call.args[7] is not None) == rotates
    if DEVICE == "cuda":  # on a CPU a position out of bounds raises an error, which may not come after a write
        assert call.sym.name == "triton_cached_attention_" and call.args[-1] == (True, True)


def test_option() -> None:
    check(Attention(copy), (3,), claimed=False, triton_cached_attention=False)


def test_several_positions_are_left_to_others() -> None:
    check(Attention(copy), (0, 1), (2, 3), claimed=False)


class Repeated(Attention):
    """The heads of the caches are repeated, as in Transformers."""

    def forward(self, qkv: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        q, k, v = qkv.view(1, 1, -1, SIZE).transpose(1, 2).split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        self.write(self.keys, position, k)
        self.write(self.values, position, v)
        groups = self.heads // self.kv_heads
        keys, values = (
            c[:, :, None].expand(1, self.kv_heads, groups, KEYS, SIZE).reshape(1, self.heads, KEYS, SIZE)
            for c in (self.keys, self.values)
        )
        return F.scaled_dot_product_attention(q, keys, values, self.mask(position), scale=0.2)


def test_repeated_heads() -> None:
    """The caches are read as they are."""
    (call,) = check(Repeated(copy), (3,), (64,))
    assert call.args[3].shape == (1, 2, KEYS, SIZE) and call.args[9] == 0.2


class Read(Attention):
    """The updated cache is read by others, too."""

    def forward(self, qkv: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        return super().forward(qkv, position) + self.keys.mean()


class Different(Attention):
    """Keys and values are written at different positions."""

    def forward(self, qkv: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        q, k, v = qkv.view(1, 1, -1, SIZE).transpose(1, 2).split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        self.write(self.keys, position, k)
        self.write(self.values, position + 1, v)
        return F.scaled_dot_product_attention(q, self.keys, self.values, enable_gqa=True)


@pytest.mark.parametrize("module", [Read, Different])
def test_other_programs(module: type[Attention]) -> None:
    check(module(copy), (3,), claimed=False)


class Turned(Attention):
    """Another rotation: it stays an operation of its own."""

    def forward(self, qkv: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        q, k, v = qkv.view(1, 1, -1, SIZE).transpose(1, 2).split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        half = SIZE // 2
        turned = q * self.cos[position] + torch.cat((q[..., half:], -q[..., :half]), -1) * self.sin[position]
        self.write(self.keys, position, rotate(k, self.cos[position], self.sin[position]))
        self.write(self.values, position, v)
        return F.scaled_dot_product_attention(turned, self.keys, self.values, enable_gqa=True)


def test_other_rotations() -> None:
    (call,) = check(Turned(copy), (3,), (4,))
    assert call.args[7] is None


def test_functional_caches() -> None:
    """Caches that the program returns stay copies."""

    def f(q: Any, k: Any, v: Any, keys: Any, values: Any, position: Any) -> Any:
        keys, values = keys.index_copy(2, position, k), values.index_copy(2, position, v)
        return F.scaled_dot_product_attention(q, keys, values, enable_gqa=True), keys, values

    cache = random(1, 2, KEYS, SIZE)
    args = random(1, 4, 1, SIZE), random(1, 2, 1, SIZE), random(1, 2, 1, SIZE), cache, cache * 2, at(5)
    for found, right in zip(thunder.jit(f, executors=["triton", "torch"])(*args), f(*args)):
        torch.testing.assert_close(found, right, rtol=6e-3, atol=6e-3)


def test_gradients() -> None:
    """Under autograd, attention is differentiated as before."""

    def f(q: Any, k: Any, v: Any, keys: Any, values: Any, position: Any) -> Any:
        keys, values = keys.index_copy(2, position, k), values.index_copy(2, position, v)
        return F.scaled_dot_product_attention(q, keys, values, enable_gqa=True)

    shapes = (1, 4, 1, SIZE), (1, 2, 1, SIZE), (1, 2, 1, SIZE), (1, 2, KEYS, SIZE), (1, 2, KEYS, SIZE)
    args = [random(*shape).requires_grad_() for shape in shapes]
    jitted = thunder.jit(f, executors=["triton", "torch"])
    found = torch.autograd.grad(jitted(*args, at(5)).sum(), args)
    for mine, right in zip(found, torch.autograd.grad(f(*args, at(5)).sum(), args)):
        torch.testing.assert_close(mine, right, rtol=1e-2, atol=2e-3)


@pytest.mark.skipif(DEVICE == "cuda", reason="an assertion on the GPU ends its use by the process")
@pytest.mark.parametrize("position", [KEYS, -KEYS - 1])
def test_positions_out_of_bounds(position: int) -> None:
    cache = random(1, 2, KEYS, SIZE)
    entry = random(1, 2, 1, SIZE)
    with pytest.raises(Exception, match="out of range"):
        run(random(1, 4, 1, SIZE), entry, entry, cache, cache, at(position), None, None, None, 0.3, (False, False))
