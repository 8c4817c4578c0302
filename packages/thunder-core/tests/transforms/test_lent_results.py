# SPDX-License-Identifier: Apache-2.0
"""Results that are read where a graph wrote them: gradients of whole training steps, and saved values."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import training
from played_graphs import Played, always
from torch import nn
from torch.nn import functional as F
from training_optimizers import OPTIMIZERS, USERS
from training_programs import PROGRAMS

import thunder
from thunder.transforms.captured_region import CapturedRegion
from thunder.transforms.lent_results import LentResults


def adamw(net: nn.Module, **options: Any) -> Callable[..., torch.Tensor]:
    """A step of training."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(**options)
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


CASES = {name: training.with_optimizer(make) for name, make in OPTIMIZERS.items() if "foreach=False" not in name}
CASES |= {make.__name__: training.with_optimizer(make) for make in USERS}
CASES |= {make.__name__: make for make in PROGRAMS}


@pytest.mark.parametrize("name", CASES)
def test_training_steps(pretended: Played, name: str) -> None:
    """A step with graphs leaves what eager mode leaves, to the bit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, expected, kept = training.trained(CASES[name], lambda f: f, 7)
        _, found, kept_too = training.trained(CASES[name], always, 7)
    assert [training.same(a, b) for a, b in zip(found, expected)] == [True] * 7
    assert kept_too == kept and pretended.captures


def hold(net: nn.Module) -> Any:
    return [p.grad for p in net.parameters()]


def hold_views(net: nn.Module) -> Any:
    return [p.grad.view(-1) for p in net.parameters()]  # type: ignore[union-attr]


def hold_details(net: nn.Module) -> Any:
    return [p.grad.detach() for p in net.parameters()]  # type: ignore[union-attr]


def hold_arrays(net: nn.Module) -> Any:
    return [p.grad.numpy() for p in net.parameters()]  # type: ignore[union-attr]


def hold_in_a_graph(net: nn.Module) -> Any:
    weights = [torch.ones_like(p, requires_grad=True) for p in net.parameters()]
    return [(w * p.grad).sum().grad_fn for w, p in zip(weights, net.parameters())]


def hold_storages(net: nn.Module) -> Any:
    return [p.grad.untyped_storage() for p in net.parameters()]  # type: ignore[union-attr]


HOLDERS = [hold, hold_views, hold_details, hold_arrays, hold_storages, hold_in_a_graph]


@pytest.mark.parametrize("holder", HOLDERS)
def test_gradients_that_are_held(pretended: Played, holder: Callable[[nn.Module], Any]) -> None:
    """Old gradients keep their values, whoever refers to them. The calls meanwhile run uncaptured."""
    net, twin = training.network(), training.network()
    ours, theirs = always(adamw(net)), adamw(twin)
    held: list[tuple[Any, list[torch.Tensor]]] = []
    for k in range(9):
        assert torch.equal(ours(*training.batch(k)), theirs(*training.batch(k)))
        assert all(torch.equal(p.grad, q.grad) for p, q in zip(net.parameters(), twin.parameters()))  # type: ignore[arg-type]
        if k in (4, 5):
            held.append((holder(net), [p.grad.clone() for p in twin.parameters()]))  # type: ignore[union-attr]
        if k == 7:
            for found, expected in held if holder is not hold_in_a_graph else ():
                for x, y in zip(found, expected):
                    if isinstance(x, torch.UntypedStorage):
                        x = torch.empty(0).set_(x)
                    assert torch.equal(torch.as_tensor(x).reshape(-1), y.reshape(-1))
            for nodes, expected in held if holder is hold_in_a_graph else ():
                for node, y in zip(nodes, expected):
                    _, saved = node.next_functions[0][0]._saved_self, node.next_functions[0][0]._saved_other
                    assert torch.equal(saved, y)
            held.clear()
    assert "calls ran uncaptured because results of an earlier call were still in use" in thunder.explain(ours)
    for k in range(9, 12):
        ours(*training.batch(k))
        reports = ours._stats.last.reports
    ours(*training.batch(12))
    assert ours._stats.last.reports == reports  # graphs are launched again


def test_storages_that_are_held() -> None:
    """Torch does not count the references to a storage's Python object."""
    lent = LentResults([torch.ones(3)])
    storage = lent.hand_out()[0].untyped_storage()
    assert not lent.are_unused()
    del storage
    assert lent.are_unused()


def test_results_whose_storages_were_resized() -> None:
    """Their graph is not launched any more, but other graphs may be."""
    lent = LentResults([torch.ones(3), torch.ones(2)])
    first, second = lent.hand_out()
    first.untyped_storage().resize_(0)
    assert not lent.are_unused() and lent.resized
    assert not lent.include(second.data_ptr())
    del first, second
    assert lent.are_unused()


@pytest.mark.parametrize("size", [0, 4096])
def test_storages_that_are_resized(pretended: Played, size: int) -> None:
    """A graph does not write to memory that somebody has released."""
    nets = training.network(), training.network()
    steps = always(adamw(nets[0])), adamw(nets[1])
    batches = [training.batch(k) for k in range(10)]  # at addresses of their own
    for k, batch in enumerate(batches):
        for step, net in zip(steps, nets):
            step(*batch)
            if k == 5:
                captures = len(pretended.captures)
                for p in net.parameters():
                    p.grad.untyped_storage().resize_(size)  # type: ignore[union-attr]
        if k != 5:
            assert training.same(*[training.copied([*net.parameters(), *hold(net)]) for net in nets]), k
    assert len(pretended.captures) == captures


