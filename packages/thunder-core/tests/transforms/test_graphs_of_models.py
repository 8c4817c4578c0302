# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs of the forward and the backward program of a jitted model, with everything else in eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import training
from hypothesis import given, settings
from hypothesis import strategies as st
from played_graphs import Played, always
from torch import nn
from torch.autograd import forward_ad

import thunder
from thunder.transforms.captured_region import CapturedRegion


class Shared(nn.Module):
    """A model of which several parameters have the same gradient, or parts of one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(4, 3))
        self.third, self.scale = nn.Parameter(torch.randn(3, 4).T), nn.Parameter(torch.ones(4, 3))
        self.flat = nn.Parameter(torch.randn(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x.sin() * self.scale).cos() + self.first + self.second
        return (y + self.flat.reshape(4, 3) + self.third.contiguous()).tanh()


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def batch(k: int) -> torch.Tensor:
    """An input for both models."""
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(k)).to(DEVICE)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).to(DEVICE)


def shared() -> nn.Module:
    torch.manual_seed(0)
    return Shared().to(DEVICE)


def deep() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)).to(DEVICE)


def regions(jitted: Any) -> list[CapturedRegion]:
    """The stretches of the forward program, and of the backward program that ran last."""
    traces = [thunder.last_traces(jitted)[-1], *thunder.last_backward_traces(jitted)[-1:]]
    return [op.sym.fn for t in traces for op in t.bound_symbols if isinstance(op.sym.fn, CapturedRegion)]


class Loop:
    """A training loop that a test writes by actions, with what it holds."""

    def __init__(self, net: nn.Module, run: Callable[..., Any]):
        self.net, self.run = net, run
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.5)
        self.losses: list[torch.Tensor] = []
        self.held: list[Any] = []
        self.count = 0

    def forward(self) -> None:
        self.count += 1
        self.losses.append(self.run(batch(self.count)).square().mean())

    def backward(self) -> None:
        if self.losses:
            self.losses.pop().backward()

    def backward_of_the_first(self) -> None:
        if self.losses:
            self.losses.pop(0).backward()

    def backward_twice(self) -> None:
        if self.losses:
            self.losses[-1].backward(retain_graph=True)
            self.losses.pop().backward()

    def gradients(self) -> None:
        if self.losses:
            self.held.append(torch.autograd.grad(self.losses.pop(), [*self.net.parameters()]))

    def hold(self) -> None:
        self.held.append([None if p.grad is None else p.grad[1:] for p in self.net.parameters()])

    def drop(self) -> None:
        self.held.clear()

    def forget(self) -> None:
        self.losses.clear()

    def zero(self) -> None:
        self.optimizer.zero_grad()

    def fill_with_zeros(self) -> None:
        self.optimizer.zero_grad(set_to_none=False)

    def change(self) -> None:
        for k, p in enumerate(self.net.parameters()):
            if p.grad is not None:
                p.grad.mul_(k + 2)

    def clip(self) -> None:
        nn.utils.clip_grad_norm_(self.net.parameters(), 0.01)

    def step(self) -> None:
        self.optimizer.step()
        self.losses.clear()  # they have saved weights

    def evaluate(self) -> None:
        self.count += 1
        with torch.no_grad():
            self.held.append(self.run(batch(self.count)))

    def usual(self) -> None:
        """A usual iteration."""
        for action in (self.zero, self.forward, self.backward, self.step):
            action()

    def zero_before_backward(self) -> None:
        for action in (self.forward, self.zero, self.backward, self.step):
            action()

    def accumulate(self) -> None:
        for action in (self.zero, self.forward, self.backward, self.forward, self.backward, self.step):
            action()

    def state(self) -> list[Any]:
        """Everything that the user of the loop sees."""
        gradients = [p.grad for p in self.net.parameters()]
        return training.copied([*self.net.parameters(), *gradients, *self.losses, self.held])


ACTIONS = [name for name in vars(Loop) if not name.startswith("_") and name != "state"]


class Comparison:
    """A loop with a jitted model and its twin in eager mode. All tensors are equal after each action."""

    def __init__(self, make: Callable[[], nn.Module]):
        net, twin = make(), make()
        self.jitted = always(net)
        self.loops = Loop(net, self.jitted), Loop(twin, twin)

    def run(self, actions: list[str]) -> list[int]:
        """Run actions. Return how many calls of both programs have found results in use."""
        for k, action in enumerate(actions):
            for loop in self.loops:
                getattr(loop, action)()
            states = [loop.state() for loop in self.loops]
            torch.testing.assert_close(*states, rtol=1e-5, atol=1e-6, msg=f"{k}: {action}")
        return [r.held for r in regions(self.jitted)]


@pytest.mark.parametrize("make", [network, shared])
@pytest.mark.parametrize("iteration", ["usual", "zero_before_backward"])
def test_graphs_of_usual_iterations(device: str, make: Callable[[], nn.Module], iteration: str) -> None:
    """Each iteration launches both graphs."""
    comparison = Comparison(make)
    assert comparison.run([iteration] * 9) == [0, 0]
    assert all(r.captures for r in regions(comparison.jitted))


@pytest.mark.parametrize("make", [network, shared])
@pytest.mark.parametrize(
    "actions",
    [["accumulate"], ["forward", "gradients"], ["fill_with_zeros", "forward", "backward", "step"]],
    ids=lambda actions: actions[-1],
)
def test_gradients_that_are_in_use(device: str, make: Callable[[], nn.Module], actions: list[str]) -> None:
    """If a launch would overwrite old gradients a second time, the backward graph copies them from then on."""
    comparison = Comparison(make)
    for _ in range(2):  # it is less than two if the graph was dropped meanwhile, e.g. because memory was elsewhere
        forward, backward = comparison.run(actions * 6)
        assert forward == 0
        assert backward <= 2
    assert all(r.captures for r in regions(comparison.jitted))


def test_gradients_are_handed_over_between_graphs(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stage of the backward program is a graph, so that gradients are there before the program ends."""
    monkeypatch.setattr("thunder.frontend.differentiable.MIN_BYTES_TO_PRUNE", 0)
    monkeypatch.setattr("thunder.frontend.differentiable.MIN_STAGE_BYTES", 50)
    monkeypatch.setattr("thunder.frontend.differentiable.MIN_STAGE_BYTES_CPU", 50)
    comparison = Comparison(deep)
    comparison.run(["usual"] * 6)
    first, second, *_ = regions(comparison.jitted)[1:]
    launched: list[Any] = []

    def noting(region: CapturedRegion) -> Any:
        launch = region._launch
        return lambda *args: (launched.append(region), launch(*args))[1]

    for region in (first, second):
        monkeypatch.setattr(region, "_launch", noting(region))
    last = [*comparison.loops[0].net.parameters()][-1]
    last.register_post_accumulate_grad_hook(lambda p: launched.append("accumulated"))
    comparison.run(["usual"])
    assert launched == [first, "accumulated", second]


