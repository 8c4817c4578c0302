# SPDX-License-Identifier: Apache-2.0
"""Cross-entropy and negative log likelihood: edges that samples do not have, and the two ways to differentiate it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thunder
import thunder.torch as ltorch
from thunder.executors.torchex import ex as torch_executor
from thunder.extend import OperatorExecutor

NUMBERS = torch.tensor([0, 1, 2, 3, 4, 0])


def operations(trace: Any) -> list[str]:
    """The names of what a trace runs."""
    return [bsym.sym.name for bsym in trace.bound_symbols]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_torch_runs_it_as_eager_does(as_eager: Any, randn: Any, dtype: torch.dtype, reduction: str) -> None:
    """log_softmax kept for the backward pass, then nll_loss: eager's numbers bit for bit."""
    jitted = as_eager(
        lambda x, t: F.cross_entropy(x, t, reduction=reduction), randn(6, 5, dtype=dtype), NUMBERS, exactly=True
    )
    assert {"log_softmax", "nll_loss_forward"} <= set(operations(thunder.last_traces(jitted)[-1]))
    assert {"nll_loss_backward", "log_softmax_backward"} <= set(operations(thunder.last_backward_traces(jitted)[-1]))


HOW: list[dict[str, Any]] = [
    {},
    {"reduction": "sum"},
    {"reduction": "none"},
    {"ignore_index": 0},
    {"label_smoothing": 0.3},
    {"label_smoothing": 0.3, "ignore_index": 2, "reduction": "none"},
    {"label_smoothing": 0.3, "reduction": "sum"},
    {"weight": True, "label_smoothing": 0.3, "ignore_index": 2},
    {"weight": True, "reduction": "sum"},
]


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("own_rule", [True, False], ids=["saving-lse", "torch"])
def test_both_rules(randn: Any, how: dict[str, Any], own_rule: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule it is declared with, which other executors get, gives the gradients that torch's gives."""
    if own_rule:
        monkeypatch.delitem(torch_executor.implmap, ltorch.cross_entropy.id)
    how = {**how, "weight": torch.arange(1.0, 6.0, dtype=torch.float64)} if "weight" in how else how
    x = randn(6, 5)
    jitted = thunder.jit(lambda x, t: F.cross_entropy(x, t, **how))
    out = jitted(x, NUMBERS)
    expected = F.cross_entropy(x, NUMBERS, **how)
    torch.testing.assert_close(out, expected)
    (ours,) = torch.autograd.grad(out.sum(), x)
    (theirs,) = torch.autograd.grad(expected.sum(), x)
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)  # nothing on the way is of single precision
    saved = [p.shape for p in thunder.last_backward_traces(jitted)[-1].args if p.dtype.is_floating_point]
    if own_rule and "weight" not in how:
        # The input, a number for each row, and the gradient of the result.
        assert sorted(saved, key=len)[-2:] == [(6,), (6, 5)]


def test_an_executor_brings_its_own(randn: Any) -> None:
    """One that takes it whole and says how to differentiate it is asked before torch."""
    mine = OperatorExecutor("mine")
    op = mine.register_operator("my_loss", like=lambda x, t: ltorch.cross_entropy(x, t), fn=F.cross_entropy)
    mine.register_implementation(ltorch.cross_entropy, execution_transform=lambda x, t, *_, **__: op(x, t))
    jitted = thunder.jit(lambda x, t: F.cross_entropy(x, t), executors=[mine])
    jitted(randn(6, 5).detach(), NUMBERS)
    assert "my_loss" in operations(thunder.last_traces(jitted)[-1])


