# SPDX-License-Identifier: Apache-2.0
"""`backward()` and `.grad` in jitted programs: one program, with eager mode's values, objects and errors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from backward_steps import check, gradients, same, update
from torch import nn
from training import batch, network

import thunder
import thunder.torch as ltorch
from thunder.capture.higher_order import inner_gradients
from thunder.extend import rewrite


def test_a_step_that_frees_its_gradients() -> None:
    """Gradients that neither outlive the call nor exist before it."""

    def make(net: Any) -> Any:
        def step(x: Any, y: Any) -> Any:
            loss = F.mse_loss(net(x), y)
            loss.backward()
            update(net)
            for p in net.parameters():
                p.grad = None
            return loss.detach()

        return step

    check(make)


def test_gradients_outlive_the_call() -> None:
    """The second program finds gradients of the call before, and sets new ones."""

    def make(net: Any) -> Any:
        def step(x: Any, y: Any) -> Any:
            for p in net.parameters():
                if p.grad is not None:
                    p.grad = None
            F.mse_loss(net(x), y).backward()
            update(net)

        return step

    check(make, programs=2)


def test_gradients_accumulate_in_place() -> None:
    """The first call creates the gradients, and later calls add to the same tensors."""

    def make(net: Any) -> Any:
        def step(x: Any, y: Any) -> Any:
            for i in range(2):
                F.mse_loss(net(x[i::2]), y[i::2]).backward()

        return step

    check(make, programs=2)


def test_gradients_set_to_zero_and_scaled() -> None:
    def make(net: Any) -> Any:
        for p in net.parameters():
            p.grad = torch.ones_like(p)

        def step(x: Any, y: Any) -> Any:
            F.mse_loss(net(x), y).backward()
            for p in net.parameters():
                p.grad.mul_(0.5).clamp_(-0.1, 0.1)
            update(net)
            norm = torch.stack([p.grad.norm() for p in net.parameters()])
            for p in net.parameters():
                p.grad.zero_()
            return norm

        return step

    check(make)


def test_several_steps_in_a_call() -> None:
    """The second loss uses the updated parameters."""

    def make(net: Any) -> Any:
        def step(x: Any, y: Any) -> Any:
            losses = []
            for i in range(3):
                loss = F.mse_loss(net(x[i::3]), y[i::3])
                loss.backward()
                update(net)
                for p in net.parameters():
                    p.grad = None
                losses.append(loss.detach())
            return losses

        return step

    check(make)


def test_retain_graph_inputs_and_cotangents() -> None:
    def make(net: Any) -> Any:
        def step(x: Any, y: Any) -> Any:
            hidden = net[0](x)
            out = net[2](net[1](hidden))
            out.backward(y, retain_graph=True, inputs=[net[0].weight, net[2].bias])
            torch.autograd.backward([out, hidden.sum()], [y, None])
            update(net)
            for p in net.parameters():
                p.grad = None

        return step

    check(make)


def test_several_losses() -> None:
    """Graphs that share only leaves: the second `backward()` does not need `retain_graph`."""

    def make(net: Any) -> Any:
        def step(x: Any, y: Any) -> Any:
            one, two = F.mse_loss(net(x), y), net(x + 1).abs().mean()
            one.backward()
            (two + one.detach()).backward()
            for p in net.parameters():
                p.data.add_(p.grad, alpha=-0.1)
                p.grad = None
            return one.detach(), two.detach()

        return step

    check(make)


def test_gradients_have_the_layout_of_the_leaf() -> None:
    """And memory of their own, even if the gradient is expanded, a cotangent, or the same for two leaves."""
    expected, found = [], []
    for out, jit in ((expected, lambda f: f), (found, thunder.jit)):
        a, b = (torch.arange(12.0).view(3, 4).t().requires_grad_() for _ in range(2))
        c, d = torch.ones(3, requires_grad=True), torch.ones(6)[::2].requires_grad_()
        given = torch.arange(3.0)

        def f(a: Any, b: Any, c: Any, d: Any, given: Any) -> None:
            (a + b).sum().backward()
            (c * 1).backward(given)
            (d * 2).sum().backward()

        jf = jit(f)
        jf(a, b, c, d, given)
        for x in (a, b, c, d):
            out += [x.grad.clone(), x.grad.stride(), x.grad.is_contiguous()]
        c.grad.add_(1)
        a.grad.add_(1)
        out += [given, b.grad, c.grad]
    assert same(found, expected)
    assert thunder.cache_misses(jf) == 1 and "eager" not in thunder.explain(jf)


def test_leaves_of_the_program() -> None:
    """A leaf that the program creates has a `.grad`, too."""

    def attack(x: Any, w: Any) -> Any:
        x = x.detach().requires_grad_()
        assert x.grad is None
        (x * w).square().sum().backward(inputs=[x])
        assert x.grad is x.grad
        step = x.grad.sign()
        x.grad.zero_()
        (x * w).sum().backward(inputs=x)
        return step + x.grad, w.grad

    x, w = torch.randn(3), torch.randn(3, requires_grad=True)
    jf = thunder.jit(attack, fullgraph=True)
    for _ in range(2):
        assert same(jf(x, w)[0], attack(x, w)[0]) and w.grad is None
    assert thunder.cache_hits(jf) == 1


def test_leaf_without_use() -> None:
    """Its `.grad` stays None. A leaf behind an operation with a gradient of zeros gets zeros."""

    def f(x: Any, y: Any) -> None:
        (x.floor() * 2).sum().backward()

    x, y = (torch.randn(3, requires_grad=True) for _ in range(2))
    jf = thunder.jit(f, fullgraph=True)
    jf(x, y)
    assert same(x.grad, torch.zeros(3)) and y.grad is None


def test_the_loss_requires_grad() -> None:
    """Its graph is freed, as in eager mode."""
    net = network()

    def step(x: Any, y: Any) -> Any:
        loss = F.mse_loss(net(x), y)
        loss.backward()
        return loss, {"loss": loss}

    jf = thunder.jit(step, fullgraph=True)
    loss, more = jf(*batch(0))
    assert more["loss"] is loss and loss.requires_grad and not loss.is_leaf and loss.grad_fn is not None
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        loss.backward()
    loss.add_(1)
    assert not loss.detach().requires_grad


def test_retained_graph_of_a_result() -> None:
    """A result whose graph was retained can be differentiated after the call."""
    found, expected = [], []
    for out, jit in ((expected, lambda f: f), (found, thunder.jit)):
        net = network()

        def step(x: Any, y: Any, net: Any = net) -> Any:
            loss = F.mse_loss(net(x), y)
            loss.backward(retain_graph=True)
            return loss

        loss = jit(step)(*batch(0))
        loss.backward()
        out += [loss.detach(), *gradients(net)]
    assert same(found, expected)


def test_a_gradient_changes_outside() -> None:
    """Programs for gradients that are None and gradients that exist; set and removed by the caller."""
    net = network()

    def step(x: Any, y: Any) -> Any:
        F.mse_loss(net(x), y).backward()

    jf = thunder.jit(step, fullgraph=True)
    for k in range(6):
        if k % 3 == 2:
            net.zero_grad(set_to_none=True)
        expected = [0 if g is None else g for g in gradients(net)]
        jf(*batch(k))
        loss = F.mse_loss(net(batch(k)[0]), batch(k)[1])
        expected = [a + b for a, b in zip(expected, torch.autograd.grad(loss, [*net.parameters()]))]
        assert same(gradients(net), expected)
    assert thunder.cache_misses(jf) == 2


def test_parameters_become_the_same_tensor() -> None:
    """Weights are tied between calls."""

    def step(x: Any, one: Any, two: Any) -> None:
        (one(x) + 2 * two(x)).sum().backward()

    jf = thunder.jit(step)
    results = []
    for run in (step, jf):
        torch.manual_seed(0)
        one, two = nn.Linear(3, 3), nn.Linear(3, 3)
        run(torch.ones(2, 3), one, two)
        two.weight = one.weight
        one.zero_grad()
        run(torch.ones(2, 3), one, two)
        results.append([*gradients(one), *gradients(two)])
    assert same(*results)


def shared(net: Any) -> None:
    """Let two parameters have the same `.grad`."""
    net[2].weight.data = net[2].weight.data.view(8)
    net[2].weight.grad = net[0].bias.grad = torch.zeros(8)


def in_one_buffer(net: Any) -> None:
    """Let all gradients be views of a buffer."""
    flat = torch.zeros(sum(p.numel() for p in net.parameters()))
    for p, part in zip(net.parameters(), flat.split([p.numel() for p in net.parameters()])):
        p.grad = part.view_as(p)


def overlapping(net: Any) -> None:
    """Let gradients overlap."""
    flat = torch.zeros(64)
    for p in net.parameters():
        p.grad = flat[: p.numel()].view_as(p)


@pytest.mark.parametrize("prepare", [shared, in_one_buffer, overlapping], ids=lambda f: f.__name__)
def test_gradients_share_memory(prepare: Callable[[Any], None]) -> None:
    found: list[Any] = []
    for jit in (lambda f: f, lambda f: thunder.jit(f, sharp_edges="allow")):
        net = network()
        prepare(net)

        def step(x: Any, y: Any, net: Any = net) -> Any:
            F.linear(net[1](net[0](x)), net[2].weight.view(1, 8), net[2].bias).mean().backward()
            update(net)

        jitted = jit(step)
        for k in range(3):
            jitted(*batch(k))
        found.append([*gradients(net), *net.parameters()])
    assert same(found[1], found[0])
    assert thunder.cache_hits(jitted) == {shared: 1, in_one_buffer: 2, overlapping: 0}[prepare]


def test_backward_uses_torchs_kernels() -> None:
    """To the bit: the formula of softplus' gradient rounds otherwise. Also if the graph is kept."""
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0), requires_grad=True)

    def step(keep: bool) -> Any:
        x.grad = None
        loss = F.softplus(x).square().sum()
        first = torch.autograd.grad(loss, x, retain_graph=True)[0]
        loss.backward(retain_graph=keep)
        if keep:
            loss.backward()
        return first, x.grad

    for keep in (True, False):
        expected = [y.clone() for y in step(keep)]
        assert same([*thunder.jit(step, fullgraph=True)(keep)], expected)


