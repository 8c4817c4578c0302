# SPDX-License-Identifier: Apache-2.0
"""Derivatives of derivatives of programs with symbolic sizes: one program for all sizes, at every order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import thunder

IDIOMS: dict[str, Callable[[Any, Any], Any]] = {
    "repeated and cut": lambda x, n: x.repeat(3)[:n],
    "repeated as often as needed": lambda x, n: x.repeat(n // x.shape[0] + 1)[:n],
    "expanded and cut": lambda x, n: x[None].expand(3, -1).reshape(-1)[:n],
    "cut from the end": lambda x, n: x.repeat(3)[-n:],
    "padded and cut": lambda x, n: F.pad(x, (0, n))[:n],
    "padded in a circle": lambda x, n: F.pad(x[None, None], (2, 2), mode="circular")[0, 0][:n],
    "sums, cut": lambda x, n: x.cumsum(0)[:n],
    "a place modulo the length": lambda x, n: x[torch.arange(n) % x.shape[0]],
    "interpolated": lambda x, n: F.interpolate(x[None, None], size=n, mode="linear")[0, 0],
    "pooled": lambda x, n: F.avg_pool1d(x[None, None], 2, 1)[0, 0] * n,
    "convolved": lambda x, n: F.conv1d(x[None, None], x[None, None, :2], padding=n)[0, 0],
    "joined and cut": lambda x, n: torch.cat([x, x.flip(0)])[:n],
    "cut from a number on": lambda x, n: x.repeat(2)[n:],
    "rolled": lambda x, n: x.roll(n) * x + x.roll(-1),
}


def derivatives(run: Callable[..., Any], x: torch.Tensor, n: int) -> list[torch.Tensor]:
    """The value and three derivatives, the last of which no graph is made for."""
    x = x.clone().requires_grad_()
    found = [run(x, n)]
    for order in range(3):
        value = found[-1] if found[-1].ndim == 0 else (found[-1].square() + found[-1].sin()).sum()
        found += torch.autograd.grad(value, x, create_graph=order < 2)
    return [y.detach() for y in found]


@pytest.mark.parametrize("name", IDIOMS)
def test_derivatives(name: str) -> None:
    """As eager's, for sizes that came later as well."""
    idiom = IDIOMS[name]

    def fn(x: Any, n: Any) -> Any:
        y = idiom(x, n)
        return (y.sin() * y).sum()

    jitted = thunder.jit(fn, cache="symbolic values")
    hessian = thunder.jit(thunder.hessian(fn), cache="symbolic values")
    generator = torch.Generator().manual_seed(0)
    for size, n in ((5, 4), (7, 6), (4, 3)):
        x = torch.randn(size, dtype=torch.float64, generator=generator)
        torch.testing.assert_close(derivatives(jitted, x, n), derivatives(fn, x, n), rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(hessian(x, n), torch.func.hessian(fn)(x, n), rtol=1e-9, atol=1e-10)
    assert thunder.cache_misses(jitted) == 1


@pytest.mark.parametrize("cut", ["split", "chunk"])
def test_derivatives_of_pieces(cut: str) -> None:
    """Of which there may be more in a later call: that is another program."""

    def fn(x: Any, n: Any) -> Any:
        pieces = getattr(x, cut)(n)
        return (pieces[0].sin() * pieces[0]).sum() + pieces[-1].exp().sum()

    jitted = thunder.jit(fn, cache="symbolic values")
    generator = torch.Generator().manual_seed(0)
    for size, n in ((6, 4), (7, 5), (6, 2), (9, 3)):
        x = torch.randn(size, dtype=torch.float64, generator=generator)
        torch.testing.assert_close(derivatives(jitted, x, n), derivatives(fn, x, n), rtol=1e-9, atol=1e-10)
