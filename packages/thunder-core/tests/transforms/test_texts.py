# SPDX-License-Identifier: Apache-2.0
"""Each transform by its text: the program before it and after it is what is in `golden/`, runs, and computes the same.

A change of the compiler that changes a text on purpose writes the files anew, and its author reads the difference:

    THUNDER_UPDATE_GOLDEN=1 python -m pytest packages/thunder-core/tests/transforms/test_texts.py
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn import functional as F

import thunder
from thunder import transforms
from thunder.core import prims
from thunder.core.state import tracectx
from thunder.core.trace import Trace, construct
from thunder.transforms.base import PassContext

GOLDEN = Path(__file__).with_name("golden")
UPDATE = os.environ.get("THUNDER_UPDATE_GOLDEN", "0") not in ("", "0")


class Case(NamedTuple):
    """A program, its arguments, the transforms, and the pass whose result is shown (None: the acquired program)."""

    fn: Any
    args: tuple[Any, ...]
    transforms: list[Any]
    shown: str | None = None


CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    """Adds a case under its function's name."""
    CASES[make.__name__] = make
    return make


@case
def dead_code() -> Case:
    """An operation that nobody reads."""
    return Case(lambda a: (a.exp(), a.sin())[1], (torch.ones(3),), [], "Dead Code Elimination")


@case
def common_subexpressions() -> Case:
    """A product that is computed twice."""
    a, b = torch.ones(3), torch.ones(3)
    return Case(lambda a, b: (a * b).sin() + (a * b).cos(), (a, b), [], "Common Subexpression Elimination")


@case
def functionalization() -> Case:
    """In-place operations, through a view and to an argument."""

    def fn(a: Any) -> Any:
        b = a.sin()
        b[0].mul_(2)
        b.add_(1)
        return b

    return Case(fn, (torch.ones(2, 3),), [])


@case
def autocast() -> Case:
    """A product in bfloat16, a softmax of it in float32."""
    return Case(lambda x, w: F.linear(x, w).float().relu(), (torch.ones(2, 4), torch.eye(4)), [transforms.autocast()])


@case
def constant_folding() -> Case:
    """A vector that depends on nothing."""
    folding = transforms.ConstantFoldingTransform()
    return Case(lambda a: a * torch.arange(3).exp().neg(), (torch.ones(3),), [folding], "Constant Folding")


@case
def pattern() -> Case:
    """One operation for two."""

    @thunder.pattern
    def reciprocal_root(x: Any) -> Any:
        return 1 / torch.sqrt(x)

    @reciprocal_root.replacement
    def _(x: Any) -> Any:
        return torch.rsqrt(x)

    name = f"Replacement of the {reciprocal_root.name}"
    return Case(lambda a: a * (1 / a.sqrt()), (torch.full((3,), 4.0),), [reciprocal_root], name)


def linear() -> torch.nn.Module:
    """With weights that int8 can say."""
    module = torch.nn.Linear(3, 2)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[127.0, 2, 3], [-127, 5, 6]]))
    return module.requires_grad_(False)


@case
def quantization() -> Case:
    """A weight in eight bits."""
    return Case(linear(), (torch.ones(2, 3),), [transforms.QuantizationTransform("int8")])


@case
def lora() -> Case:
    """An adapter beside a weight."""
    return Case(linear(), (torch.ones(2, 3),), [transforms.LoRATransform(rank=1)])


@case
def materialization() -> Case:
    """Parameters that had no memory."""
    module = linear()
    fn = torch.nn.Linear(3, 2, device="meta").requires_grad_(False)
    given = transforms.MaterializationTransform(state_dict=module.state_dict())
    fn.real = [module]  # to compare with
    return Case(fn, (torch.ones(2, 3),), [given])


@case
def cuda_graphs() -> Case:
    """Nothing to capture on the CPU."""
    return Case(lambda a: a.sin().cos(), (torch.ones(3),), [transforms.CUDAGraphTransform()], "CUDA Graphs")


@case
def profile() -> Case:
    """Each line in a range."""
    ranges = transforms.ProfileTransform(nvtx=False)
    return Case(lambda a: a.sin().cos(), (torch.ones(3),), [ranges], "Profile")


@case
def debug() -> Case:
    """A call after each line."""
    return Case(lambda a: a.sin().cos(), (torch.ones(3),), [transforms.debug(lambda op, values: None)], "Debug")


class Noted(thunder.Transform):
    """A user's own: it changes the module, and notes in the traces of a call what is done where."""

    def transform_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """Without dropout."""
        return module.eval()

    def transform_prologue(self, trace: Trace, context: PassContext) -> Trace:
        """At the end."""
        return with_note(trace, "the call has been checked")

    def transform_computation(self, trace: Trace, context: PassContext) -> Trace:
        """At the end."""
        return with_note(trace, "the program has run")

    def transform_epilogue(self, trace: Trace, context: PassContext) -> Trace:
        """At the end."""
        return with_note(trace, "effects have happened")


