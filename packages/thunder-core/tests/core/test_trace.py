# SPDX-License-Identifier: Apache-2.0
"""Traces: names, scopes, derivation, and text that becomes a function."""

from __future__ import annotations

import inspect
import keyword
import linecache
import traceback
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recording import float_tensor as tensor

from thunder.core import prims
from thunder.core.errors import TraceVerificationError
from thunder.core.state import current_trace, tracectx
from thunder.core.trace import Provenance, Trace, construct


@given(
    st.lists(
        st.one_of(st.text(max_size=6), st.sampled_from(["t0", "t1", "a", "torch", "for", "float", "a_0", "prims"]))
    )
)
def test_names_are_identifiers_and_all_different(wanted: list[str]) -> None:
    """Whatever is asked for: taken names, keywords, no identifiers, names of what the text refers to."""
    trace = Trace(args=[tensor("a")])
    got = ["a"]
    for name in wanted:
        got += [trace.add_name(name), trace.make_name()]
    assert len(set(got)) == len(got)
    for name in got:
        assert name.isidentifier()
        assert not keyword.iskeyword(name)
        assert name not in ("torch", "prims", "float")
    assert set(got) == trace.names


def test_names_that_are_free_are_kept() -> None:
    """So that a trace has the user's names."""
    trace = Trace()
    assert [trace.add_name(n) for n in ("logits", "input", "logits", "logits")] == [
        "logits",
        "input",
        "logits_0",
        "logits_1",
    ]
    assert [trace.make_name() for _ in range(3)] == ["t0", "t1", "t2"]
    assert trace.add_name("t3") == "t3"
    assert trace.make_name() == "t4"
    assert trace.make_name("x") == "x0"


def test_recording_and_scopes() -> None:
    """What is recorded goes to the innermost scope; a scope that is left by an error is closed."""
    trace = Trace(args=[a := tensor("a", 2)])
    assert current_trace() is None
    with tracectx(trace):
        assert current_trace() is trace
        b = prims.sin(a)
        with trace.scope() as inner:
            c = prims.cos(a)
        prims.neg(b)
        with pytest.raises(ValueError, match="out"), trace.scope():
            raise ValueError("out")
        prims.neg(c)
        with tracectx(None):
            assert current_trace() is None
    assert current_trace() is None
    assert [op.sym.name for op in trace.bound_symbols] == ["sin", "neg", "neg"]
    assert [op.sym.name for op in inner] == ["cos"]
    assert trace.scopes == [trace.bound_symbols]


def test_tracing_ends_with_an_error_too() -> None:
    """The state of the thread is as it was."""
    with pytest.raises(ZeroDivisionError), tracectx(Trace()):
        raise ZeroDivisionError
    assert current_trace() is None


def test_derived_traces_share_nothing_that_changes() -> None:
    """A pass writes into a trace of its own."""
    trace = Trace("f", args=[a := tensor("a", 2)], signature="a, b")
    trace.info["k"] = 1
    with tracectx(trace):
        trace.output = prims.sin(a)
    out = trace.derive("A pass")
    assert (out.name, out.args, out.signature, out.output) == ("f", [a], "a, b", trace.output)
    assert out.bound_symbols == []
    assert str(out.provenance) == "A pass"
    assert out.make_name() == "t1"
    assert trace.make_name() == "t1"
    out.args.append(tensor("c"))
    out.info["k"] = 2
    assert (len(trace.args), trace.info) == (1, {"k": 1})


def test_provenance_tells_the_pass_and_its_time() -> None:
    """As the first line of the text."""
    with construct(Trace("f"), "Some Pass") as out:
        pass
    assert out.provenance.name == "Some Pass"
    assert out.provenance.nanoseconds >= 0
    assert str(out).startswith("# Constructed by Some Pass (took 0 milliseconds)\n")
    assert str(Provenance("P", 12_345_678)) == "P (took 12 milliseconds)"
    assert str(Provenance("P")) == "P"
    assert not str(Trace("f")).startswith("# Constructed")


def program(fill: Any = 2.0) -> Trace:
    """sin(a) * b + fill."""
    a, b = tensor("a", 2), tensor("b", 2)
    trace = Trace("f", args=[a, b])
    with tracectx(trace):
        trace.output = prims.add(prims.mul(prims.sin(a), b), fill)
        prims.python_return(trace.output)
    return trace


def test_repr_is_str_is_python() -> None:
    """One text under three names."""
    trace = program()
    assert repr(trace) == str(trace) == trace.python()


def test_decorators_and_depth() -> None:
    """Both can be left out."""
    trace = program()
    assert "@torch.no_grad()\n@no_autocast\ndef f(a, b):" in trace.python()
    assert "@" not in trace.python(decorators=False)
    assert inspect.signature(trace.python_callable()) == inspect.signature(trace.python_callable(decorators=False))


def test_the_function_of_a_trace_shows_its_lines_in_tracebacks() -> None:
    """Its source can be looked up, as that of any other function, and stays so when another trace is compiled."""
    trace = program()
    fn = trace.python_callable()
    trace.python_callable()
    with pytest.raises(RuntimeError) as caught:
        fn(torch.ones(2), torch.ones(3))
    lines = "".join(traceback.format_exception(caught.value))
    assert "t1 = prims.mul(t0, b)" in lines
    inner = inspect.unwrap(fn)
    assert "prims.add(t1, 2.0)" in inspect.getsource(inner)
    assert inner.__code__.co_filename in linecache.cache


def test_an_empty_trace_is_a_function_too() -> None:
    """It returns None."""
    assert Trace("f").python_callable()() is None
    trace = Trace("f", signature="*args, **kwargs")
    assert trace.python_callable()(1, b=2) is None


def test_the_output_is_what_the_return_returns() -> None:
    """Read and written there; a trace that derives from it has it until it has a return of its own."""
    trace = program()
    other = Trace("g", args=trace.args)
    other.bound_symbols[:] = trace.bound_symbols
    assert trace.output is trace.bound_symbols[-1].args[0]
    derived = trace.derive()
    assert derived.output is trace.output
    before, a = trace.output, trace.args[0]
    trace.output = a, before
    assert trace.bound_symbols[-1].args == ((a, before),)
    assert trace.python().endswith(f"return (a, {before.name})")
    assert other.output is before  # operations are shared between traces and never changed
    derived.output = a
    with tracectx(derived):
        prims.python_return(before)
    with pytest.raises(TraceVerificationError, match=rf"was set to \(a\), .* returns \({before.name}\)"):
        derived.check_output()
    derived.output = before
    derived.check_output()
