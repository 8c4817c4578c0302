# SPDX-License-Identifier: Apache-2.0
"""Layers of torch that take ways of their own: recurrent ones, attention with its fast paths, parametrizations."""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import thunder

BATCH = torch.linspace(-1, 1, 24).reshape(2, 3, 4)


def attention(x: Any, module: Any, **options: Any) -> Any:
    """Attention to itself."""
    return module(x, x, x, **options)


MASK = nn.Transformer.generate_square_subsequent_mask(3)
LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[Any, Any], Any]]] = {
    "LSTM": (lambda: nn.LSTM(4, 5, 2, batch_first=True), lambda m, x: m(x)[0]),
    "LSTM with a state": (
        lambda: nn.LSTM(4, 5), lambda m, x: m(x, (x[:1, :, :1].repeat(1, 1, 5), x.new_zeros(1, 3, 5)))[1][1]
    ),
    "LSTM with projections": (lambda: nn.LSTM(4, 5, proj_size=2, bidirectional=True), lambda m, x: m(x)[0]),
    "GRU": (lambda: nn.GRU(4, 5, 2, bidirectional=True, dropout=0.3), lambda m, x: m(x)[0]),
    "RNN": (lambda: nn.RNN(4, 5, nonlinearity="relu"), lambda m, x: m(x)[1]),
    "LSTMCell": (lambda: nn.LSTMCell(4, 5), lambda m, x: m(x[0])[1]),
    "GRUCell": (lambda: nn.GRUCell(4, 5), lambda m, x: m(x[0], x.new_ones(3, 5))),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(4, 2, batch_first=True), lambda m, x: attention(x, m)[0]),
    "its weights": (lambda: nn.MultiheadAttention(4, 2, dropout=0.2), lambda m, x: attention(x, m)[1]),
    "without weights": (lambda: nn.MultiheadAttention(4, 2), lambda m, x: attention(x, m, need_weights=False)[0]),
    "with a mask": (
        lambda: nn.MultiheadAttention(4, 2, batch_first=True, bias=False),
        lambda m, x: attention(x, m, attn_mask=MASK, is_causal=True, need_weights=False)[0],
    ),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), lambda m, x: m(x)),
    "TransformerEncoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, norm_first=True), 2),
        lambda m, x: m(x, mask=MASK, is_causal=True),
    ),
    "TransformerDecoder": (
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8, batch_first=True), 1),
        lambda m, x: m(x, x * 2),
    ),
    "Transformer": (lambda: nn.Transformer(4, 2, 1, 1, 8, batch_first=True), lambda m, x: m(x, x)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), lambda m, x: m(x)),
    "orthogonal": (lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)), lambda m, x: m(x)),
    "spectral norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), lambda m, x: m(x)),
    "functional call": (
        lambda: nn.Linear(4, 4), lambda m, x: torch.func.functional_call(m, {"weight": x[0, :1].T @ x[0, :1]}, (x,))
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, training: bool) -> None:
    """Eager's numbers, gradients, random numbers and buffers; in eval without gradients, where torch has fast paths."""
    make, call = LAYERS[name]
    torch.manual_seed(0)
    model = make().train(training)
    other = copy.deepcopy(model)
    jitted = thunder.jit(functools.partial(call, model))
    for k in range(2):
        x = BATCH + k
        with torch.set_grad_enabled(training):
            torch.manual_seed(k)
            found = jitted(x)
            torch.manual_seed(k)
            expected = call(other, x)
        torch.testing.assert_close(found, expected)
        if training:
            torch.testing.assert_close(
                torch.autograd.grad(found.square().sum(), list(model.parameters()), allow_unused=True),
                torch.autograd.grad(expected.square().sum(), list(other.parameters()), allow_unused=True),
            )
        torch.testing.assert_close(dict(model.named_buffers()), dict(other.named_buffers()))
    assert thunder.cache_hits(jitted) == 1, thunder.explain(jitted)


@functools.lru_cache
def positions(n: int) -> int:
    """A helper that remembers its results."""
    return n * 2


def test_the_table_of_imported_modules() -> None:
    """May be looked through, as libraries that work with several frameworks do, and is left alone."""

    def f(x: Any) -> Any:
        return x * ("torch" in [name for name, _ in sys.modules.items()])

    jitted = thunder.jit(f)
    before = dict(sys.modules)
    for _ in range(2):
        torch.testing.assert_close(jitted(BATCH), BATCH)
    assert before.items() <= sys.modules.items()


def test_helpers() -> None:
    """That remember, or are compiled."""
    compiled = torch.compile(lambda x: x.sin(), backend="eager")
    jitted = thunder.jit(lambda x: compiled(x) * positions(x.shape[0]))
    for _ in range(2):
        torch.testing.assert_close(jitted(BATCH), BATCH.sin() * 4)
    assert thunder.cache_hits(jitted) == 1
