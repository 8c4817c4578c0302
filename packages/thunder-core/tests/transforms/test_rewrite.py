# SPDX-License-Identifier: Apache-2.0
"""`RewritePass`: what is written by hand is what to replace; names, later readers and the output follow."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder
import thunder.torch as ltorch
from thunder.core import prims
from thunder.core.errors import ThunderError
from thunder.core.symbol import BoundSymbol
from thunder.passes.rewrite import rewrite
from thunder.transforms.base import PassContext


def lines(f: Any, name: str) -> list[str]:
    """The lines of the program after a pass."""
    (trace,) = [t for t in thunder.last_traces(f) if t.provenance is not None and t.provenance.name == name]
    kept = [op for op in trace.bound_symbols if op.out_names or op.sym.is_return]
    return [str(op).splitlines()[0].partition("  #")[0] for op in kept]


class Relu6(thunder.RewritePass):
    """Bounds every relu."""

    def rewrite(self, op: BoundSymbol) -> Any:
        return ltorch.relu6(*op.args) if op.sym is ltorch.relu else None


def test_replacement() -> None:
    """It has the names of what it replaces; gradients are those of what is there."""
    a = torch.tensor([-1.0, 3.0, 9.0], requires_grad=True)
    f = thunder.jit(lambda a: a.relu() * 2, transforms=[Relu6()])
    result = f(a)
    assert torch.equal(result, torch.tensor([0.0, 6.0, 12.0]))
    assert lines(f, "Relu6") == ["t0 = ltorch.relu6(a)", "t1 = ltorch.mul(t0, 2)", "return t1"]
    result.sum().backward()
    assert a.grad is not None
    assert torch.equal(a.grad, torch.tensor([0.0, 2.0, 0.0]))


def test_nothing_to_replace() -> None:
    """The trace stays the same one."""
    f = thunder.jit(lambda a: a.sin(), transforms=[Relu6()])
    f(torch.ones(2))
    assert "Relu6" not in [t.provenance.name for t in thunder.last_traces(f) if t.provenance]


class WithoutClones(thunder.RewritePass):
    """Gives the readers of a copy what was copied."""

    def rewrite(self, op: BoundSymbol) -> Any:
        return op.args[0] if op.sym is ltorch.clone else None


def test_an_earlier_value() -> None:
    """Readers read it instead, the return too."""
    f = thunder.jit(lambda a: a.sin().clone().clone().cos().clone(), transforms=[WithoutClones()])
    torch.testing.assert_close(f(torch.ones(2)), torch.ones(2).sin().cos())
    assert lines(f, "WithoutClones") == ["t0 = ltorch.sin(a)", "t3 = ltorch.cos(t0)", "return t3"]


class Bounded(thunder.RewritePass):
    """Keeps every product and bounds it."""

    def rewrite(self, op: BoundSymbol) -> Any:
        return ltorch.clamp(self.record(op), 0, 1) if op.sym is ltorch.mul else None


def test_what_is_kept_and_added_to() -> None:
    """Later readers read the new value; what was kept has its name."""
    f = thunder.jit(lambda a: a * 2 + 1, transforms=[Bounded()])
    torch.testing.assert_close(f(torch.tensor([-1.0, 0.2, 3.0])), torch.tensor([1.0, 1.4, 2.0]))
    assert lines(f, "Bounded")[0] == "t0 = ltorch.mul(a, 2)"
    assert lines(f, "Bounded")[1].endswith("ltorch.clamp(t0, 0, 1)")


class Several(thunder.RewritePass):
    """Takes the largest elements apart in another way, and returns one more value."""

    phases = ("before_grad", "before_execution")

    def start(self) -> None:
        self.tops = [op for op in self.trace.bound_symbols if op.sym is ltorch.topk]

    def rewrite(self, op: BoundSymbol) -> Any:
        if self.context.phase != "before_grad" or op.sym is not ltorch.topk:
            return None
        values, positions = ltorch.sort(op.args[0], descending=True)
        return ltorch.getitem(values, slice(0, op.args[1])), ltorch.getitem(positions, slice(0, op.args[1]))

    def rewrite_output(self, output: Any) -> Any:
        return (*output, len(self.tops)) if self.context.phase == "before_grad" else output


def test_several_results_and_the_output() -> None:
    """Each result by itself; `start` looks at the trace; the pass's attributes are of one run."""
    several = Several()
    f = thunder.jit(lambda a: tuple(a.topk(2)), transforms=[several])
    a = torch.tensor([1.0, 3.0, 2.0], requires_grad=True)
    values, positions, count = f(a)
    assert (values.tolist(), positions.tolist(), count) == ([3.0, 2.0], [1, 2], 1)
    values.sum().backward()
    assert a.grad is not None
    assert a.grad.tolist() == [0.0, 1.0, 1.0]
    assert not hasattr(several, "tops")