def test_backward_twice() -> None:
    """Raises eager mode's error."""

    def step(x: Any, w: Any) -> None:
        loss = (x * w).square().sum()
        loss.backward()
        loss.backward()

    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        thunder.jit(step, sharp_edges="allow")(torch.ones(3), torch.ones(3, requires_grad=True))


@pytest.mark.parametrize("keeps", [True, False])
def test_passes_before_differentiation(keeps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What plugins rewrite is differentiated, unless a value of the program would be gone."""

    def doubled(op: Any) -> Any:
        return ltorch.relu(op.args[0]) * 2 if op.sym.id == "torch.relu" else None

    def passes(trace: Any, *args: Any, **kwargs: Any) -> Any:
        new = rewrite(trace, "twice", doubled)
        if not keeps:
            new.bound_symbols.pop()
        yield new

    monkeypatch.setattr(inner_gradients, "transformed", passes)
    w = torch.tensor([1.0, -1.0], requires_grad=True)

    def step(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(w * x)
        (y * y).sum().backward()
        return y.detach()

    found = thunder.jit(step)(torch.tensor([3.0, 3.0]))
    factor = 2.0 if keeps else 1.0
    assert found.tolist() == [factor * 3.0, 0.0]
    assert w.grad is not None
    assert w.grad.tolist() == [factor**2 * 18.0, 0.0]
