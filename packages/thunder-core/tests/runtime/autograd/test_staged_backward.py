# SPDX-License-Identifier: Apache-2.0
"""Gradients that arrive in stages: they are eager's, whoever asks for them, and they arrive early."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from outcomes import in_threads
from torch import nn

import thunder
from thunder.frontend import differentiable
from thunder.frontend.differentiable import MIN_BYTES_TO_PRUNE

WIDTH, DEPTH = 128, 6  # each layer's weight is as large as what is asked about at all
assert WIDTH * WIDTH * 4 >= MIN_BYTES_TO_PRUNE
STAGES = DEPTH + 1  # each layer's weight, the first one's with the scale; then the input


class Deep(nn.Module):
    """Layers, the last of which uses the first one's weight again."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH))
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x)) * self.scale
        return torch.nn.functional.linear(x, self.layers[0].weight)


@pytest.fixture(autouse=True)
def small_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer is large enough for a stage."""
    monkeypatch.setattr(differentiable, "MIN_STAGE_BYTES_CPU", WIDTH * WIDTH * 4)
    monkeypatch.setattr(differentiable, "MIN_STAGE_BYTES", WIDTH * WIDTH * 4)


def models() -> tuple[Deep, Any, torch.Tensor]:
    """A model, the same one jitted, and an input."""
    torch.manual_seed(0)
    model = Deep()
    return model, thunder.jit(model), torch.randn(4, WIDTH, requires_grad=True)


def gradients(model: Any, x: torch.Tensor) -> list[torch.Tensor]:
    """Those of the parameters and of `x`, as backward() leaves them."""
    wrt = [*model.parameters(), x]
    for p in wrt:
        p.grad = None
    model(x).sum().backward()
    return [p.grad.clone() for p in wrt]


def stages_of(jitted: Any) -> int:
    """How many stages the program of the last call has."""
    found = jitted.stats.last.differentiable.layout.stages
    return 1 if found is None else len(found)


def program(jitted: Any) -> str:
    """The text of the backward program that ran last."""
    return str(thunder.last_backward_traces(jitted)[-1])


def test_gradients() -> None:
    """As eager's; they accumulate, and the program is used again."""
    model, jitted, x = models()
    expected = gradients(model, x)
    torch.testing.assert_close(gradients(jitted, x), expected)
    jitted(x).sum().backward()
    torch.testing.assert_close([p.grad for p in [*model.parameters(), x]], [2 * g for g in expected])
    assert stages_of(jitted) == STAGES
    assert program(jitted).count("yield ready") == STAGES - 1
    assert (thunder.cache_misses(jitted), thunder.cache_hits(jitted)) == (1, 1)


def test_small_programs_are_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    _, jitted, x = models()
    jitted(x).sum().backward()
    assert stages_of(jitted) == 1
    assert "yield" not in program(jitted)


def test_they_arrive_early() -> None:
    """When the last layer's gradient is there, the others are not; who drops gradients needs memory for a few only."""
    _, jitted, x = models()
    gradients(jitted, x)
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def note(p: torch.Tensor) -> None:
        nonlocal most
        assert p.grad is not None
        alive.append(weakref.ref(p.grad))
        p.grad = None
        most = max(most, sum(ref() is not None for ref in alive))

    order: list[int] = []
    for i, layer in enumerate(jitted.layers):
        layer.weight.register_hook(lambda g, i=i: order.append(i))
        layer.weight.register_post_accumulate_grad_hook(note)
    for p in jitted.parameters():
        p.grad = None
    jitted(x).sum().backward()
    assert order == [*range(DEPTH - 1, 0, -1), 0]
    assert len(alive) == DEPTH and most == 0


def test_gradients_are_handed_over_whole() -> None:
    """Nobody else holds them, so that they become `.grad` without a copy."""
    _, jitted, x = models()
    gradients(jitted, x)
    seen: dict[int, int] = {}
    for p in jitted.parameters():
        p.grad = None
        p.register_hook(lambda g, p=p: seen.__setitem__(id(p), g.data_ptr()))
    jitted(x).sum().backward()
    assert [p.grad.data_ptr() for p in jitted.parameters()] == [seen[id(p)] for p in jitted.parameters()]


