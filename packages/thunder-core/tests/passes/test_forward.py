# SPDX-License-Identifier: Apache-2.0
"""Tangents of traces: what is recorded beside a program, and by which rule."""

from __future__ import annotations

import pytest
import torch

import thunder
import thunder.torch as ltorch
from thunder.core import prims
from thunder.core.errors import ThunderError
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.symbol import Symbol
from thunder.core.trace import Trace
from thunder.passes.dce import dce
from thunder.passes.forward import Forward


def lines(fn, *moving):
    """The operations that give a function's result and its tangent, for an input x (and w) of which `moving` move."""
    trace = Trace("f")
    with tracectx(trace):
        x = TensorProxy("x", shape=(2, 3), device="cpu", dtype=torch.float64)
        w = TensorProxy("w", shape=(3, 3), device="cpu", dtype=torch.float64)
        along = {p.name: TensorProxy(f"d{p.name}", like=p) for p in (x, w) if p.name in moving}
        trace.args = [x, w, *along.values()]
        trace.names |= {p.name for p in trace.args}
        with trace.scope() as operations, thunder.core.langctx.set_langctx("torch"):
            out = fn(x, w)
        pushed = Forward(along)
        pushed.push(operations)
        tangent = pushed.tangent(out)
        prims.python_return((pushed.value(out), tangent))
    trace.output = (out, tangent)
    return tangent, [line.strip() for line in dce(trace).python(depth=0, decorators=False).splitlines() if "=" in line]


def test_linear_operations_are_applied_to_tangents():
    tangent, program = lines(lambda x, w: ltorch.linear(x, w), "x")
    assert [line.partition("  #")[0] for line in program][:2] == [
        "t0 = ltorch.linear(x, w)",
        "t1 = prims.linear(dx, w)",
    ]
    assert tangent.name == "t1"


def test_a_gradient_rule_is_enough():
    _, program = lines(lambda x, w: ltorch.sin(x), "x")
    text = "\n".join(program)
    assert "cos(x)" in text and "mul(" in text and "full" not in text  # what it was differentiated by is gone


def test_what_does_not_move_costs_nothing():
    tangent, program = lines(lambda x, w: x.sin() @ w.cos(), "w")
    assert sum("cos" in line for line in program) == 1  # no derivative of sin(x)
    assert tangent is not None
    tangent, program = lines(lambda x, w: x.sin())
    assert tangent is None and len(program) == 1
    assert lines(lambda x, w: x.argmax(), "x")[0] is None
    assert lines(lambda x, w: ltorch.detach(x), "x")[0] is None


def test_rules_are_checked():
    sym = Symbol("strange", lambda x: TensorProxy(like=x), id="test.strange", is_prim=True)
    with pytest.raises(ThunderError, match="strange has no tangent rule and no gradient rule"):
        lines(lambda x, w: sym(x), "x")
    sym.jvp(lambda t, out, x: (t[0], t[0]))
    with pytest.raises(ThunderError, match="returned 2 values instead of 1"):
        lines(lambda x, w: sym(x), "x")
    sym.jvp(lambda t, out, x: t[0].sum())
    with pytest.raises(ThunderError, match=r"returned a cpu f64\[\] for t0, which is a cpu f64\[2, 3\]"):
        lines(lambda x, w: sym(x), "x")


def test_a_rule_of_a_part_is_used():
    inner = Symbol("inner", lambda x: TensorProxy(like=x), id="test.inner", is_prim=True)
    inner.jvp(lambda t, out, x: t[0] * 7)
    outer = Symbol("outer", lambda x: inner(x) + 1, id="test.outer")
    _, program = lines(lambda x, w: outer(x), "x")
    assert any("7" in line and "dx" in line for line in program)
