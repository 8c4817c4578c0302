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
from thunder.saved import source_names
from thunder.saved.source_names import SourceLines

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


def _mask(x: torch.Tensor, y: torch.Tensor) -> Any:
    found = x[x > 0]
    return found.sin(), (found.shape[0] * y).sum(0), found.reshape(1, -1) * 2


def _decisions(x: torch.Tensor, y: torch.Tensor) -> Any:
    n = int((x[0, 0] * 0 + 2).item())
    starts = [int(i) for i in torch.arange(3)[: n + 1].tolist()]
    if y[0, 0] < 100:
        x = x * 2
    return x[: n + starts[1]] * y[: max(n, 1)].sum(), y.split([n, y.shape[0] - n])[1]


def _checked(x: torch.Tensor, y: torch.Tensor) -> Any:
    n, m = (x[:, 0] > -100).sum().item(), (x[:, 0] < -100).sum().item()
    left, right = x.split([n, m])
    return left.cos(), torch.cat([right, y]).view(n + m, -1).sum(0)


@pytest.mark.parametrize("f", [_mask, _decisions, _checked])
def test_sizes_that_the_data_determines(f: Callable[..., Any]) -> None:
    """Programs that decide by them, check them and compute with them are compiled anew from the source, too."""
    args = _inputs(6)
    count = len(f(*args))
    first, second = _jitted(f), _jitted(f)
    torch.testing.assert_close(_step(first, args, [0]), _step(f, args, [0]))
    assert any(note.startswith("saved") for note in _notes(first)), _notes(first)
    for of in [[i] for i in range(1, count)] + [[0], [*range(count)]]:
        torch.testing.assert_close(_step(second, args, of), _step(f, args, of))
    stats = thunder.compile_stats(second)
    assert stats.saved_hits and not stats.cache_misses, _notes(second)


def test_checks_in_saved_programs() -> None:
    """A saved program checks sizes that the data determines, as the first process did."""
    first, second = _jitted(_checked), _jitted(_checked)
    args = _inputs(6)
    _step(first, args, [0])
    _step(second, args, [0])
    with pytest.raises(RuntimeError, match="split_sizes"):
        second(torch.full((6, 4), math.nan, requires_grad=True), args[1])


def test_source_that_does_not_determine_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is not saved, because other gradients could not be computed."""
    monkeypatch.setattr(SourceLines, "answer", lambda self, asked, answer: None)
    monkeypatch.setattr(source_names, "_assume", lambda left, relation, right: None)
    jitted = _jitted(_decisions)
    _step(jitted, _inputs(6), [0])
    assert not any(note.startswith("saved") for note in _notes(jitted)), _notes(jitted)
    assert "cannot be compiled anew" in _notes(jitted)[-1]


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
