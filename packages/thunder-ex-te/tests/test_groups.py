# SPDX-License-Identifier: Apache-2.0
"""Layers of the pieces of one matrix as one operator: which are taken, what they give, and what their gradients are."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import thunder
from thunder_ex_te.groups import GROUP_LAYERS

RECIPES = ("Float8CurrentScaling", "DelayedScaling", "Float8BlockScaling")
SIZES = [16, 48, 32]


class Expert(torch.nn.Module):
    """A gated network."""

    def __init__(self, bias: bool):
        super().__init__()
        self.gate, self.up = (torch.nn.Linear(32, 64, bias=bias) for _ in range(2))
        self.down = torch.nn.Linear(64, 32, bias=bias)

    def forward(self, x: Any) -> Any:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(torch.nn.Module):
    """Each for its piece."""

    def __init__(self, bias: bool = False, split: Callable[[Any], Any] = lambda x: torch.split(x, SIZES)):
        super().__init__()
        self.each = torch.nn.ModuleList([Expert(bias) for _ in range(3)])
        self.split = split

    def forward(self, x: Any) -> Any:
        return torch.cat([expert(piece) for expert, piece in zip(self.each, self.split(x))]) * 2


def _model(device: str, dtype: torch.dtype = torch.bfloat16, **how: Any) -> Experts:
    torch.manual_seed(0)
    return Experts(**how).to(device, dtype)


def _input(device: str, *shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def _both(model: Any, recipe: Any, **options: Any) -> list[Any]:
    return [thunder.jit(model, te_recipe=recipe, **{GROUP_LAYERS: group}, **options) for group in (True, False)]


def _step(f: Any, model: Any, x: torch.Tensor) -> list[Any]:
    x = x.clone().requires_grad_()
    out = f(x)
    out.float().square().sum().backward()
    found = [out.detach(), x.grad, *[p.grad for p in model.parameters()]]
    model.zero_grad()
    return found


def _same(one: list[Any], other: list[Any]) -> None:
    for a, b in zip(one, other):
        assert (a is None) == (b is None)
        if a is not None and a.is_cuda and a.numel():  # adds up in another order where another kernel multiplies
            torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2 * float(b.abs().max()))
        elif a is not None:
            assert torch.equal(a, b)


def _text(f: Any) -> str:
    return str(thunder.last_traces(f)[-1])


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_as_one_by_one(recipe: str, bias: bool, device: str, recipes: Any) -> None:
    """Results and gradients of steps, and scales that move on, are those of each layer by itself."""
    model = _model(device, bias=bias)
    one, other = _both(model, getattr(recipes, recipe)())
    for seed in range(3):
        x = _input(device, 96, 32, seed=seed)
        _same(_step(one, model, x), _step(other, model, x))
        for text, quantized in ((_text(one), 2), (str(thunder.last_backward_traces(one)[-1]), 3)):
            assert "te_matmul(" not in text and "cat(" not in text
            assert text.count("te_quantize_groups(") == quantized and text.count("te_matmul_groups(") == 3 * (
                quantized - 1
            )
        with torch.no_grad():
            _same([one(x)], [other(x)])
        assert "te_matmul(" not in _text(one)
    if recipe == "DelayedScaling":
        assert one._extra_state["te"].keys() >= {"t_each_0_gate_weight.input", "t_each_2_down_weight.grad"}
        for name, kept in other._extra_state["te"].items():
            for key, value in kept.items():
                _same([one._extra_state["te"][name][key]], [value])


def test_calls(device: str, recipes: Any, calls: list[str]) -> None:
    """One quantization and one product for all of a kind; weights one by one, as they are kept."""
    model = _model(device)
    f, _ = _both(model, recipes.Float8CurrentScaling())
    _step(f, model, _input(device, 96, 32))
    assert calls.count("product of groups") == 9 and calls.count("product") == 0
    assert calls.count("quantize groups") == 5 and calls.count("quantize") == 9
    calls.clear()
    _step(f, model, _input(device, 96, 32))
    assert calls.count("quantize") == 0


@pytest.mark.parametrize(
    "split",
    [
        lambda x: torch.split(x, SIZES),
        lambda x: torch.tensor_split(x, [16, 64]),
        lambda x: (x[:16], x[16:64], x[64:]),
        lambda x: x.narrow(0, 0, 16).split([16]) + x.narrow(0, 16, 80).split([80])[:1] + (x[80:],),
        lambda x: torch.chunk(x, 3),
    ],
)
def test_ways_of_splitting(split: Any, device: str, recipes: Any) -> None:
    """Whatever slices the rows, in order and without a rest."""
    model = _model(device, split=split)
    one, other = _both(model, recipes.Float8CurrentScaling())
    x = _input(device, 96, 32)
    taken = [p.shape[0] for p in split(x)] != [16, 80, 16]
    _same(_step(one, model, x), _step(other, model, x))
    assert ("te_matmul_groups" in _text(one)) == taken


def _run(fn: Callable[..., Any], device: str, recipes: Any, *args: Any) -> str:
    one, other = (
        thunder.jit(fn, te_recipe=recipes.Float8CurrentScaling(), **{GROUP_LAYERS: group}) for group in (True, False)
    )
    found, expected = one(*args), other(*args)
    _same(list(found), list(expected))
    return _text(one)


@pytest.mark.parametrize(
    ("fn", "groups"),
    [
        (lambda a, b, u, v: (F.linear(a, u), F.linear(b, v)), 1),
        (lambda a, b, u, v: (F.linear(a, u), F.linear(b, v[:16])), 0),  # of another shape
        (lambda a, b, u, v: (F.linear(a, u), F.linear(b, v, v[:, 0])), 0),  # one with a bias
        (lambda a, b, u, v: (F.linear(a, u), b), 0),  # one piece alone
        (lambda a, b, u, v: (y := F.linear(a, u), F.linear(b, v * y[:, :32].sum())), 0),  # one after the other
        (lambda a, b, u, v: (F.linear(a, u), F.linear(b, F.relu(v))), 1),  # computed in between
        (lambda a, b, u, v: (F.linear(F.relu(a), u), F.linear(F.relu(b), v)), 1),
        (lambda a, b, u, v: (F.linear(F.relu(a), u), F.linear(F.gelu(b), v)), 0),  # not alike
        (lambda a, b, u, v: (F.linear(a * 2, u), F.linear(b * 3, v)), 0),
        (lambda a, b, u, v: (F.linear(a, u) + 1, F.linear(b, v) + 2, a + b[:32]), 1),
        (lambda a, b, u, v: (F.linear(a, u), F.linear(b, v), F.linear(a, v), F.linear(b, u)), 2),
        (lambda a, b, u, v: (torch.cat([F.linear(b, v), F.linear(a, u)]),), 1),  # in another order
        (lambda a, b, u, v: (torch.cat([F.linear(a, u), F.linear(b, v)], 0), a + 1), 1),
        (lambda a, b, u, v: (F.linear(a, u)[:, :32] * (a + 1), F.linear(b, v)[:, :32] * (b + 1)), 1),
        (lambda a, b, u, v: (F.linear(a, u[:32]) * (a + 1), F.linear(b, v[:32]) * (b + 1), a + 1), 1),
        (lambda a, b, u, v: (F.linear(a, u).softmax(-1), F.linear(b, v).softmax(-1)), 1),
        (lambda a, b, u, v: (F.linear(a.float(), u.float()), F.linear(b.float(), v.float())), 1),
    ],
)
def test_which_are_taken(fn: Any, groups: int, device: str, recipes: Any) -> None:
    """Layers of one shape, one of each piece, none of which needs another's result."""
    x, u, v = _input(device, 96, 32), _input(device, 48, 32, seed=1), _input(device, 48, 32, seed=2)

    def run(x: Any, u: Any, v: Any) -> Any:
        return fn(*torch.split(x, [32, 64]), u, v)

    text = _run(run, device, recipes, x, u, v)
    assert text.count("te_matmul_groups(") == groups


