# SPDX-License-Identifier: Apache-2.0
"""`torch.autograd.grad` inside traced programs: what eager gives, and derivatives of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from outcomes import message_and_notes
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import thunder
from thunder.core.errors import TracingError


def close(found: Any, expected: Any) -> None:
    """Equal in float64, but for the order of sums."""
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.fixture
def net() -> nn.Module:
    """Three numbers to one."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def points(requires_grad: bool = True) -> torch.Tensor:
    """Five points."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(5, 3, dtype=torch.float64, generator=generator).requires_grad_(requires_grad)


def trained(net: nn.Module, run: Callable[[Any], Any], loss_of: Callable[[Any], Any]) -> list[Any]:
    """Results, and the gradients of a loss of them by the points and the parameters."""
    net.zero_grad()
    x = points()
    found = run(x)
    loss_of(found).backward()
    return [found, x.grad, *[p.grad for p in net.parameters()]]


def test_forces_of_an_energy(net: nn.Module) -> None:
    """Both are returned, and a loss of both is differentiated by the parameters."""

    def forces(x: Any) -> Any:
        energy = net(x).sum()
        return energy, -torch.autograd.grad(energy, x, create_graph=True)[0]

    def loss_of(found: Any) -> Any:
        return found[0] + found[1].pow(2).sum()

    jitted = thunder.jit(forces)
    for _ in range(2):
        close(trained(net, jitted, loss_of), trained(net, forces, loss_of))
    assert thunder.cache_hits(jitted) == 1
    text = str(thunder.last_traces(jitted)[-1])
    exec(text, thunder.last_traces(jitted)[-1].python_ctx())


def test_residual_of_an_equation(net: nn.Module) -> None:
    """Second derivatives inside, and their gradients."""

    def residual(x: Any) -> Any:
        u = net(x)
        (first,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first[:, 0].sum(), x, create_graph=True)
        return (second[:, 0] + u[:, 0].sin()).pow(2).mean()

    close(trained(net, thunder.jit(residual), lambda r: r), trained(net, residual, lambda r: r))


def test_gradient_penalty(net: nn.Module) -> None:
    """By a detached copy; with a gradient that arrives."""

    def penalty(x: Any) -> Any:
        x = x.detach().requires_grad_()
        scores = net(x)
        (g,) = torch.autograd.grad(scores, [x], torch.ones_like(scores), create_graph=True)
        return (g.norm(2, 1) - 1).pow(2).mean()

    found, expected = [], []
    for out, run in ((found, thunder.jit(penalty)), (expected, penalty)):
        net.zero_grad()
        run(points()).backward()
        out += [p.grad for p in net.parameters()]
    close(found[:3], expected[:3])
    assert expected[3] is None or not expected[3].any()  # of the last bias


def test_without_a_graph(net: nn.Module) -> None:
    """The gradient is a constant to what follows; random numbers are drawn once; also within no_grad."""

    def step(x: Any) -> Any:
        for _ in range(2):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                (g,) = torch.autograd.grad(net(F.dropout(x, 0.3)).sum(), x)
            assert not g.requires_grad
            x = x - 0.1 * g
        return x, torch.rand(2)

    for around in (torch.enable_grad(), torch.no_grad()):
        with around:
            results = []
            for run in (step, thunder.jit(step)):
                torch.manual_seed(0)
                results.append(run(points(False)))
            close(results[1], results[0])


def test_several_at_once() -> None:
    """Of several results, by a parameter and by a value on the way; views and what returns its input."""

    def f(x: Any, w: Any) -> Any:
        y = (x @ w).contiguous()
        z = y[1:].reshape(-1).relu()
        a, b, c = torch.autograd.grad(
            [y.sum(), z], [w, y, x], [None, torch.ones_like(z)], create_graph=True, allow_unused=True
        )
        (none,) = torch.autograd.grad(y.sum(), [z], allow_unused=True)
        (zeros,) = torch.autograd.grad(y.sum(), [z], materialize_grads=True)
        assert none is None
        return (a * w).sum() + b.sum() * x.sum() + (c * y.to(torch.float64).sum()).sum() + zeros.sum()

    w = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4).requires_grad_()
    x = points()
    close(torch.autograd.grad(thunder.jit(f)(x, w), [x, w]), torch.autograd.grad(f(x, w), [x, w]))


def test_among_transforms() -> None:
    """Inside of thunder.grad, vmap and a checkpointed region."""

    def cube(v: Any) -> Any:
        return torch.autograd.grad((v**3).sum(), v, create_graph=True)[0]

    x = points()
    plain = x.detach()
    close(thunder.grad(lambda v: cube(v).sum())(plain), 6 * plain)
    close(thunder.vmap(lambda v: cube(v.detach().requires_grad_()))(plain), 3 * plain**2)
    close(torch.autograd.grad(thunder.jit(lambda v: cube(v).sum())(x), x)[0], 6 * plain)
    found = thunder.jit(lambda v: checkpoint(lambda u: cube(u * 2).sum(), v, use_reentrant=False))(x)
    close(torch.autograd.grad(found, x)[0], 24 * plain)


def reaches_back(v: Any) -> Any:
    """Differentiates what was computed before the function that is transformed."""
    y = (v * v).sum()
    return thunder.grad(lambda u: torch.autograd.grad(y * u.sum(), v, create_graph=True)[0].sum())(v)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no scalar": (lambda x: torch.autograd.grad(x * 2, x), "only for scalar outputs"),
    "detached": (lambda x: torch.autograd.grad(x.sum().detach(), x), "element 0 of tensors does not require grad"),
    "a constant": (lambda x: torch.autograd.grad(x.sum(), torch.ones(2)), "Tensors does not require grad"),
    "unused": (lambda x: torch.autograd.grad(x.sum(), x.clone()), "not have been used in the graph"),
    "a wrong shape": (lambda x: torch.autograd.grad(x * 2, x, torch.ones(2)), "Mismatch in shape"),
    "too few": (lambda x: torch.autograd.grad([x.sum(), x], x, [None]), "got 2 tensors and 1 gradients"),
    "reaching back": (reaches_back, "needs the gradient of operations before that function"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    """In torch's words, with the user's line."""
    f, message = REFUSED[name]
    with pytest.raises((RuntimeError, TracingError), match=message) as caught:
        thunder.trace()(f, points())
    assert "test_inner_gradients.py" in message_and_notes(caught.value)


def test_batches_of_cotangents() -> None:
    """Run as Python."""

    def rows(x: Any) -> Any:
        y = x.sin()
        return torch.autograd.grad(y, x, torch.ones(2, *y.shape), is_grads_batched=True)[0]

    jitted = thunder.jit(rows)
    for _ in range(2):
        torch.testing.assert_close(jitted(points()), rows(points()))
    assert "is_grads_batched" in thunder.explain(jitted)


# -- tensors from outside ---------------------------------------------------------------------------------------------
def squared(x: Any) -> Any:
    """The gradient of a cube, twice differentiable."""
    y = (x**3).sum()
    return y, torch.autograd.grad(y, x, create_graph=True)[0]


def test_hooks_of_inputs() -> None:
    """They are called with the gradient that is asked for inside, once, and may change it, whenever they came."""

    def runs(run: Callable[[Any], Any]) -> list[Any]:
        found: list[Any] = []
        leaf = points()
        made = points() * 2
        for x in (leaf, made):
            found.append(run(x)[1].detach())
            handle = x.register_hook(lambda g: found.append(g.detach()) or g * 10)
            x.register_hook(lambda g: found.append(g.detach()))
            found.append(run(x)[1].detach())
            handle.remove()
            found.append(run(x)[1].detach())
        y, g = run(leaf)  # and hooks see the gradient of the whole as well
        (y + g.sum()).backward()
        return [*found, leaf.grad]

    jitted = thunder.jit(squared)
    expected = runs(squared)
    close(runs(jitted), expected)
    assert len(expected) == 6 + 6 + 3
    close(runs(jitted), expected)
    assert thunder.cache_misses(jitted) == 4  # with and without hooks, of a leaf and of another


def test_derivatives_through_hooks_of_inputs() -> None:
    """What hooks of parameters and inputs do is differentiated."""

    def run(jit: Callable[[Any], Any]) -> list[Any]:
        torch.manual_seed(0)
        layer = nn.Linear(3, 1).double()
        x = points()
        layer.weight.register_hook(lambda g: g * g)
        x.register_hook(lambda g: g.sin())

        def penalty(x: Any) -> Any:
            value = layer(x).tanh().sum()
            return sum(g.pow(2).sum() for g in torch.autograd.grad(value, [x, layer.weight], create_graph=True))

        loss = jit(penalty)(x)
        loss.backward()
        return [loss.detach(), x.grad, layer.weight.grad, layer.bias.grad]

    close(run(thunder.jit), run(lambda f: f))


def test_what_keeps_its_gradient() -> None:
    def run(f: Callable[[Any], Any]) -> list[Any]:
        x = points() * 2
        x.retain_grad()
        return [f(x)[1].detach(), f(x)[1].detach(), x.grad]

    close(run(thunder.jit(squared)), run(squared))


def test_inputs_that_are_made_of_others() -> None:
    """Gradients that would have to flow outside of the program are refused, in every call; others are as in eager."""

    def product(x: Any, z: Any) -> Any:
        return torch.autograd.grad((x * z).sum(), z)[0]

    jitted = thunder.jit(product)
    z, w = points(), points()
    for x in (w, w**2, torch.stack([w, w]).unbind(0)[0]):
        close(jitted(x, z), product(x, z))
    for x in (z**2, (z * 2).exp()):
        with pytest.raises(TracingError, match="one input of the function was computed from another input") as caught:
            jitted(x, z)
        assert "test_inner_gradients.py" in str(caught.value)
    middle = z * 2
    with pytest.raises(TracingError, match="computed from another input"):
        jitted(middle.sin(), middle)
    both = thunder.jit(lambda x, z: torch.autograd.grad((x * z).sum(), [x, z]))
    close(both(*(z * torch.ones(2, 5, 3)).unbind(0)), (z.detach(), z.detach()))
    with pytest.raises(TracingError, match="computed from another input"):
        both(middle.sin(), middle)
    close(thunder.jit(lambda x, z: torch.autograd.grad(z.sum(), z)[0])(middle.sin(), middle), torch.ones(5, 3).double())