class Silent(thunder.RewritePass):
    """Drops notes and adds one of its own at the end."""

    phases = ("after_execution",)

    def rewrite(self, op: BoundSymbol) -> Any:
        return () if op.sym is prims.comment else None

    def rewrite_output(self, output: Any) -> Any:
        prims.comment("done")
        return output


class Noted(thunder.RewritePass):
    """Notes each sine."""

    def rewrite(self, op: BoundSymbol) -> Any:
        prims.comment("dropped where the operation stays as it is")
        if op.sym is not ltorch.sin:
            return None
        prims.comment("a sine")
        return self.record(op)


def test_operations_without_results() -> None:
    """Added before an operation that stays; dropped by an empty tuple."""
    f = thunder.jit(lambda a: a.sin(), transforms=[Noted()])
    f(torch.ones(2))
    assert "# a sine\n  t0 = " in str(thunder.last_traces(f)[-1])
    assert str(thunder.last_traces(f)[-1]).count("dropped") == 1
    g = thunder.jit(lambda a: a.sin(), transforms=[Noted(), Silent()])
    g(torch.ones(2))
    text = str(thunder.last_traces(g)[-1])
    assert "a sine" not in text
    assert "# done\n  return" in text


def test_what_does_not_fit() -> None:
    """Another type, another number of results, a phase that is none."""

    class Wrong(thunder.RewritePass):
        def rewrite(self, op: BoundSymbol) -> Any:
            return ltorch.sum(op.args[0]) if op.sym is ltorch.sin else None

    with pytest.raises(ThunderError, match=r"Wrong replaces a cpu f32\[2\] by a cpu f32\[\]:\n  t0 = ltorch.sin"):
        thunder.jit(lambda a: a.sin(), transforms=[Wrong()])(torch.ones(2))

    class Two(thunder.RewritePass):
        def rewrite(self, op: BoundSymbol) -> Any:
            return op.args * 2 if op.sym is ltorch.sin else None

    with pytest.raises(ThunderError, match="Two: the replacement of sin returned 2 values instead of 1"):
        thunder.jit(lambda a: a.sin(), transforms=[Two()])(torch.ones(2))
    for phases in (("before",), "before_grad"):
        with pytest.raises(TypeError, match=r"phases must be a tuple of names among before_grad, .* not 'before"):
            type("Bad", (thunder.RewritePass,), {"phases": phases})


def test_a_function_as_a_pass() -> None:
    """For passes of plugins: None for what nobody reads."""
    trace = thunder.trace()(lambda a: a.topk(2)[0], torch.ones(3))

    def replace(op: BoundSymbol) -> Any:
        if op.sym is not ltorch.topk:
            return None
        values, _ = ltorch.sort(op.args[0], descending=True)
        return ltorch.getitem(values, slice(0, op.args[1])), None

    out = rewrite(trace, "Sorted", replace)
    assert "topk" not in out.python(depth=0)
    assert out.output.name == trace.output.name
    assert rewrite(out, "Sorted", replace) is out


def test_by_itself() -> None:
    """It runs on any trace, without being compiled."""
    trace = thunder.trace()(lambda a: a.relu(), torch.ones(2))
    out = Relu6().transform_computation(trace, PassContext("before_grad"))
    assert "ltorch.relu6(a)" in str(out)
    assert "ltorch.relu(a)" in str(trace)
