# SPDX-License-Identifier: Apache-2.0
"""Small programs and every text that comes of them: what is printed is what is in `golden/`, and it runs.

A change of the compiler that changes a text on purpose writes the files anew, and its author reads the difference:

    THUNDER_UPDATE_GOLDEN=1 python -m pytest packages/thunder-core/tests/test_golden_traces.py
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import thunder
from thunder.core.pytree import tree_flatten, tree_leaves, tree_map
from thunder.core.trace import Trace
from thunder.core.transforms import grad
from thunder.extend import OperatorExecutor

GOLDEN = Path(__file__).with_name("golden")
UPDATE = os.environ.get("THUNDER_UPDATE_GOLDEN", "0") not in ("", "0")


class Program(NamedTuple):
    """A function or module, its arguments, and how it is compiled."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = {}  # noqa: RUF012  nobody writes to it
    jit: Callable[[Any], Any] = thunder.jit
    shows_prologue: bool = False


def fresh(x: Any) -> Any:
    """The same arguments in memory of their own."""
    return tree_map(
        lambda t: t.detach().clone().requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t, x
    )


PROGRAMS: dict[str, Callable[[], Program]] = {}


def program(make: Callable[[], Program]) -> Callable[[], Program]:
    """Adds a program under its function's name."""
    PROGRAMS[make.__name__] = make
    return make


# -- the programs ------------------------------------------------------------------------------------------------------
@program
def elementwise() -> Program:
    """Broadcasting, type promotion, a Python number on the left."""
    return Program(lambda a, b: 2 - torch.tanh(a) * b, (torch.randn(2, 3), torch.arange(3)))


@program
def reductions() -> Program:
    """One over all, one over a dimension, one that keeps it."""
    return Program(lambda a: (a.sum(), a.mean(1), torch.amax(a, 0, keepdim=True)), (torch.randn(4, 3),))


@program
def shapes() -> Program:
    """Reshaping, permuting, indexing and joining."""

    def fn(a: Any) -> Any:
        rows = a.reshape(2, 2, 3).transpose(0, 1)
        return torch.cat([rows[:, -1], a[1:3]]), a[None, ..., ::2]

    return Program(fn, (torch.randn(4, 3),))


@program
def linear_gelu() -> Program:
    """Two operations with many parts."""
    functional = torch.nn.functional
    return Program(
        lambda x, weight, bias: functional.gelu(functional.linear(x, weight, bias)),
        (torch.randn(2, 3), torch.randn(4, 3), torch.randn(4)),
    )


@program
def write_to_an_input() -> Program:
    """An in-place operation: a new value, copied into the argument's memory at the end."""

    def fn(a: Any, b: Any) -> Any:
        a.mul_(2)
        return a + b

    return Program(fn, (torch.randn(2, 3), torch.randn(3)))


@program
def write_to_a_view() -> Program:
    """A write to a part of a tensor changes the tensor."""

    def fn(a: Any) -> Any:
        b = a + 1
        b[0] = 5
        b.t().select(0, 1).mul_(3)
        return b * a

    return Program(fn, (torch.randn(2, 3),))


@program
def numbers() -> Program:
    """Arguments that are no tensors are constants of the program and checks of its prologue."""

    def fn(a: Any, dim: int, scale: float, root: bool, name: str) -> Any:
        out = getattr(a, name)(dim) * scale
        return out.sqrt() if root else out

    return Program(fn, (torch.rand(2, 3), 1, 0.5, True, "sum"), shows_prologue=True)


@program
def containers() -> Program:
    """Nested arguments and results; one of the tensors is not used."""

    def fn(inputs: Any, *, extra: Any) -> Any:
        first, (second, count) = inputs["pair"]
        return {"sum": inputs["x"] + first, "rest": [second * count, (extra[1], None)]}

    a, b = torch.randn(2, 3), torch.randn(3)
    return Program(fn, ({"x": a, "pair": [b, (a + 1, 3)]},), {"extra": (b + 1, "k")}, shows_prologue=True)