@settings(max_examples=60)
@given(st.sampled_from([network, shared]), st.lists(st.sampled_from(ACTIONS), min_size=12, max_size=40))
def test_any_loop(make: Callable[[], nn.Module], actions: list[str]) -> None:
    """Whatever is held, accumulated, changed or left out."""
    with pytest.MonkeyPatch.context() as patch:
        if DEVICE == "cpu":
            patch.setattr("thunder.transforms.cuda_graphs._GPU", "cpu")
            Played(patch)
        Comparison(make).run(["usual", "usual", "usual", *actions])


# -- gradients that are no plain memory --------------------------------------------------------------------------------
def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x.sin() * w).tanh()


def test_gradients_with_a_negative_bit(device: str) -> None:
    """They are at the address of the memory that they negate."""
    fast, x = always(scaled), torch.randn(4, device=DEVICE)
    w, c = torch.randn(4, device=DEVICE, requires_grad=True), torch.randn(4, dtype=torch.cfloat, device=DEVICE)
    for k in range(8):
        of_result = c.conj().imag if k > 3 else c.imag
        found, right = (torch.autograd.grad(f(x, w), w, of_result) for f in (fast, scaled))
        torch.testing.assert_close(found, right)


def test_conjugated_gradients(device: str) -> None:
    fast, x = always(lambda x, w: x * w * 2), torch.ones(4, dtype=torch.cfloat, device=DEVICE)
    w, c = (torch.randn(4, dtype=torch.cfloat, device=DEVICE) for _ in range(2))
    w.requires_grad_()
    for k in range(8):
        (found,) = torch.autograd.grad(fast(x, w), w, c.conj() if k > 3 else c)
        torch.testing.assert_close(found, 2 * (c.conj() if k > 3 else c))


