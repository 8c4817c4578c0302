# SPDX-License-Identifier: Apache-2.0
"""Gradients of programs with symbolic sizes: another specialization reads them, also those that were not saved."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thunder
from thunder.core.errors import ThunderError
from thunder.frontend import saving

pytestmark = pytest.mark.usefixtures("seeded", "cache")

LINEAR = torch.nn.Linear(4, 6)


def _matmul(x: torch.Tensor, y: torch.Tensor) -> Any:
    return ((x + y) * x.shape[0]).sum(0), x.mT @ y


def _slices(x: torch.Tensor, y: torch.Tensor) -> Any:
    return torch.cat([x, y.sin()]), x[: y.shape[0] // 2] * 2


def _attention(x: torch.Tensor, y: torch.Tensor) -> Any:
    q = x.view(x.shape[0], -1, 2).transpose(0, 1)
    return F.scaled_dot_product_attention(q, q, q), F.softmax(x @ y.mT / math.sqrt(x.shape[-1]), -1)


def _padding(x: torch.Tensor, y: torch.Tensor) -> Any:
    n = max(x.shape[0], y.shape[0]) - min(x.shape[0], y.shape[0])
    return F.pad(x, (0, 0, 0, n)) * y.sum(), y.repeat(2, x.shape[0]) if x.shape[0] > 3 else y


def _layers(x: torch.Tensor, y: torch.Tensor) -> Any:
    return LINEAR(x).relu(), F.layer_norm(LINEAR(y), (6,)).mean() / x.shape[0] ** 0.5


def _conv(x: torch.Tensor, y: torch.Tensor) -> Any:
    return F.conv1d(x.view(1, 1, -1), torch.ones(1, 1, 3)), F.avg_pool1d(y[None], 2)


def _inputs(n: int) -> list[torch.Tensor]:
    return [torch.randn(n, 4, requires_grad=True) for _ in range(2)]


def _step(f: Callable[..., Any], args: Sequence[torch.Tensor], of: Sequence[int]) -> list[torch.Tensor | None]:
    """Return the results, and the gradients of a sum of the results at the positions `of`."""
    for x in args:
        x.grad = None
    out = f(*args)
    torch.stack([out[i].sin().sum() for i in of]).sum().backward()
    return [*out, *(x.grad for x in args)]


def _jitted(f: Callable[..., Any]) -> Any:
    return thunder.jit(f, cache="symbolic values", save=True)


def _notes(jitted: Any) -> list[str]:
    return [event.reason for event in thunder.compile_stats(jitted).events.of("saved")]


@pytest.mark.parametrize("f", [_matmul, _slices, _attention, _padding, _layers, _conv])
def test_other_sizes_and_gradients(f: Callable[..., Any]) -> None:
    """One program serves other sizes. Backward programs that were not saved are compiled from the source."""
    first, second = _jitted(f), _jitted(f)
    _step(first, _inputs(6), [0])
    assert _notes(first)[-1].startswith("saved"), _notes(first)
    args = _inputs(8)
    for of in ([1], [0], [0, 1]):
        torch.testing.assert_close(_step(second, args, of), _step(f, args, of))
    stats = thunder.compile_stats(second)
    assert stats.saved_hits == 1 and stats.cache_misses == 0, _notes(second)


def test_sizes_that_the_data_determines() -> None:
    """They are not saved with gradients, and the note says so."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0].sin()

    jitted = _jitted(f)
    jitted(torch.ones(3, requires_grad=True)).sum().backward()
    assert _notes(jitted)[-1] == "not saved: the program refers to gradients of data-dependent sizes"


def test_constraints_are_those_of_the_prologue(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """A program that is compiled anew must not require more of the sizes than the saved prologue checks."""
    first, second = _jitted(_padding), _jitted(_padding)
    _step(first, _inputs(6), [0])
    rebuilt = saving.rebuilt
    monkeypatch.setattr(
        saving,
        "rebuilt",
        lambda content, *rest: rebuilt({**content, "source": {**content["source"], "constraints": []}}, *rest),
    )
    with pytest.raises(ThunderError, match="cannot be compiled anew"):
        _step(second, _inputs(8), [1])