def test_edges(as_eager: Any, randn: Any) -> None:
    """Every row ignored, no rows, classes that cannot be, large and infinite logits."""
    ignored = torch.full((6,), -100)
    as_eager(lambda x, t: F.cross_entropy(x, t), randn(6, 5), ignored)
    as_eager(lambda x, t: F.cross_entropy(x, t, reduction="sum", label_smoothing=0.1), randn(6, 5), ignored)
    as_eager(lambda x, t: F.cross_entropy(x, t, reduction="none"), randn(0, 5), NUMBERS[:0])
    as_eager(lambda x, t: F.cross_entropy(x, t), randn(0, 5), NUMBERS[:0])
    x = randn(6, 5).detach() * 1000
    as_eager(lambda x, t: F.cross_entropy(x, t), x.requires_grad_(), NUMBERS)
    masked = randn(6, 5).detach().masked_fill(torch.arange(5) == 3, -math.inf)
    as_eager(lambda x, t: F.cross_entropy(x, t), masked.requires_grad_(), NUMBERS % 3)
    as_eager(lambda x, t: F.cross_entropy(x, t), randn(5).detach(), torch.tensor([2]))
    as_eager(lambda x, t: F.cross_entropy(x, t), randn(6, 5), NUMBERS.to(torch.uint8))


@pytest.mark.parametrize("shape", [(2, 5, 3), (2, 5, 3, 2), (1, 5, 2, 1, 2)], ids=str)
def test_images_and_volumes(as_eager: Any, randn: Any, shape: tuple[int, ...]) -> None:
    """More dimensions than rows and classes, class numbers and probabilities."""
    target = torch.randint(0, 5, (shape[0], *shape[2:]))
    for reduction in ("mean", "none"):
        as_eager(lambda x, t: F.cross_entropy(x, t, reduction=reduction, ignore_index=2), randn(*shape), target)
        as_eager(lambda x, t: F.nll_loss(x, t, reduction=reduction, ignore_index=2), randn(*shape), target)
        as_eager(lambda x, t: F.cross_entropy(x, t.softmax(1), reduction=reduction), randn(*shape), randn(*shape))


def test_the_old_spelling(randn: Any) -> None:
    """`size_average` and `reduce` still say what they said, with torch's warning."""
    x = randn(6, 5).detach()
    for how in ({"size_average": False}, {"reduce": False}, {"size_average": True, "reduce": True}):
        with pytest.warns(UserWarning, match="size_average and reduce args will be deprecated"):
            expected = F.cross_entropy(x, NUMBERS, **how)
        with pytest.warns(UserWarning, match="size_average and reduce args will be deprecated"):
            actual = thunder.jit(lambda x, t: F.cross_entropy(x, t, **how))(x, NUMBERS)
        torch.testing.assert_close(actual, expected)


def test_class_numbers_out_of_range() -> None:
    """torch, which sees the values, refuses them."""
    with pytest.raises(IndexError, match="Target 9 is out of bounds"):
        thunder.jit(lambda x, t: F.cross_entropy(x, t))(torch.randn(2, 5), torch.tensor([0, 9]))


@pytest.mark.parametrize("shape", [(4, 5), (5,), (2, 5, 3)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradients_of_weights(shape: tuple[int, ...], reduction: str) -> None:
    """With probabilities the classes' weights have one, of every order; with class numbers they may not need one."""
    generator = torch.Generator().manual_seed(0)
    x, target = (torch.rand(shape, dtype=torch.float64, generator=generator) for _ in range(2))
    weight = torch.rand(5, dtype=torch.float64, generator=generator)
    leaves = [t.requires_grad_() for t in (x, target, weight)]

    def loss(x: Any, target: Any, weight: Any) -> Any:
        return F.cross_entropy(x, target, weight, reduction=reduction, label_smoothing=0.2).sin().sum()

    results = []
    for f in (loss, thunder.jit(loss)):
        first = torch.autograd.grad(f(*leaves), leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.cos().sum() for g in first), leaves)
        results.append([t.detach() for t in (*first, *second)])
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


def test_weights_of_class_numbers_need_no_gradient() -> None:
    """Torch's own words."""
    weight = torch.ones(5, requires_grad=True)
    for f in (F.cross_entropy, lambda x, t, w: F.nll_loss(x.log_softmax(1), t, w)):
        with pytest.raises(RuntimeError, match="not differentiable with respect to argument 'weight'"):
            thunder.jit(f)(torch.randn(2, 5, requires_grad=True), torch.tensor([0, 1]), weight)