def with_note(trace: Trace, text: str) -> Trace:
    """The same with a comment above the last line."""
    with construct(trace, "Noted") as out, tracectx(out):
        out.bound_symbols += trace.bound_symbols[:-1]
        prims.comment(text)
        out.record(trace.bound_symbols[-1])
    return out


@case
def own() -> Case:
    """A dropout that the module's copy is without."""
    module = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.ReLU())
    found = Case(module, (torch.ones(3),), [Noted()], "Noted")
    module.real = [torch.relu]  # to compare with
    return found


class Counting(torch.nn.Module):
    """Has an effect, so that there is an epilogue."""

    calls = 0

    def forward(self, a: Any) -> Any:
        """One more."""
        self.calls += 1
        return a + 1


def test_hooks_for_each_trace_of_a_call() -> None:
    """What the hooks for prologue and epilogue make is what runs, and its text is a program."""
    jitted = thunder.jit(Counting(), transforms=[Noted()])
    assert torch.equal(jitted(torch.ones(2)), torch.full((2,), 2.0)) and jitted.calls == 1
    for traces, note in (
        (thunder.last_prologue_traces(jitted), "the call has been checked"),
        (thunder.last_epilogue_traces(jitted), "effects have happened"),
    ):
        changed = thunder.diff_traces(traces[0], traces[-1], context=0).splitlines()[3:]
        assert changed == [f"+  # {note}"]
        exec(str(traces[-1]), traces[-1].python_ctx())


def before_and_after(found: Case) -> tuple[Trace, Trace, Any]:
    """The program before the transform and after it, and what it gave."""
    if found.shown is None:
        jitted = thunder.jit(found.fn, transforms=found.transforms)
        result = jitted(*_copies(found.args))
        plain = getattr(found.fn, "real", [found.fn])[0]
        before = thunder.trace()(plain, *_copies(found.args))
        return before, thunder.last_traces(jitted)[0], result
    jitted = thunder.jit(found.fn, transforms=found.transforms)
    result = jitted(*_copies(found.args))
    traces = thunder.last_traces(jitted)
    i = next(i for i, t in enumerate(traces) if t.provenance and t.provenance.name == found.shown)
    return traces[i - 1], traces[i], result


def _copies(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(a.clone() for a in args)


@pytest.mark.parametrize("name", CASES)
def test_texts(name: str) -> None:
    """What is printed is what it was."""
    before, after, _ = before_and_after(CASES[name]())
    assert_text(name, f"==== before ====\n{before.python(depth=0)}\n\n==== after ====\n{after.python(depth=0)}\n")


def assert_text(name: str, text: str) -> None:
    """It is the one that is kept under that name."""
    text = re.sub(r"\(took \d+ milliseconds\)", "(took 0 milliseconds)", text)
    path = GOLDEN / f"{name}.txt"
    if UPDATE:
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "THUNDER_UPDATE_GOLDEN=1 writes the files anew"


def rematerialized(remat: str) -> tuple[Trace, Trace, torch.Tensor, torch.Tensor]:
    """The forward and the backward program of a chain, its result and its gradient."""
    jitted = thunder.jit(lambda a: a.tanh().exp().sum(), remat=remat)
    a = torch.linspace(0, 1, 1024).requires_grad_()
    result = jitted(a)
    result.backward()
    return thunder.last_traces(jitted)[-1], thunder.last_backward_traces(jitted)[-1], result, a.grad


def test_rematerialization() -> None:
    """What forward keeps and backward computes again: two values without it, none with it."""
    kept, again = rematerialized("none"), rematerialized("all")
    pairs = (("before", kept), ("after", again))
    text = "\n\n".join(f"==== {when} ====\n{f.python(depth=0)}\n\n{b.python(depth=0)}" for when, (f, b, *_) in pairs)
    assert_text("rematerialization", f"{text}\n")
    for found, expected in zip(again[2:], kept[2:]):
        assert torch.equal(found, expected)
    for forward, backward, _, expected in (kept, again):
        namespace, other = forward.python_ctx(), backward.python_ctx()
        exec(str(forward), namespace)
        exec(str(backward), other)
        _, saved = namespace["computation"](torch.linspace(0, 1, 1024))
        (found,) = other["backward"](list(saved), torch.ones(()))
        assert torch.equal(found, expected)


def test_no_text_is_left_over() -> None:
    """Each file belongs to a case."""
    assert {path.stem for path in GOLDEN.iterdir()} == {*CASES, "rematerialization"}


@pytest.mark.parametrize("name", CASES)
def test_results(name: str) -> None:
    """The transformed program gives what eager gives, and its text alone does too."""
    found = CASES[name]()
    _, after, result = before_and_after(found)
    plain = getattr(found.fn, "real", [found.fn])[0]
    expected = plain(*_copies(found.args))
    torch.testing.assert_close(result.to(expected.dtype), expected)
    jitted = thunder.jit(found.fn, transforms=found.transforms)
    jitted(*found.args)
    prologue = thunder.last_prologue_traces(jitted)[-1]
    namespace = after.python_ctx()
    exec(str(after), namespace)
    inputs = prologue.python_callable()(*_copies(found.args))
    torch.testing.assert_close(namespace[after.name](*inputs).to(expected.dtype), expected)