def test_what_gradients_are(pretended: Played) -> None:
    """They are new tensors in each call, and no views."""
    net = training.network()
    step = always(adamw(net))
    for k in range(6):
        step(*training.batch(k))
        for p in net.parameters():
            g = p.grad
            assert g is not None and not g._is_view() and g._version == 0 and not hasattr(g, "mark")
            g.mark = k  # type: ignore[attr-defined]
            g.mul_(2)


def test_gradients_that_nobody_holds(pretended: Played) -> None:
    """Each call launches the graph; the gradients are read where it wrote them."""
    net = training.network()
    step = always(adamw(net))
    addresses = set()
    batches = [training.batch(k) for k in range(8)]  # at addresses of their own
    for k, batch in enumerate(batches):
        step(*batch)
        if k > 2:
            addresses.add(tuple(p.grad.data_ptr() for p in net.parameters()))  # type: ignore[union-attr]
    assert len(addresses) == 1 and "uncaptured" not in thunder.explain(step)


def test_decisions_before_the_graph(pretended: Played) -> None:
    """A path that has decided cannot be left any more, so the graph may overwrite the gradients that it replaces."""
    nets = training.network(), training.network()

    def make(net: nn.Module) -> Callable[..., Any]:
        run = adamw(net)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return run(x, y * 2 if torch.rand(()).item() > 2 else y)  # e.g. whether to drop a layer

        return step

    steps = always(make(nets[0])), make(nets[1])
    for k in range(8):
        assert torch.equal(*[step(*training.batch(k)) for step in steps])
        assert training.same(*[training.copied([*net.parameters(), *hold(net)]) for net in nets]), k
    report = thunder.explain(steps[0])
    assert "path with" in report
    assert "CUDAGraph0 is captured, 1 time" in report
    assert "still in use" not in report


def test_decisions_after_the_graph(pretended: Played) -> None:
    """Another path may read the old gradients, even if this one has dropped them: the graph does not overwrite them."""
    nets = training.network(), training.network()

    def make(net: nn.Module) -> Callable[..., Any]:
        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            old = [p.grad for p in net.parameters()]
            net.zero_grad()
            loss = F.mse_loss(net(x), y)
            loss.backward()
            if loss.item() > 1000.0:
                return torch.stack([g.sum() for g in old if g is not None])
            return loss

        return step

    steps = always(make(nets[0])), make(nets[1])
    for k in range(14):
        x, y = training.batch(k)
        assert torch.equal(*[step(x, y + 1000 if k % 4 == 3 else y) for step in steps])
        assert training.same(*[training.copied(hold(net)) for net in nets]), k
    assert "path with" in thunder.explain(steps[0])


def test_gradients_that_another_path_reads(pretended: Played) -> None:
    """A path that replaces gradients may be left, after its graph was launched, for one that adds to them."""
    nets = training.network(), training.network()

    def make(net: nn.Module) -> Callable[..., Any]:
        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = F.mse_loss(net(x), y)
            if loss.item() > 2.0:
                net.zero_grad()
            loss.backward()
            return loss

        return step

    steps = always(make(nets[0])), make(nets[1])
    for k in range(12):
        x, y = training.batch(k)
        for step in steps:
            step(x, y if k % 5 == 4 else y + 3)
        assert training.same(*[training.copied(hold(net)) for net in nets]), k


def test_errors(pretended: Played) -> None:
    """A call that raises an error leaves what eager mode leaves, and later calls go on."""
    nets = training.network(), training.network()
    steps = always(adamw(nets[0])), adamw(nets[1])
    for k in range(9):
        for step in steps:
            if k == 5:
                with pytest.raises(RuntimeError):
                    step(torch.ones(6, 3), torch.ones(6, 1))
            else:
                step(*training.batch(k))
        assert training.same(*[training.copied([*net.parameters(), *hold(net)]) for net in nets])


def test_autograd_sees_writes_of_graphs(pretended: Played) -> None:
    """A graph of autograd that saved a parameter before the step raises eager mode's error."""
    net = training.network()
    step = always(adamw(net))
    for k in range(6):
        squares = [p * p for p in net.parameters()]
        step(*training.batch(k))
        for square in squares:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                square.sum().backward()


def test_two_forwards_before_a_backward(pretended: Played) -> None:
    """Saved values of the first forward are not overwritten by the second."""
    model, twin = training.network(), training.network()
    fast = always(model)
    for k in range(6):
        for run, net in ((fast, model), (twin, twin)):
            net.zero_grad()
            first, second = run(training.batch(k)[0]), run(training.batch(k + 1)[0])
            second.square().mean().backward()
            first.square().mean().backward()
        assert all(torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), twin.parameters()))  # type: ignore[arg-type]
    assert "still in use" in thunder.explain(fast)


def test_saved_values_are_not_copied(pretended: Played) -> None:
    """The backward graph reads them where the forward graph wrote them."""
    model = training.network()
    fast = always(model)
    batches = [training.batch(k) for k in range(5)]  # at addresses of their own, as are the gradients of results
    for x, of_result in batches:
        fast(x).backward(of_result)
    (backward,) = [
        op.sym.fn
        for op in thunder.last_backward_traces(fast)[-1].bound_symbols
        if isinstance(op.sym.fn, CapturedRegion)
    ]
    (sized,) = backward._sizes.values()
    assert backward.captures == 1 and sized.fixed