def test_sizes_that_are_not_taken(device: str, recipes: Any) -> None:
    """Each layer is then asked by itself."""
    u, v = _input(device, 48, 32, seed=1), _input(device, 48, 32, seed=2)

    def run(x: Any, u: Any, v: Any) -> Any:
        a, b = torch.split(x, [x.shape[0] - 16, 16])
        return F.linear(a, u), F.linear(b, v)

    assert _run(run, device, recipes, _input(device, 24, 32), u, v).count("te_matmul(") == 1
    assert _run(run, device, recipes, _input(device, 16, 32), u, v).count("te_matmul(") == 1
    assert "te_matmul_groups(" in _run(run, device, recipes, _input(device, 48, 32), u, v)


def test_writes_in_between(device: str, recipes: Any) -> None:
    """A piece that is written to is another value."""
    u, v = _input(device, 48, 32, seed=1), _input(device, 48, 32, seed=2)

    def run(x: Any, u: Any, v: Any) -> Any:
        x = x.clone()
        a, b = torch.split(x, [32, 64])
        first = F.linear(a, u)
        b.mul_(2)
        return first, F.linear(b, v), x

    _run(run, device, recipes, _input(device, 96, 32), u, v)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_autocast(dtype: torch.dtype, device: str, recipes: Any) -> None:
    """What casts the pieces casts the whole; parameters in float32 are quantized from that."""
    model = _model(device, torch.float32)
    one, other = _both(model, recipes.DelayedScaling())
    for seed in range(2):
        x = _input(device, 96, 32, dtype=dtype, seed=seed)
        found = []
        for f in (one, other):
            with torch.autocast(device, torch.bfloat16):
                out = f(x)
            out.float().square().sum().backward()
            found.append([out.detach(), *[p.grad for p in model.parameters()]])
            model.zero_grad()
        _same(*found)
    assert "te_matmul_groups(" in _text(one) and "te_quantize_scaled(t_each_0_gate_weight, " in _text(one)