def test_tangents(device: str) -> None:
    """Graphs do not compute them, of results and of gradients."""
    fast, x = always(scaled), torch.randn(4, device=DEVICE)
    w = torch.randn(4, device=DEVICE, requires_grad=True)
    for k in range(8):
        fast(x, w).sum().backward()
        if k < 4:
            continue
        with forward_ad.dual_level():
            for f in (fast, scaled):
                given = forward_ad.make_dual(x, torch.ones_like(x))
                tangent = forward_ad.unpack_dual(f(given, w)).tangent
                gradient = torch.autograd.grad(f(x, w), w, given)[0]
                of_gradient = forward_ad.unpack_dual(gradient).tangent
                if f is fast:
                    ours = tangent, of_gradient
            torch.testing.assert_close(ours, (tangent, of_gradient))


def test_batched_gradients(device: str) -> None:
    """They have no address."""
    fast, x = always(scaled), torch.randn(4, device=DEVICE)
    w, many = torch.randn(4, device=DEVICE, requires_grad=True), torch.eye(4, device=DEVICE)
    for _ in range(4):
        found = torch.autograd.grad(fast(x, w), w, many, is_grads_batched=True)
        torch.testing.assert_close(found, torch.autograd.grad(scaled(x, w), w, many, is_grads_batched=True))
        torch.testing.assert_close(
            *[torch.autograd.functional.jacobian(f, (x, w), vectorize=True) for f in (fast, scaled)]
        )


def test_results_that_views_were_part_of(device: str) -> None:
    """A result of a graph is no view, and the caller may write to it."""

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (torch.cat([w[:1], x[1:].sin()]) + x).t()

    fast, x = always(f), torch.randn(4, 4, device=DEVICE)
    w = torch.randn(4, 4, device=DEVICE, requires_grad=True)
    for _ in range(4):
        found, right = (torch.autograd.grad(g(x, w).mul_(2).sum(), w) for g in (fast, f))
        torch.testing.assert_close(found, right)


# -- graphs that are not launched any more -----------------------------------------------------------------------------
def test_saved_values_that_are_elsewhere(device: str) -> None:
    """If the forward graph is not launched any more, the backward graph is captured again, and copies saved values."""
    comparison = Comparison(network)
    comparison.run(["usual"] * 5)
    forward, backward = regions(comparison.jitted)
    (sized,) = forward._sizes.values()
    sized.refused = "it is slower"
    comparison.run(["usual"] * 40)
    assert backward.missing == 32
    (sized,) = backward._sizes.values()
    assert sized.launch is not None and not sized.fixed
    assert "because a graph that computes their inputs was not launched" in thunder.explain(comparison.jitted)


def test_saved_values_of_several_graphs(device: str) -> None:
    """A backward graph that reads them in turns copies them."""

    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        v = (w @ w).sin() @ w
        return x @ v, v

    fast = thunder.jit(f, executors=["torch"], cuda_graphs="always", cache="symbolic values")
    w = torch.randn(4, 4, device=DEVICE, requires_grad=True)
    for size in (3, 5) * 15:
        x = torch.randn(size, 4, device=DEVICE)
        found, right = (torch.autograd.grad(g(x, w)[1].sum(), w) for g in (fast, f))
        torch.testing.assert_close(found, right)
    assert [r.captures > 0 for r in regions(fast)] == [True, True]
