# SPDX-License-Identifier: Apache-2.0
"""thunder behind torch.compile: graph breaks, gradients, changing sizes, effects, and what is left to torch."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import thunder
from thunder.core.errors import TracingError
from thunder.dynamo import ThunderFX, thunderfx


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Dynamo forgets what it compiled."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def both(fn: Callable[..., Any], *args: Any, **options: Any) -> ThunderFX:
    """Runs `fn` compiled and as it is, on the same numbers, and compares results and gradients."""
    fast = thunderfx(fn, **options)
    ours = [a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a for a in args]
    torch.manual_seed(1)
    found = fast(*ours)
    torch.manual_seed(1)
    expected = fn(*args)
    torch.testing.assert_close(found, expected)
    if isinstance(expected, torch.Tensor) and expected.requires_grad:
        gradient = torch.randn_like(expected)
        found.backward(gradient)
        expected.backward(gradient)
        for a, b in zip(ours, args):
            if isinstance(b, torch.Tensor) and b.requires_grad:
                torch.testing.assert_close(a.grad, b.grad)
                b.grad = None
    return fast


def leaf(*shape: int) -> torch.Tensor:
    """A tensor that requires grad."""
    torch.manual_seed(0)
    return torch.randn(*shape, requires_grad=True)


def test_by_its_name() -> None:
    """Installing thunder is enough."""
    assert "thunder" in torch._dynamo.list_backends()
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    fast = torch.compile(model, backend="thunder")
    x = torch.randn(5, 3)
    torch.testing.assert_close(fast(x), model(x))
    fast(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_options_of_jit() -> None:
    """As torch.compile's `options`, and as thunderfx's own."""
    seen: list[str] = []

    def note(trace: Any, executors: Any) -> Any:
        seen.append(trace.name)
        return trace

    torch.compile(lambda a: a + 1, backend="thunder", options={"transforms": [note]})(torch.ones(2))
    thunderfx(lambda a: a + 2, transforms=[note], dynamic=False)(torch.ones(2))
    assert seen == ["computation", "computation"]
    with pytest.raises(TypeError, match="unknown compile option 'exectors', did you mean 'executors'"):
        thunderfx(lambda a: a, exectors=[])
    with pytest.raises(Exception, match=r"only Inductor has modes; thunder has options"):
        torch.compile(lambda a: a + 1, backend="thunder", mode="reduce-overhead")(torch.ones(2))
    with pytest.raises(TypeError, match="thunderfx expects a function or a module, not int"):
        thunderfx(3)  # type: ignore[arg-type]


def test_graph_breaks() -> None:
    """A program in two parts, each with its traces."""
    printed: list[float] = []

    def fn(a: torch.Tensor) -> torch.Tensor:
        b = a.sin()
        printed.append(float(b.sum()))
        return b.exp() + a if printed[-1] > -100 else b

    fast = both(fn, leaf(4, 3))
    assert len(printed) == 2
    assert len(fast.subgraphs) >= 2
    assert all(part.reason is None for part in fast.subgraphs)
    names = [[op.sym.name for op in part.traces[-1].bound_symbols] for part in fast.subgraphs if part.traces]
    assert any("sin" in part for part in names)
    assert any("exp" in part for part in names)
    assert any(part.backward_traces for part in fast.subgraphs)
    assert "run by thunder" in repr(fast.subgraphs[0])
    x = torch.ones(2)
    torch.testing.assert_close(thunder.jit(fn)(x), fn(x))


class Square(torch.autograd.Function):
    """With a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return 3 * ctx.saved_tensors[0] * g


def autocast(a: torch.Tensor) -> torch.Tensor:
    """A product in bfloat16."""
    with torch.autocast("cpu", torch.bfloat16):
        b = a @ a.t()
    return b.float() + 1


def without_gradients(a: torch.Tensor) -> torch.Tensor:
    """Of which a part is a constant."""
    with torch.no_grad():
        b = a * 2
    return b * a


def writes(a: torch.Tensor) -> torch.Tensor:
    """In place, and through a view."""
    b = a.clone()
    b.mul_(2)[0] = 3
    return b


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "autocast": autocast,
    "without gradients": without_gradients,
    "writes": writes,
    "checkpoint": lambda a: checkpoint(lambda x: x.sin().exp(), a, use_reentrant=False) * 2,
    "a function of its own": lambda a: Square.apply(a) + 1,
    "random": lambda a: torch.nn.functional.dropout(a, 0.5) + torch.randn_like(a),
    "containers": lambda a: {"x": a + 1, "rest": [a * 2, (a - 1, None)]},
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    """Each in one graph that thunder runs."""
    fast = both(PROGRAMS[name], leaf(4, 4), fullgraph=True)
    assert [part.reason for part in fast.subgraphs] == [None]