WANTED: dict[str, Callable[[Any, torch.Tensor], list[torch.Tensor]]] = {
    "those of the last layer": lambda m, x: [m.layers[-1].weight],
    "those of the second layer": lambda m, x: [m.layers[1].weight],
    "some from the middle": lambda m, x: [m.layers[4].weight, m.layers[2].weight],
    "those that come last": lambda m, x: [x, m.layers[0].weight],
    "all": lambda m, x: [*m.parameters(), x],
}


@pytest.mark.parametrize("which", WANTED)
def test_some_are_asked_for(which: str) -> None:
    """What nobody asks for is not computed."""
    model, jitted, x = models()
    wrt = WANTED[which](model, x)
    expected = torch.autograd.grad(model(x).sum(), wrt)
    out = jitted(x).sum()
    for _ in range(2):
        torch.testing.assert_close(torch.autograd.grad(out, wrt, retain_graph=True), expected)
    if which == "those of the last layer":
        assert [op.sym.name for op in thunder.last_backward_traces(jitted)[-1].bound_symbols].count("matmul") == 2


def test_frozen_parameters() -> None:
    model, jitted, x = models()
    for layer in model.layers[:3]:
        layer.weight.requires_grad_(False)
    wrt = [*[layer.weight for layer in model.layers[3:]], model.scale, x]
    expected = torch.autograd.grad(model(x).sum(), wrt)
    torch.testing.assert_close(torch.autograd.grad(jitted(x).sum(), wrt), expected)
    assert stages_of(jitted) > 1


def test_gradients_of_gradients() -> None:
    """With respect to inputs of every stage."""
    model, jitted, x = models()
    found = []
    for fn in (model, jitted):
        wrt = [*model.parameters(), x]
        first = torch.autograd.grad(fn(x).pow(2).sum(), wrt, create_graph=True)
        found.append([*first, *torch.autograd.grad(sum(g.pow(2).sum() for g in first), wrt)])
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-3)


def test_a_hook_that_fails() -> None:
    """The error is the hook's; the next pass is as ever, and what the first one held is free."""
    _, jitted, x = models()
    expected = gradients(jitted, x)

    def fail(g: torch.Tensor) -> None:
        raise RuntimeError("enough")

    handle = jitted.layers[3].weight.register_hook(fail)
    out = jitted(x).sum()
    with pytest.raises(RuntimeError, match="enough"):
        out.backward()
    handle.remove()
    node = weakref.ref(out.grad_fn.next_functions[0][0])
    del out
    torch.testing.assert_close(gradients(jitted, x), expected)  # torch itself holds the failed graph until then
    gc.collect()
    assert node() is None


def test_passes_at_once() -> None:
    """Threads that go through one graph, each of which gets its own gradients."""
    _, jitted, x = models()
    out = jitted(x)
    wrt = [*jitted.parameters()]
    expected = torch.autograd.grad(out.sum(), wrt, retain_graph=True)
    together = threading.Barrier(4, timeout=30)
    wrong: list[Any] = []

    def ask(k: int) -> None:
        together.wait()
        for _ in range(10):
            try:
                found = torch.autograd.grad(out, wrt, torch.full_like(out, float(k)), retain_graph=True)
                torch.testing.assert_close(found, tuple(k * g for g in expected))
            except BaseException as error:
                wrong.append(error)

    in_threads(ask, [(k,) for k in range(1, 5)])
    assert not wrong


def test_a_pass_within_a_pass() -> None:
    """A hook that differentiates the same graph."""
    model, jitted, x = models()
    found = []
    for fn in (model, jitted):
        out = fn(x).sum()
        inner: list[Any] = []

        def again(g: torch.Tensor, out: Any = out, inner: list[Any] = inner) -> None:
            inner.extend(torch.autograd.grad(out, [fn.layers[1].weight], retain_graph=True))

        handle = fn.layers[3].weight.register_hook(again)
        grads = torch.autograd.grad(out, [*model.parameters()], retain_graph=True)
        handle.remove()
        found.append([*grads, *inner])
    torch.testing.assert_close(found[1], found[0])