def test_frozen_weights(device: str, recipes: Any) -> None:
    """Of frozen experts no gradient is computed, of the others it is."""
    model = _model(device)
    model.each[1].requires_grad_(False)
    one, other = _both(model, recipes.Float8CurrentScaling())
    _same(_step(one, model, _input(device, 96, 32)), _step(other, model, _input(device, 96, 32)))
    model.requires_grad_(False)
    _same(_step(one, model, _input(device, 96, 32)), _step(other, model, _input(device, 96, 32)))


def test_checkpointing(device: str, recipes: Any) -> None:
    """Computed again in backward, they are what they were."""
    model = _model(device)

    def run(x: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)

    one, other = _both(run, recipes.DelayedScaling())
    for seed in range(3):
        x = _input(device, 96, 32, seed=seed)
        _same(_step(one, model, x), _step(other, model, x))
    assert "again=True" in str(thunder.last_backward_traces(one)[-1])


def test_symbolic_sizes(device: str, recipes: Any) -> None:
    """Rows that a program takes to be anything are not known when it is traced."""
    model = _model(device, split=lambda x: torch.chunk(x, 3))
    one, other = _both(model, recipes.Float8CurrentScaling(), cache="symbolic values")
    for rows in (96, 144):
        _same(_step(one, model, _input(device, rows, 32)), _step(other, model, _input(device, rows, 32)))


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="this torch has no grouped_mm")
def test_grouped_mm(device: str, recipes: Any) -> None:
    """Taken where the program writes down where groups end; else the report says why not."""
    x, w = _input(device, 96, 32), _input(device, 3, 32, 64, seed=1)

    def known(x: Any, w: Any) -> Any:
        return F.grouped_mm(x, w, offs=torch.tensor([16, 64, 96], dtype=torch.int32, device=x.device))

    def unknown(x: Any, w: Any, ends: Any) -> Any:
        return F.grouped_mm(x, w, offs=ends)

    options: Any = {"te_recipe": recipes.Float8CurrentScaling(), GROUP_LAYERS: True}
    f = thunder.jit(known, **options)
    found = []
    for run in (f, known):
        one, other = x.clone().requires_grad_(), w.clone().requires_grad_()
        out = run(one, other)
        out.float().square().sum().backward()
        found.append((out.detach(), one.grad, other.grad))
    for a, b in zip(*found):
        assert float((a.double() - b.double()).norm() / b.double().norm()) < 0.1  # type: ignore[union-attr]
    assert "te_matmul_groups(" in _text(f)
    ends = torch.tensor([16, 64, 96], dtype=torch.int32, device=device)
    f = thunder.jit(unknown, **options)
    torch.testing.assert_close(f(x, w, ends), unknown(x, w, ends))
    assert "need the group sizes on the host" in str(thunder.examine(f, x, w, ends))
    assert "computes in fp8 only with a recipe" in str(thunder.examine(thunder.jit(unknown), x, w, ends))
    for ends in ([16, 64, 90], [16, 16, 96], [24, 64, 96]):  # a rest, an empty group, no multiple of 16

        def odd(x: Any, w: Any, ends: Any = ends) -> Any:
            return F.grouped_mm(x, w, offs=torch.tensor(ends, dtype=torch.int32, device=x.device))

        f = thunder.jit(odd, **options)
        n = ends[-1]
        torch.testing.assert_close(f(x, w)[:n], odd(x, w)[:n])
        assert "te_" not in _text(f)


class Block(torch.nn.Module):
    """A norm that a layer reads, and experts."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.RMSNorm(32)
        self.layer = torch.nn.Linear(32, 32, bias=False)
        self.each = torch.nn.ModuleList([torch.nn.Linear(32, 32, bias=False) for _ in range(2)])

    def forward(self, x: Any) -> Any:
        pieces = self.layer(self.norm(x)).split([16, 32])
        return torch.cat([layer(piece) for layer, piece in zip(self.each, pieces)]) + x


@pytest.mark.parametrize("tied", [False, True])
def test_norms_and_experts_in_training(tied: bool, device: str, recipes: Any) -> None:
    """Evaluation in between leaves no trace, copies go on by themselves, and experts may share a weight."""
    torch.manual_seed(0)
    model = Block().to(device, torch.bfloat16)
    if tied:
        model.each[1].weight = model.each[0].weight
    x = _input(device, 48, 32).requires_grad_()

    def train(f: Any, steps: int) -> list[torch.Tensor]:
        optimizer = torch.optim.SGD(f.parameters(), lr=1e-2)
        found = []
        for _ in range(steps):
            out = f(x)
            out.float().square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(out.detach())
        return found

    recipe = recipes.DelayedScaling(amax_history_len=4)
    one = thunder.jit(model, te_recipe=recipe, te_fuse_norms=True, te_group_layers=True)
    first = train(one, 1)
    copies = copy.deepcopy(one), pickle.loads(pickle.dumps(one))
    with torch.no_grad():
        one(100 * x)
    first += train(one, 2)
    text = _text(one)
    assert "te_quantize_norm(" in text and "te_matmul_groups(" in text
    for other in copies:
        _same(first[1:], train(other, 2))