@program
def module() -> Program:
    """Parameters are inputs that the prologue fetches."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1, bias=False)).requires_grad_(False)
    return Program(net, (torch.randn(2, 3),), shows_prologue=True)


@program
def training() -> Program:
    """A forward and a backward program, and what the one keeps for the other."""

    def fn(x: Any, weight: Any, bias: Any) -> Any:
        hidden = torch.tanh(x @ weight + bias)
        return (hidden * hidden).mean(), hidden

    weight, bias = torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    return Program(fn, (torch.randn(2, 3), weight, bias))


@program
def gradients() -> Program:
    """The gradients as the result: the cotangents are ones, integers have none."""
    return Program(
        lambda a, b, n: (a * b.sin()) * n,
        (torch.randn(2, 3), torch.randn(3), torch.arange(3)),
        jit=lambda fn: grad(thunder.jit(fn)),
    )


@program
def random_numbers() -> Program:
    """Draws stay in their order, used or not."""

    def fn(a: Any) -> Any:
        torch.rand(2)
        return a + torch.randn_like(a), torch.randint(0, 9, (2,))

    return Program(fn, (torch.randn(2, 3),))


@program
def an_executor() -> Program:
    """An executor's own operator, with two results of which one is not read, beside torch's operations."""
    executor = OperatorExecutor("pairs", version="0.1")
    pair = executor.register_operator(
        "pair", like=lambda a, *, k: (a * k, a + k), fn=lambda a, *, k: (torch.mul(a, k), torch.add(a, k))
    )
    return Program(
        lambda a: pair(a, k=3)[1].relu(), (torch.randn(2, 3),), jit=lambda fn: thunder.jit(fn, executors=[executor])
    )


# -- their texts -------------------------------------------------------------------------------------------------------
class Compiled:
    """A program that was compiled, and its traces."""

    def __init__(self, name: str):
        torch.manual_seed(0)
        self.program = PROGRAMS[name]()
        self.jitted = self.program.jit(self.program.fn)
        torch.manual_seed(1)
        self.result = self.jitted(*fresh(self.program.args), **fresh(self.program.kwargs))
        traces = thunder.last_traces(self.jitted)
        self.acquired, self.execution = traces[0], traces[-1]
        (self.prologue,) = thunder.last_prologue_traces(self.jitted)
        self.backward = thunder.last_backward_traces(self.jitted)[-1:]

    def stages(self) -> Iterator[tuple[str, Trace]]:
        """Its traces by the headings that they have in the file."""
        if self.program.shows_prologue:
            yield "prologue", self.prologue
        yield "acquired", self.acquired
        yield "execution", self.execution
        for trace in self.backward:
            yield "backward", trace

    def text(self) -> str:
        """All that is printed, without the times that passes took."""
        parts = [f"==== {heading} ====\n{trace}\n" for heading, trace in self.stages()]
        return re.sub(r"\(took \d+ milliseconds\)", "(took 0 milliseconds)", "\n".join(parts))


@pytest.fixture(scope="module", params=PROGRAMS)
def compiled(request: pytest.FixtureRequest) -> Compiled:
    """Each program, compiled once."""
    return Compiled(request.param)


def executed(trace: Trace) -> Callable[..., Any]:
    """The function that a trace's text defines."""
    namespace = trace.python_ctx()
    exec(str(trace), namespace)
    return namespace[trace.name]  # type: ignore[no-any-return]


def same(found: Any, wanted: Any) -> None:
    """Fails unless two results are alike, in structure and in every bit."""
    assert tree_flatten(found)[1] == tree_flatten(wanted)[1]
    for x, y in zip(tree_leaves(found), tree_leaves(wanted)):
        if isinstance(y, torch.Tensor):
            torch.testing.assert_close(x.detach(), y.detach(), rtol=1e-6, atol=1e-6)
        else:
            assert x == y


def test_texts(compiled: Compiled, request: pytest.FixtureRequest) -> None:
    """What is printed is what it was."""
    name = request.node.callspec.params["compiled"]
    path = GOLDEN / f"{name}.txt"
    if UPDATE:
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(compiled.text(), encoding="utf-8")
    assert compiled.text() == path.read_text(encoding="utf-8"), "THUNDER_UPDATE_GOLDEN=1 writes the files anew"


def test_no_text_is_left_over() -> None:
    """Each file belongs to a program."""
    assert {path.stem for path in GOLDEN.iterdir()} == set(PROGRAMS)


def test_results(compiled: Compiled) -> None:
    """Compiled, a program does what it does without thunder: results, gradients, writes to its arguments."""
    p = compiled.program
    args, kwargs, theirs = fresh(p.args), fresh(p.kwargs), fresh(p.args)
    torch.manual_seed(1)
    found = compiled.jitted(*args, **kwargs)
    torch.manual_seed(1)
    wanted = p.fn(*theirs, **fresh(p.kwargs))
    if p.jit is not thunder.jit and isinstance(found, list):
        inputs = [t.detach().requires_grad_() for t in tree_leaves(theirs) if t.is_floating_point()]
        out = p.fn(*inputs, *theirs[len(inputs) :])
        wanted = list(torch.autograd.grad(out, inputs, torch.ones_like(out)))
    same(found, wanted)
    same(args, theirs)


def test_texts_run(compiled: Compiled) -> None:
    """The texts alone do the same: the prologue finds the inputs, the program as acquired and as executed computes."""
    p = compiled.program
    results = []
    for trace in (compiled.acquired, compiled.execution, compiled.execution):
        args, kwargs = fresh(p.args), fresh(p.kwargs)
        inputs = executed(compiled.prologue)(*args, **kwargs)
        assert len(inputs) == len(trace.args)
        run = trace.python_callable() if results[1:] else executed(trace)
        torch.manual_seed(1)
        results.append((run(*inputs), args))
    (acquired, after), (execution, after_execution), from_trace = results
    same((execution, after_execution), from_trace)
    same(after, after_execution)
    if compiled.backward:
        execution = execution[0]
    if p.jit is thunder.jit:
        same(execution, acquired)


def test_backward_text_runs(compiled: Compiled) -> None:
    """What the forward text returns besides the result is what the backward text needs for torch's gradients."""
    p = compiled.program
    for trace in compiled.backward:
        args = fresh(p.args)
        inputs = executed(compiled.prologue)(*args)
        outputs, saved = executed(compiled.execution)(*inputs)
        cotangents = [torch.randn_like(out) for out in outputs]
        found = executed(trace)(list(saved), *cotangents)
        wrt = [a for a in args if a.requires_grad]
        wanted = torch.autograd.grad(p.fn(*args), wrt, cotangents)
        same(found, list(wanted))


def test_printing_is_stable(compiled: Compiled) -> None:
    """A trace prints the same each time, and the program that its text defines is traced to the same text."""
    for _, trace in compiled.stages():
        assert str(trace) == repr(trace) == trace.python()
    torch.manual_seed(1)
    p = compiled.program
    inputs = executed(compiled.prologue)(*fresh(p.args), **fresh(p.kwargs))
    inputs = [x.detach() for x in inputs]
    function = compiled.acquired
    again = thunder.trace()(executed(function), *inputs)
    assert str(again) == str(function)