def test_buffers() -> None:
    """Running statistics are written."""
    ours, theirs = (nn.BatchNorm1d(4) for _ in range(2))
    x = torch.randn(6, 4)
    fast = thunderfx(ours)
    torch.testing.assert_close(fast(x), theirs(x))
    assert fast.training
    assert fast.running_mean.equal(theirs.running_mean)
    assert int(fast.num_batches_tracked) == 1


def test_a_training_step() -> None:
    """Loss, backward and optimizer in one compiled function; the optimizer's writes reach the parameters."""

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    theirs = copy.deepcopy(ours)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (ours, theirs)]
    fast = torch.compile(step, backend="thunder")
    for _ in range(3):
        x = torch.randn(5, 3)
        torch.testing.assert_close(fast(ours, optimizers[0], x), step(theirs, optimizers[1], x))
    for p, q in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(p, q)


@pytest.mark.parametrize("dynamic", [None, True])
def test_changing_sizes(dynamic: bool | None) -> None:
    """Dynamo makes a size dynamic; thunder gets it as a number."""
    fast = thunderfx(lambda a: a.reshape(-1) * a.shape[0], dynamic=dynamic)
    for n in (3, 4, 5, 3):
        a = torch.randn(n, 2)
        torch.testing.assert_close(fast(a), a.reshape(-1) * n)
    assert len(fast.subgraphs) == (2 if dynamic is None else 1)


LEFT: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "vmap": (lambda a: torch.vmap(lambda x: x.sin().sum())(a * 2) + 1, "torch.func"),
    "grad": (lambda a: torch.func.grad(lambda x: x.sin().sum())(a.cos()).exp(), "torch.func"),
    "cond": (lambda a: torch.cond(a.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (a + 1,)) * 2, "operator cond"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_torch_runs(name: str) -> None:
    """It is cut out, with a reason; thunder runs what is around it."""
    fn, why = LEFT[name]
    fast = both(fn, torch.randn(4, 3))
    assert [part.reason is None for part in fast.subgraphs] == [True, False, True]
    assert why in (fast.subgraphs[1].reason or "")
    assert "run by torch" in repr(fast.subgraphs[1])
    assert fast.subgraphs[1].traces == fast.subgraphs[1].backward_traces == []


def test_what_cannot_be_cut() -> None:
    """A context around what would be cut: torch runs the whole graph."""

    def fn(a: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return torch.vmap(lambda x: x @ x)(a) + 1

    fast = both(fn, torch.randn(3, 2, 2))
    assert all(part.reason for part in fast.subgraphs)


def test_what_thunder_cannot_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch runs it, with a warning; an error of the program's own is the program's."""
    fast = thunderfx(lambda a: a.sin() + 1)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise TracingError("not this one")

    with monkeypatch.context() as patch:
        patch.setattr("thunder.frontend.compiler.capture", refuse)
        with pytest.warns(UserWarning, match="torch runs it: TracingError: not this one"):
            assert torch.equal(fast(torch.zeros(2)), torch.ones(2))
    assert fast.subgraphs[0].reason == "TracingError: not this one"
    assert torch.equal(fast(torch.zeros(2)), torch.ones(2))


def test_nothing_is_imported_early() -> None:
    """Neither by `import thunder` nor by importing the backend."""
    code = "import sys, thunder.dynamo; print([m for m in ('torch', 'torch._dynamo') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_jitted_callables_in_compiled_functions() -> None:
    """Run as they do elsewhere: Dynamo breaks its graph around them and looks into nothing that they call."""
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    first, second = thunder.jit(lambda x: x.sin() + 1), thunder.jit(model)
    graphs: list[str] = []

    def backend(module: Any, _: Any) -> Any:
        graphs.append(str(module.code))
        return module

    x = torch.ones(2, 3)
    fast = torch.compile(lambda x: second(first(x) * 2) * 3, backend=backend)
    fast_model = torch.compile(second, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(fast(x), model((x.sin() + 1) * 2) * 3)
        torch.testing.assert_close(fast_model(x), model(x))
    assert len(graphs) == 2 and not any("sin" in g or "linear" in g for g in graphs)
    assert thunder.cache_misses(first) == thunder.cache_misses(second) == 1
