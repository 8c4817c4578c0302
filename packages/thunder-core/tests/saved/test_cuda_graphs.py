# SPDX-License-Identifier: Apache-2.0
"""Programs with CUDA graphs are saved with the programs of the graphs, which another process captures anew.

On the CPU, graphs are played (`helpers/played_graphs.py`).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from played_graphs import Played

import thunder
from thunder.transforms.cuda_graphs import CUDAGraphTransform

pytestmark = pytest.mark.usefixtures("seeded", "cache")


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    """Graphs on the CPU."""
    monkeypatch.setattr("thunder.transforms.cuda_graphs._GPU", "cpu")
    return Played(monkeypatch)


def _notes(jitted: Any) -> list[str]:
    return [event.reason for event in thunder.compile_stats(jitted).events.of("saved")]


@pytest.mark.parametrize("options", [{"cuda_graphs": "always"}, {"transforms": [CUDAGraphTransform()]}])
def test_graphs_are_captured_anew(played: Played, options: Any) -> None:
    """The second function reads the program, and captures its stretch at its second call."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 4)).requires_grad_(False)
    first, second = (thunder.jit(model, save=True, **options) for _ in range(2))
    x = torch.randn(3, 4)
    first(x)
    assert _notes(first)[-1].startswith("saved"), _notes(first)
    assert not played.captures
    for n in range(4):
        x = torch.randn(3, 4)
        torch.testing.assert_close(second(x), model(x), rtol=0, atol=0)
        assert len(played.captures) == min(n, 1)
    assert thunder.compile_stats(second).cache_misses == 0, _notes(second)
    assert "CUDAGraph0(" in str(thunder.last_traces(second)[-1])


def test_writes_and_results(played: Played) -> None:
    """What a stretch writes to its inputs, and the results that are lent, are as before."""

    def f(total: torch.Tensor, x: torch.Tensor) -> Any:
        total.add_(x.sin().cos())
        return total * 2, total.exp().sum()

    first, second = (thunder.jit(f, save=True, cuda_graphs="always") for _ in range(2))
    first(torch.zeros(3), torch.ones(3))
    assert _notes(first)[-1].startswith("saved"), _notes(first)
    found, expected = torch.zeros(3), torch.zeros(3)
    kept: list[Any] = []
    for _ in range(4):
        x = torch.randn(3)
        kept.append((second(found, x), f(expected, x)))
        assert torch.equal(found, expected)
    assert all(torch.equal(a, b) for got, want in kept for a, b in zip(got, want))
    assert played.captures and thunder.compile_stats(second).cache_misses == 0, _notes(second)


def test_gradients(played: Played) -> None:
    """Forward and backward programs have graphs. Backward programs that were not saved are compiled anew."""

    def f(x: torch.Tensor) -> Any:
        y = x.sin().exp()
        return y.cos().tanh(), y.sqrt().sigmoid()

    first, second = (thunder.jit(f, save=True, cuda_graphs="always") for _ in range(2))
    x = torch.randn(3, requires_grad=True)
    torch.autograd.grad(first(x)[0].sum(), x)
    assert _notes(first)[-1].startswith("saved"), _notes(first)
    for which in (0, 1, 0, 1):
        (found,) = torch.autograd.grad(second(x)[which].sum(), x)
        (expected,) = torch.autograd.grad(f(x)[which].sum(), x)
        torch.testing.assert_close(found, expected)
    assert thunder.compile_stats(second).cache_misses == 0 and thunder.compile_stats(second).saved_hits == 1
    assert played.captures
