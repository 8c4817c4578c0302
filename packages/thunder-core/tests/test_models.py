# SPDX-License-Identifier: Apache-2.0
"""Whole models: a GPT and a Llama train through `thunder.jit` as they do in eager."""

from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import thunder

STEPS = 10


def _load(name: str) -> ModuleType:
    path = Path(__file__).parent / "models" / f"{name}.py"
    full = f"thunder_test_models_{name}"
    spec = importlib.util.spec_from_file_location(full, path)
    module = sys.modules[full] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


nanogpt, llama = _load("nanogpt"), _load("llama")


def batches(vocab: int, length: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Token sequences and what comes next, the last of them shorter."""
    generator = torch.Generator().manual_seed(11)
    out = []
    for step in range(STEPS):
        tokens = torch.randint(vocab, (3, length - (step == STEPS - 1) + 1), generator=generator)
        out.append((tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()))
    return out


def train(
    model: Any, parameters: torch.nn.Module, optimizer: Any, loss_of: Callable[..., torch.Tensor], data: Any
) -> list[float]:
    """Ten steps with clipped gradients; the losses."""
    torch.manual_seed(5)
    losses = []
    for step, (x, y) in enumerate(data):
        loss = loss_of(model, x, y)
        loss.backward()
        losses.append(loss.item())
        if step % 2:  # gradients of two batches add up
            torch.nn.utils.clip_grad_norm_(parameters.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=step % 4 == 1)
    return losses


def assert_same_training(make: Callable[[], torch.nn.Module], optimize: Any, loss_of: Any, data: Any) -> Any:
    """Trains the model in eager and jitted, and compares losses and parameters; the jitted one comes back."""
    torch.manual_seed(3)
    eager = make().double()
    twin = copy.deepcopy(eager)
    jitted = thunder.jit(twin)
    expected = train(eager, eager, optimize(eager), loss_of, data)
    found = train(jitted, jitted, optimize(jitted), loss_of, data)
    assert expected[-1] != expected[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    for (name, p), (_, q) in zip(eager.state_dict().items(), twin.state_dict().items()):
        torch.testing.assert_close(q, p, rtol=0, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")
    return jitted, eager


@pytest.mark.parametrize(("dropout", "bias"), [(0.0, True), (0.2, False)])
def test_nanogpt_trains_as_in_eager(dropout: float, bias: bool) -> None:
    """Ten steps: the same losses and weights, dropout's draws included; then it generates the same."""
    config = nanogpt.GPTConfig(dropout=dropout, bias=bias)
    jitted, eager = assert_same_training(
        lambda: nanogpt.GPT(config),
        lambda model: nanogpt.GPT.optimizer(model, 1e-2),
        lambda model, x, y: model(x, y)[1],
        batches(config.vocab_size, config.block_size),
    )
    assert thunder.cache_misses(jitted) == 2  # two lengths
    assert thunder.cache_hits(jitted) == STEPS - 2
    assert jitted.lm_head.weight is jitted.transformer.wte.weight
    jitted.eval()
    eager.eval()
    with torch.no_grad():
        x = torch.zeros(1, 4, dtype=torch.long)
        for _ in range(4):
            found, expected = jitted(x)[0], eager(x)[0]
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
            x = torch.cat([x, expected[:, -1].argmax(-1, keepdim=True)], 1)


@pytest.mark.parametrize(("tied", "own_norm"), [(False, True), (True, False)])
def test_llama_trains_as_in_eager(tied: bool, own_norm: bool) -> None:
    """Ten steps, with labels and a padding mask by keyword, and a dictionary as the result."""
    config = llama.LlamaConfig(tied=tied, own_norm=own_norm)

    def loss_of(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        padding = torch.ones_like(x, dtype=torch.bool)
        padding[0, 9:] = False
        return model(x, labels=torch.where(padding, y, -100), padding=padding)["loss"]

    jitted, eager = assert_same_training(
        lambda: llama.Llama(config),
        lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
        loss_of,
        batches(config.vocab_size, 13),
    )
    assert (thunder.cache_misses(jitted), thunder.cache_hits(jitted)) == (2, STEPS - 2)
    x = batches(config.vocab_size, 7)[0][0]
    with torch.no_grad():
        found, expected = jitted(x), eager(x)
    assert list(found) == ["logits"]
    torch.testing.assert_close(found["logits"], expected["logits"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["nanogpt", "llama"])
def test_half_precision_stays_close(name: str) -> None:
    """In bfloat16 the jitted model differs from float64 no more than eager does, by much."""
    torch.manual_seed(0)
    model = nanogpt.GPT(nanogpt.GPTConfig()) if name == "nanogpt" else llama.Llama(llama.LlamaConfig())
    x, y = batches(60, 12)[0]

    def loss_of(m: Any) -> torch.Tensor:
        return m(x, y)[1] if name == "nanogpt" else m(x, labels=y)["loss"]

    exact = copy.deepcopy(model).double()
    half = model.bfloat16()
    twin = copy.deepcopy(half)
    reference = loss_of(exact)
    eager, jitted = loss_of(half), loss_of(thunder.jit(twin))
    assert jitted.dtype is eager.dtype
    assert abs(jitted.double() - reference) <= 2 * abs(eager.double() - reference) + 1e-2
    for loss in (reference, eager, jitted):
        loss.backward()
    for p, q, r in zip(exact.parameters(), half.parameters(), twin.parameters()):
        assert r.grad.dtype is q.grad.dtype
        worst = (q.grad.double() - p.grad).abs().max()
        assert (r.grad.double() - p.grad).abs().max() <= 2 * worst + 1e-3
