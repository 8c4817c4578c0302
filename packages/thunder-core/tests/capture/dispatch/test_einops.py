# SPDX-License-Identifier: Apache-2.0
"""Programs written with einops, whose functions remember what they make of patterns and of sizes."""

from __future__ import annotations

from typing import Any

import einops
import pytest
import torch
from einops import einsum, pack, parse_shape, rearrange, reduce, repeat, unpack
from einops.layers.torch import EinMix, Rearrange, Reduce

import thunder

SHAPES = ((2, 3, 4, 6), (3, 3, 8, 4), (4, 3, 6, 2), (2, 3, 2, 2))


def _packed(x: Any) -> Any:
    packed, shapes = pack([x.flatten(2), x.mean((2, 3))], "b c *")
    return unpack(packed * packed.sum(), shapes, "b c *")


PROGRAMS: dict[str, Any] = {
    "rearrange": lambda x: rearrange(x, "b c (h p) (w q) -> b (h w) (p q c)", p=2, q=2),
    "rearrange a list": lambda x: rearrange([x, x * 2], "n b ... -> b n ..."),
    "reduce": lambda x: (
        reduce(x, "b c h w -> b c", "mean"),
        reduce(x, "b c (h 2) w -> b c h w", "max"),
        x - reduce(x, "b c h w -> b 1 1 w", "sum"),
    ),
    "repeat": lambda x: repeat(x, "b c h w -> b c (h r) (w 2)", r=3),
    "einsum": lambda x: einsum(x, x, "b c h w, b d h w -> b c d"),
    "pack": _packed,
    "parse_shape": lambda x: x.reshape(-1, parse_shape(x, "_ c h _")["h"]) * parse_shape(x, "b _ _ _")["b"],
}


def _check(fn: Any, x: Any, jitted: Any) -> None:
    out, wanted = ([y] if isinstance(y, torch.Tensor) else list(y) for y in (jitted(x), fn(x)))
    torch.testing.assert_close(out, wanted)
    grads = [torch.autograd.grad(sum(y.sin().sum() for y in ys), x) for ys in (out, wanted)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_functions(name: str, cache: str) -> None:
    fn = PROGRAMS[name]
    jitted = thunder.jit(fn, cache=cache)
    fn(torch.ones(2, 3, 4, 6))  # einops looks for the library of its tensors once
    for shape in SHAPES:
        for _ in range(2):
            _check(fn, torch.randn(shape, dtype=torch.float64, requires_grad=True), jitted)
    # Sizes become symbolic when they change, and einops computes with them then.
    assert thunder.cache_misses(jitted) <= (2 if cache == "symbolic values" else 4)
    assert thunder.cache_hits(jitted) >= 4
    assert "one call only" not in thunder.explain(jitted)


def test_layers() -> None:
    net = torch.nn.Sequential(
        Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=2, q=2),
        torch.nn.Linear(12, 8),
        EinMix("b n d -> b n (k e)", weight_shape="d k e", bias_shape="k e", d=8, k=2, e=4),
        Reduce("b n d -> b d", "mean"),
    ).double()
    jitted = thunder.jit(net)
    for shape in SHAPES[:2]:
        for _ in range(2):
            _check(net, torch.randn(shape, dtype=torch.float64, requires_grad=True), jitted)
    assert thunder.cache_misses(jitted) == 2


def test_wrong_patterns_are_errors_of_einops() -> None:
    with pytest.raises(einops.EinopsError, match="Wrong shape"):
        thunder.jit(lambda x: rearrange(x, "a b c -> c b a"))(torch.ones(2, 3))