def test_nothing_is_kept() -> None:
    """After a pass, and after a call without one, what was saved is free."""
    _, jitted, x = models()
    gradients(jitted, x)
    for backward in (True, False):
        out = jitted(x)
        saved = [weakref.ref(t) for t in out.grad_fn.saved_tensors if not isinstance(t, nn.Parameter) and t is not x]
        if backward:
            out.sum().backward()
        node = weakref.ref(out.grad_fn)
        del out
        gc.collect()
        assert saved and node() is None and not any(ref() is not None for ref in saved)


def test_results_that_are_inputs() -> None:
    """Of another stage: the caller's tensors stay leaves."""

    def fn(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        return a.contiguous(), (a @ b @ c).sum(), c.to(torch.float32)

    torch.manual_seed(0)
    inputs = [torch.randn(WIDTH, WIDTH, requires_grad=True) for _ in range(3)]
    jitted = thunder.jit(fn)
    found = []
    for f in (fn, jitted):
        a, total, c = f(*inputs)
        found.append(torch.autograd.grad(a.sum() + total + c.sum(), inputs))
    torch.testing.assert_close(found[1], found[0])
    assert all(t.is_leaf and t.grad_fn is None for t in inputs)


def test_numbers_among_the_results() -> None:
    """Which may be the very objects that are given."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.n = Deep(), 0

        def forward(self, x: torch.Tensor) -> Any:
            self.n += 1
            return x.view(-1), self.inner(x), self.n

    module = Counting()
    jitted = thunder.jit(module)
    for i in range(1, 6):
        x = torch.randn(4, WIDTH, requires_grad=True)
        flat, _, n = jitted(x)
        assert n == i and torch.equal(flat, x.view(-1))


@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_under_autocast(dtype: torch.dtype) -> None:
    """Backward runs without it, though it is on around the pass."""
    model, jitted, x = models()
    with torch.autocast("cpu", dtype=dtype):
        expected, found = gradients(model, x), gradients(jitted, x)
        assert torch.is_autocast_enabled("cpu")
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)
    found = gradients(jitted, x)
    assert stages_of(jitted) > 1
    torch.testing.assert_close(found, gradients(model, x))


def test_symbolic_sizes() -> None:
    """One program for every batch."""
    model, _, _ = models()
    jitted = thunder.jit(model, cache="symbolic values")
    for n in (4, 7, 5):
        x = torch.randn(n, WIDTH, requires_grad=True)
        torch.testing.assert_close(gradients(jitted, x), gradients(model, x))
    assert thunder.cache_misses(jitted) == 1 and stages_of(jitted) > 1


@pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")
def test_data_parallelism_sends_early() -> None:
    """The last layers' gradients are on their way before the first layer's are there."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model, jitted, x = models()
    expected = gradients(model, x)
    order: list[str] = []

    def send(state, bucket):  # torch takes annotations for types here
        order.append("sent")
        return default_hooks.allreduce_hook(None, bucket)

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        parallel = nn.parallel.DistributedDataParallel(jitted, bucket_cap_mb=WIDTH * WIDTH * 4 / (1 << 20))
        parallel.register_comm_hook(None, send)
        model.layers[0].weight.register_hook(lambda g: order.append("first layer"))
        for _ in range(3):
            torch.testing.assert_close(gradients(parallel, x), expected)
    finally:
        parallel = None
        gc.collect()  # what holds the group is gone before it: a reducer that ends later waits for the group's thread
        dist.destroy_process_group()
    passes = " ".join(order).split("first layer")[:3]
    assert all(part.count("sent") >= DEPTH - 2 for part in passes[1:]), order


def test_the_text_runs() -> None:
    """It is a generator, whose caller empties what it is handed."""
    _, jitted, x = models()
    gradients(jitted, x)
    trace = thunder.last_backward_traces(jitted)[-1]
    namespace = trace.python_ctx()
    exec(str(trace), namespace)
    out = jitted(x)
    saved = list(out.grad_fn.saved_tensors)
    steps: Iterator[list[Any]] = namespace["backward"](saved, torch.ones_like(out))
    found = [len(step) for step in steps]
    assert len(found) == STAGES - 1 and all(found)


def test_memory_counts_what_is_handed_over() -> None:
    """The caller holds it: it is `.grad` now."""
    _, jitted, x = models()
    gradients(jitted, x)
    report = thunder.examine.memory(jitted)
    weights = sum(p.numel() * 4 for p in jitted.parameters())
    assert report.live >= report.inputs + weights
