# SPDX-License-Identifier: Apache-2.0
"""What a pass changed, and where lines come from."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import thunder
from thunder.core import devices, dtypes, prims
from thunder.core.history import diff_traces, provenance
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.trace import Trace
from thunder.transforms.cse import cse
from thunder.transforms.dce import dce


def traced(fn: Any, *skipped: str) -> Trace:
    """The trace of `fn` on two tensors; `skipped` are names that are taken."""
    args = [TensorProxy(n, shape=(3,), device=devices.cpu, dtype=dtypes.float32) for n in "ab"]
    trace = Trace("f", args=args)
    trace.names.update(skipped)
    with tracectx(trace):
        trace.output = fn(*args)
        prims.python_return(trace.output)
    return trace


def program(a: Any, b: Any) -> Any:
    """With a common subexpression and a dead line."""
    prims.exp(a)
    return prims.mul(prims.sin(a), prims.add(prims.sin(a), b))


def test_names_do_not_matter() -> None:
    """The same program under other names is no difference."""
    assert diff_traces(traced(program), traced(program, "t1", "t3")) == ""
    assert diff_traces(traced(program), traced(program)) == ""


def test_what_a_pass_changed() -> None:
    """Lines that went and came, with what is around them."""
    before = traced(program)
    text = diff_traces(before, cse(dce(before)), context=0)
    assert text.splitlines() == [
        "--- f, as acquired",
        "+++ f, after Common Subexpression Elimination",
        "@@ -2 +1,0 @@",
        '-  t0 = prims.exp(a)  # t0: "cpu f32[3]"',
        "@@ -4,2 +3 @@",
        '-  t2 = prims.sin(a)  # t2: "cpu f32[3]"',
        '-  t3 = prims.add(t2, b)  # t3: "cpu f32[3]"',
        '+  t3 = prims.add(t1, b)  # t3: "cpu f32[3]"',
    ]


def test_other_values_get_other_names() -> None:
    """A name that means something else in the second trace is written so that nobody mistakes it."""

    def one(a: Any, b: Any) -> Any:
        return prims.sin(prims.exp(a))

    def other(a: Any, b: Any) -> Any:
        return prims.sin(prims.add(prims.exp(a), b))

    lines = diff_traces(traced(one), traced(other)).splitlines()
    assert [line for line in lines if line.startswith("+ ")] == [
        '+  t1 = prims.add(t0, b)  # t1: "cpu f32[3]"',
        '+  t2 = prims.sin(t1)  # t2: "cpu f32[3]"',
        "+  return t2",
    ]


def test_traces_only() -> None:
    """Anything else is refused."""
    with pytest.raises(TypeError, match=r"diff_traces takes two traces, such as thunder\.last_traces"):
        diff_traces(traced(program), "text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="provenance takes the traces of one program"):
        provenance([])


def test_where_lines_come_from() -> None:
    """The pass, the operation, the user's line; forward and backward."""

    def fn(a: Any) -> Any:
        x = torch.nn.functional.silu(a)
        return x * 2

    f = thunder.jit(fn)
    f(torch.randn(3, requires_grad=True)).sum().backward()
    lines = thunder.provenance(thunder.last_traces(f))
    found = {line.operation.sym.name: line for line in lines}
    assert found["mul"].source is not None and found["mul"].source.text() == "return x * 2"
    assert found["silu"].written_by == "Transform for execution"
    assert found["silu"].origin is not None and found["silu"].origin.sym.module == "thunder.torch"
    text = str(lines)
    assert "torch.nn.functional.silu(a" in text and "for t" in text and "test_history.py:" in text
    backward = thunder.provenance(thunder.last_backward_traces(f))
    assert {line.source.text() for line in backward if line.source} <= {
        "x = torch.nn.functional.silu(a)",
        "return x * 2",
    }
    assert any(line.source for line in backward)


def test_passes_of_a_jitted_function() -> None:
    """Each pair of traces that follow each other can be compared."""
    f = thunder.jit(lambda a: torch.softmax(a.sin() + a.sin(), -1))
    f(torch.randn(2, 3))
    traces = thunder.last_traces(f)
    for a, b in itertools.pairwise(traces):
        assert isinstance(thunder.diff_traces(a, b), str)
    assert "torch.softmax" in thunder.diff_traces(traces[0], traces[-1])
