# SPDX-License-Identifier: Apache-2.0
"""A linear layer and the cross-entropy of its result as one operator: when it is made, and that it is right."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import thunder
from thunder_ex_triton.cross_entropy import linear
from thunder_ex_triton.matmul import rule

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OPTION = {"triton_linear_cross_entropy": True}


def model(h: Any, w: Any, b: Any, t: Any, weight: Any, wide: bool, how: dict[str, Any]) -> Any:
    """The end of a language model."""
    logits = F.linear(torch.tanh(h), w, b)
    if wide:
        logits = logits.float()
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), t.view(-1), weight, **how)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks, the last one smaller."""
    monkeypatch.setattr(linear, "chunk_rows", lambda rows, classes, itemsize: 5)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("frozen", ["nothing", "weight", "input", "all"])
def test_losses_and_gradients(dtype: torch.dtype, frozen: str) -> None:
    """With a bias and without, weights, ignored rows, smoothing, a cast to single precision; only what is wanted."""
    generator = torch.Generator().manual_seed(0)
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 6e-2}[dtype]
    compare: Any = {"rtol": tolerance, "atol": tolerance}
    cases = list(itertools.product(("mean", "sum"), (0.0, 0.2), (False, True), (-100, 1), (False, True)))
    for reduction, smoothing, weighted, ignore_index, biased in cases[:: 1 if dtype is torch.float64 else 5]:
        wide = dtype is torch.bfloat16 and biased
        made = [
            torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
            for shape in ((2, 6, 8), (11, 8), (11,))
        ]
        kept = (frozen not in ("input", "all"), frozen not in ("weight", "all"), frozen != "all")
        h, w, b = (x.to(DEVICE).requires_grad_(keep) for x, keep in zip(made, kept))
        b = b if biased else None
        t = torch.arange(12, device=DEVICE).reshape(2, 6) * 3 % 11
        weight = torch.linspace(0.1, 2, 11, device=DEVICE).to(torch.float32 if wide else dtype) if weighted else None
        how = {"reduction": reduction, "ignore_index": ignore_index, "label_smoothing": smoothing}
        jitted = thunder.jit(model, **OPTION)
        found = jitted(h, w, b, t, weight, wide, how)
        assert "triton_linear_crossentropy" in str(thunder.last_traces(jitted)[-1])
        exact = [None if x is None else x.detach().double().requires_grad_(x.requires_grad) for x in (h, w, b)]
        expected = model(*exact, t, None if weight is None else weight.double(), False, how)
        assert found.dtype is (torch.float32 if wide else dtype)
        torch.testing.assert_close(found.double(), expected, **compare)
        inputs = [(x, y) for x, y in zip((h, w, b), exact) if x is not None and x.requires_grad]
        if not inputs:
            continue
        g = torch.tensor(1.5, dtype=found.dtype, device=DEVICE)
        gradients = torch.autograd.grad(found, [x for x, _ in inputs], g)
        for mine, right in zip(gradients, torch.autograd.grad(expected, [y for _, y in inputs], g.double())):
            torch.testing.assert_close(mine.double(), right, **compare)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("biased", [False, True])
def test_padded_logits(monkeypatch: pytest.MonkeyPatch, biased: bool) -> None:
    """Classes that make matrix multiplications slow: the logits have more columns, the gradients have not."""
    monkeypatch.setattr(rule, "DEVICES", (DEVICE,))
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 6, 8), (11, 8), (11,))
    h, w, b = (torch.randn(s, generator=generator).to(DEVICE, torch.float16).requires_grad_() for s in shapes)
    t = torch.arange(12, device=DEVICE).reshape(2, 6) * 3 % 11
    given = (h, w, b if biased else None, t, None, False, {})
    inputs = (h, w, b)[: 2 + biased]

    def run() -> tuple[torch.Tensor, ...]:
        found = thunder.jit(model, **OPTION)(*given)
        return found, *torch.autograd.grad(found, inputs)

    for ignored in (False, True):
        if ignored:  # NaN in the logits of an ignored row, and in their padding
            h.data[0, 0], t[0, 0] = float("nan"), -100
        monkeypatch.setattr(rule, "SLOWDOWN", 1)
        assert linear.memory_classes(h, w) == 11
        unpadded = run()
        monkeypatch.setattr(rule, "SLOWDOWN", 1e12)
        assert linear.memory_classes(h, w) == 16
        for mine, right in zip(run(), unpadded):
            assert mine.shape == right.shape and mine.stride() == right.stride()
            torch.testing.assert_close(mine, right, rtol=5e-3, atol=1e-3, equal_nan=True)


def operators(f: Any, *args: Any, **options: Any) -> str:
    """The operators that a program runs."""
    jitted = thunder.jit(f, **options)
    jitted(*args)
    return " ".join(op.sym.name for op in thunder.last_traces(jitted)[-1].bound_symbols)


def test_when_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody else reads the logits and they are large, or where it is asked for."""
    h, w = torch.randn(6, 4, device=DEVICE), torch.randn(9, 4, device=DEVICE)
    t = torch.arange(6, device=DEVICE)

    def plain(h: Any, w: Any, t: Any) -> Any:
        return F.cross_entropy(F.linear(h, w), t)

    def logits_too(h: Any, w: Any, t: Any) -> Any:
        logits = F.linear(h, w)
        return F.cross_entropy(logits, t), logits

    def read_twice(h: Any, w: Any, t: Any) -> Any:
        logits = F.linear(h, w)
        return F.cross_entropy(logits, t) + logits.square().mean()

    def by_row(h: Any, w: Any, t: Any) -> Any:
        return F.cross_entropy(F.linear(h, w), t, reduction="none")

    def hooked(h: Any, w: Any, t: Any) -> Any:
        logits = F.linear(h, w)
        logits.register_hook(lambda g: g * 2)
        return F.cross_entropy(logits, t)

    name = "triton_linear_crossentropy"
    assert name not in operators(hooked, h.clone().requires_grad_(), w, t, **OPTION)
    assert name in operators(plain, h, w, t, **OPTION)
    assert name not in operators(plain, h, w, t)  # it is small
    with torch.no_grad():  # parameters require grad all the same
        assert name in operators(plain, h, w.clone().requires_grad_(), t, **OPTION)
    for f in (logits_too, read_twice, by_row):
        assert name not in operators(f, h, w, t, **OPTION)
    monkeypatch.setattr("thunder_ex_triton.cross_entropy.linear_passes.profitable", lambda *sizes: True)
    assert name in operators(plain, h, w, t)
    assert name not in operators(plain, h, w, t, triton_linear_cross_entropy=False)
    assert name not in operators(plain, h, w, t, executors=["torch"])


def test_chunks() -> None:
    """Few, of one size, and bounded in bytes."""
    assert linear.chunk_rows(10, 100, 4) == 10
    rows = linear.chunk_rows(8192, 128256, 2)
    assert 1024 <= rows <= 2304 and rows % 128 == 0
    assert linear.profitable(8192, 128256, 2)
    assert not linear.profitable(128, 1000, 4)
