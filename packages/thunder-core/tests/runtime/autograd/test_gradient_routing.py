# SPDX-License-Identifier: Apache-2.0
"""Inputs that only some results hang on: who looks at their gradients sees what eager shows."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import thunder
from thunder.frontend import differentiable


class Heads(nn.Module):
    """Results that hang on a trunk and a head each, on a head alone, on the trunk alone, and on nothing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk, self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 3), nn.Linear(4, 1)
        self.double()

    def forward(self, x: Any) -> Any:
        """Five results."""
        h = torch.tanh(self.trunk(x))
        return self.a(h).sin(), self.b(h).exp(), self.c(x) ** 2, h, (x * 2).argmax()


def points() -> torch.Tensor:
    """Some to run it on."""
    return torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()


def hooked(module: nn.Module) -> list[Any]:
    """What hooks of the parameters see."""
    seen: list[Any] = []
    for name, p in module.named_parameters():
        p.register_hook(lambda g, name=name: seen.append((name, None if g is None else g.detach().clone())))
        p.register_post_accumulate_grad_hook(lambda p, name=name: seen.append((name, "accumulated")))
    return seen


def plain(module: Any, x: Any, loss_of: Callable[[Any], Any]) -> Any:
    loss_of(module(x)).backward()


def of_something_made(module: Any, x: Any, loss_of: Callable[[Any], Any]) -> Any:
    loss_of(module(x * 1)).backward()


def twice(module: Any, x: Any, loss_of: Callable[[Any], Any]) -> Any:
    loss = loss_of(module(x))
    loss.backward(retain_graph=True)
    loss.backward()


def some(module: Any, x: Any, loss_of: Callable[[Any], Any]) -> Any:
    loss = loss_of(module(x))
    wrt = [module.trunk.weight, module.a.weight, module.c.bias]
    found = torch.autograd.grad(loss, wrt, retain_graph=True, allow_unused=True)
    loss.backward()
    return found


def each_result_by_itself(module: Any, x: Any, loss_of: Callable[[Any], Any]) -> Any:
    out = module(x)
    for y in (out[1], out[3]):
        y.sum().backward(retain_graph=True)
    loss_of(out).backward()


RUNS = [plain, of_something_made, twice, some, each_result_by_itself]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
@pytest.mark.parametrize("which", [[0], [1], [2], [3], [0, 2], [0, 1], [1, 2, 3], [0, 1, 2, 3]], ids=str)
def test_hooks(run: Callable[..., Any], which: Sequence[int]) -> None:
    """They are called for what gradients flow to, with the gradient that eager has; `.grad` is None elsewhere."""
    expected: list[Any] = []
    for jit in (False, True):
        module, x = Heads(), points()
        seen = hooked(module)
        fn = thunder.jit(module) if jit else module
        found = [run(fn, x, lambda out: sum(out[i].square().sum() for i in which)) for _ in range(2)]
        seen.sort(key=lambda entry: (entry[0], str(entry[1])))
        now = [found, seen, [p.grad for p in (*module.parameters(), x)]]
        if jit:
            assert [name for name, _ in seen] == [name for name, _ in expected[1]]
            torch.testing.assert_close(
                [found, now[2], [g for _, g in seen if g != "accumulated"]],
                [expected[0], expected[2], [g for _, g in expected[1] if g != "accumulated"]],
                rtol=1e-10,
                atol=1e-12,
            )
        expected = now


def test_one_backward_program_where_all_have_arrived() -> None:
    """Heads that share a trunk are not differentiated one by one."""
    module = Heads()
    hooked(module)
    jitted = thunder.jit(module)
    jitted(points())
    differentiable = jitted.stats.last.differentiable
    ran: list[Any] = []
    program = differentiable.backward_program
    differentiable.backward_program = lambda key: ran.append(key) or program(key)
    sum(y.sum() for y in jitted(points())[:3]).backward()
    assert len(ran) == 1
    assert module.c.bias.grad is not None and module.a.bias.grad is not None


def test_what_a_tensor_was_made_by() -> None:
    """A function that expects a gradient is not called where none comes."""
    called: list[Any] = []

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            called.append(g)
            return g * 2

    f = thunder.jit(lambda a, b: (a * 2, b * 3))
    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    one, other = f(a, Twice.apply(b))
    one.sum().backward(retain_graph=True)
    assert (called, b.grad, a.grad.tolist()) == ([], None, [2.0, 2.0])
    other.sum().backward()
    assert b.grad.tolist() == [6.0, 6.0]


def test_gradients_of_gradients() -> None:
    """Flow through what was saved, to all inputs."""

    def penalties(fn: Any, module: nn.Module) -> list[Any]:
        x = points()
        loss = sum(y.square().sum() for y in fn(x * 1)[:2])
        found = torch.autograd.grad(loss, [x, module.trunk.weight, module.a.weight], create_graph=True)
        (loss + sum(g.square().sum() for g in found)).backward()
        return [*found, x.grad, *[p.grad for p in module.parameters()]]

    module, other = Heads(), Heads()
    found, expected = penalties(thunder.jit(module), module), penalties(other, other)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_errors_are_torchs() -> None:
    """Of a graph that was freed, and of a result that is needed and was written to."""
    jitted = thunder.jit(Heads())
    loss = jitted(points() * 1)[0].sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()
    out = jitted(points() * 1)
    out[1].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out[1].sum().backward()
    out = jitted(points() * 1)
    out[0].mul_(2)
    out[0].sum().backward()


@pytest.mark.parametrize("create_graph", [False, True])
def test_nothing_is_kept_alive(create_graph: bool) -> None:
    """No cycle holds results or nodes."""
    jitted = thunder.jit(Heads())
    gc.collect()
    gc.disable()
    try:
        out = jitted(points() * 1)
        held = [weakref.ref(out[0]), weakref.ref(out[0].grad_fn), weakref.ref(out[3])]
        found = torch.autograd.grad(out[0].sum(), list(jitted.a.parameters()), create_graph=create_graph)
        if create_graph:
            found[0].sum().backward()
        del out, found
        assert [ref() for ref in held] == [None, None, None]
    finally:
        gc.enable()


def test_programs_with_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients that would come in stages come at once."""
    monkeypatch.setattr(differentiable, "MIN_STAGE_BYTES_CPU", 1 << 16)

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.ModuleList(nn.Linear(160, 160) for _ in range(3))

        def forward(self, x: Any) -> Any:
            first = self.layers[0](x).tanh()
            return first, self.layers[2](self.layers[1](first).tanh())

    results: list[Any] = []
    for jit in (False, True):
        module = Wide()
        fn = thunder.jit(module) if jit else module
        seen = hooked(module)
        for which in (0, 1):
            fn(torch.ones(2, 160))[which].square().mean().backward()
        results.append([[p.grad for p in module.parameters()], sorted(name for name, _ in seen)])
    assert results[0][1] == results[1][1]
    torch.testing.assert_close(results[1][0], results[0][0])
