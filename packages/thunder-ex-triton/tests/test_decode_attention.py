# SPDX-License-Identifier: Apache-2.0
"""Attention of few queries to many keys: values, masks, layouts, what is left to others, and decoding with a cache."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import thunder
from thunder.extend import get_default_executors, set_default_executors
from thunder.toolkit.testing import measured_times, new_process
from thunder_ex_triton import decode_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EXECUTORS = ["triton", "torch"]  # executors for attention come first where they are installed
HALF = torch.float16  # Triton's interpreter rounds bfloat16 differently


def random(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


def attention(q: Any, k: Any, v: Any, mask: Any = None, **how: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True, **how)


def check(q: Any, k: Any, v: Any, mask: Any = None, claimed: bool = True, **how: Any) -> torch.Tensor:
    """Compare with float64."""
    jitted = thunder.jit(lambda q, k, v, mask: attention(q, k, v, mask, **how), executors=EXECUTORS)
    found = jitted(q, k, v, mask)
    exact = mask.double() if mask is not None and mask.is_floating_point() else mask
    expected = attention(q.double(), k.double(), v.double(), exact, **how)
    assert (found.shape, found.dtype) == (expected.shape, q.dtype)
    torch.testing.assert_close(found.double(), expected, rtol=2e-3, atol=2e-3, equal_nan=True)
    names = [op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols]
    assert ("triton_decode_attention" in names) == claimed
    return found


@pytest.mark.parametrize("keys", [64, 65, 200])
@pytest.mark.parametrize("batch, heads, kv_heads, queries", [(1, 8, 2, 1), (2, 3, 3, 2), (1, 4, 1, 16)])
def test_values(batch: int, heads: int, kv_heads: int, queries: int, keys: int) -> None:
    cache = batch, kv_heads, keys, 16
    check(random(batch, heads, queries, 16), random(*cache), random(*cache)[..., :16])


def test_sizes_of_values_scale_and_strides() -> None:
    q = random(1, 1, 4, 32).transpose(1, 2)
    k, v = random(1, 128, 2, 32).transpose(1, 2), random(1, 2, 64, 128).mT[:, :, ::1]
    check(q, k, v, scale=0.5)
    check(q, k[:, :1].expand(1, 2, 128, 32), v[:, :, :, ::2])
    check(q, random(1, 2, 256, 32)[:, :, ::2], v)


@pytest.mark.parametrize("shape", [(1, 130), (3, 130), (1, 1, 3, 130), (2, 1, 1, 130), (1, 4, 3, 1)])
def test_masks(shape: tuple[int, ...]) -> None:
    q, k, v = random(2, 4, 3, 16), random(2, 2, 130, 16), random(2, 2, 130, 32)
    check(q, k, v, random(*shape))
    check(q, k, v, random(*shape) > 0)
    check(q, k, v, random(*shape).masked_fill(random(*shape) > 0, -math.inf))


def test_queries_without_keys_give_zeros() -> None:
    q, k, v = random(1, 2, 1, 16), random(1, 2, 130, 16), random(1, 2, 130, 16)
    for mask in (torch.zeros(1, 130, dtype=torch.bool), torch.full((1, 130), -math.inf, dtype=HALF)):
        assert (check(q, k, v, mask.to(DEVICE)) == 0).all()


def test_excluded_parts_of_a_cache_are_not_read() -> None:
    q, k, v = random(1, 2, 1, 16), random(1, 2, 192, 16), random(1, 2, 192, 16)
    mask = torch.arange(192, device=DEVICE)[None] < 50
    expected = check(q, k, v, mask)
    k[:, :, 64:], v[:, :, 64:] = math.nan, math.inf
    assert torch.equal(thunder.jit(attention, executors=EXECUTORS)(q, k, v, mask), expected)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite(value: float) -> None:
    q, k, v = random(1, 2, 1, 16), random(1, 2, 130, 16), random(1, 2, 130, 16)
    v[0, 0, 3, 5] = value
    check(q, k, v)
    k[0, 1, 100, 2] = value
    check(q, k, v)


@pytest.mark.parametrize(
    "changed",
    [
        {"q": random(1, 2, 17, 16)},
        {"k": random(1, 2, 40, 16), "v": random(1, 2, 40, 16)},
        {"q": random(1, 2, 1, 24), "k": random(1, 2, 64, 24)},
        {"q": random(1, 2, 1, 16).float(), "k": random(1, 2, 64, 16).float(), "v": random(1, 2, 64, 16).float()},
        {"is_causal": True},
    ],
)
def test_what_is_left_to_others(changed: dict[str, Any]) -> None:
    check(**{"q": random(1, 2, 1, 16), "k": random(1, 2, 64, 16), "v": random(1, 2, 64, 16), **changed}, claimed=False)


def test_gradients() -> None:
    tensors = [random(1, 2, n, 16).requires_grad_() for n in (1, 64, 64)]
    found = torch.autograd.grad(thunder.jit(attention, executors=EXECUTORS)(*tensors).sum(), tensors)
    for mine, expected in zip(found, torch.autograd.grad(attention(*tensors).sum(), tensors)):
        torch.testing.assert_close(mine, expected, rtol=1e-2, atol=1e-3)


@pytest.fixture
def only_triton() -> Iterator[None]:
    """By default, attention has no other executors, e.g. cuDNN."""
    defaults = get_default_executors()
    set_default_executors([ex for ex in defaults if ex.name.startswith("triton")])
    yield
    set_default_executors(defaults)


@pytest.mark.parametrize("most_keys, default", [(100, "triton"), (50, "torch")])
def test_measurements_decide(most_keys: int, default: str, monkeypatch: pytest.MonkeyPatch, only_triton: None) -> None:
    """The rule of the most keys is the default."""
    monkeypatch.setattr(decode_attention, "_MOST_KEYS", most_keys)
    q, k, v = random(1, 2, 1, 16), random(1, 2, 64, 16), random(1, 2, 64, 16)
    for faster in ("torch", "triton"):
        with measured_times({"torch": 2.0, "triton": 2.0, faster: 1.0}), torch.no_grad():
            jitted = thunder.jit(attention, measured="first call")
            torch.testing.assert_close(jitted(q, k, v), attention(q, k, v), rtol=1e-2, atol=1e-3)
            (choice,) = thunder.examine.choices(jitted)
            names = [op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols]
            assert ("triton_decode_attention" in names) == (faster == "triton") == (choice.chosen == "triton")
            assert choice.default == default
        new_process()


class Decoder(nn.Module):
    """A layer with a static cache, and a head."""

    def __init__(self, width: int = 256, hidden: int = 288, length: int = 64):
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, width), nn.Linear(width, 11, bias=False)
        self.norms = nn.ModuleList([nn.RMSNorm(width) for _ in range(3)])
        self.qkv, self.out = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, width)
        self.gate, self.up, self.down = nn.Linear(width, hidden), nn.Linear(width, hidden), nn.Linear(hidden, width)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, 4, length, 32))
        self.register_buffer("positions", torch.arange(length))

    @torch.no_grad()
    def forward(self, token: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next token."""
        x = self.embedding(token)
        q, k, v = self.qkv(self.norms[0](x)).view(1, 1, 16, 32).transpose(1, 2).split((8, 4, 4), 1)
        self.keys.index_copy_(2, at, k)
        self.values.index_copy_(2, at, v)
        y = F.scaled_dot_product_attention(q, self.keys, self.values, (self.positions <= at)[None], enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(1, 1, -1))
        normed = self.norms[1](x)
        x = x + self.down(F.silu(self.gate(normed)) * self.up(normed))
        return self.head(self.norms[2](x))


def test_decoding() -> None:
    """All products of a token are parts of fusions, and tokens and caches are those of float64."""
    torch.manual_seed(0)
    model = Decoder().to(DEVICE, HALF)
    exact = Decoder().to(DEVICE, torch.float64)
    exact.load_state_dict(model.state_dict())
    jitted = thunder.jit(model, executors=EXECUTORS, cuda_graphs="never")
    token = torch.zeros(1, 1, dtype=torch.int64, device=DEVICE)
    for i in range(4):
        at = torch.tensor([i], device=DEVICE)
        found, expected = jitted(token, at), exact(token, at)
        torch.testing.assert_close(found.double(), expected, rtol=5e-3, atol=5e-3)
        token = expected.argmax(-1)
    torch.testing.assert_close(model.keys.double(), exact.keys, rtol=5e-3, atol=5e-3)
    names = [op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols]
    assert any(name.startswith("triton_cached_attention") for name in names) and "linear" not in names
