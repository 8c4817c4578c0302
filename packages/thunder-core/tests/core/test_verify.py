# SPDX-License-Identifier: Apache-2.0
"""The verifier: each kind of illegality is found, and the message shows the lines around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder
from thunder.core import devices, dtypes, prims
from thunder.core.errors import TraceVerificationError
from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.state import SourceLine, tracectx
from thunder.core.symbol import BoundSymbol, OpTags, Symbol
from thunder.core.trace import Provenance, Trace
from thunder.core.verify import verify, verify_if_asked


def tensor(name: str, *shape: int, dtype: dtypes.dtype = dtypes.float32, device: Any = devices.cpu) -> TensorProxy:
    """A tensor."""
    return TensorProxy(name, shape=shape, device=device, dtype=dtype)


def call(sym: Symbol, *args: Any, out: Any, subsymbols: Any = (), **kwargs: Any) -> BoundSymbol:
    """A call written by hand."""
    return BoundSymbol(sym, args, kwargs, out, subsymbols, SourceLine("model.py", 12))


def program(*operations: BoundSymbol, args: Any = None, returns: Any = ()) -> Trace:
    """A trace made of these operations."""
    trace = Trace("f", args=[A, B] if args is None else args, provenance=Provenance("A careless pass"))
    trace.bound_symbols[:] = [*operations, BoundSymbol(prims.python_return, (returns,), {}, None)]
    return trace


A, B = tensor("a", 2, 3), tensor("b", 2, 3)
SIN = call(prims.sin, A, out=tensor("c", 2, 3))
COS = call(prims.cos, A, out=tensor("c", 2, 3))
DEL_A = BoundSymbol(prims.python_del, (A,), {}, None)


def composite(*parts: BoundSymbol, out: Any = None) -> BoundSymbol:
    """A composite of `a` that is said to decompose into these."""
    return call(Symbol("gelu", lambda a: a), A, out=tensor("c", 2, 3) if out is None else out, subsymbols=list(parts))


LEGAL: dict[str, Callable[[], Trace]] = {
    "nothing": program,
    "an operation": lambda: program(SIN, returns=SIN.output),
    "del after the last use": lambda: program(SIN, DEL_A, returns=[SIN.output, {"b": B}]),
    "a composite": lambda: program(composite(SIN), returns=SIN.output),
    "a composite that returns its input": lambda: program(composite(out=A), returns=A),
    "a composite that returns an input and a number": lambda: program(composite(SIN, out=(A, SIN.output, 3))),
    "inputs unpacked": lambda: program(BoundSymbol(prims.unpack_trivial, (A,), {}, A), SIN),
    "the same name inside two composites": lambda: program(composite(SIN), call(prims.neg, B, out=tensor("d", 2, 3))),
}

ILLEGAL: dict[str, tuple[Callable[[], Trace], str]] = {
    "made twice": (lambda: program(SIN, COS), "c is defined a second time"),
    "an input made again": (lambda: program(call(prims.sin, A, out=tensor("b", 2, 3))), "b is defined a second time"),
    "made twice by one call": (
        lambda: program(call(Symbol("pair", lambda a: a), A, out=(tensor("a", 2, 3), tensor("b", 2, 3)))),
        "b is defined a second time",
    ),
    "made again after del": (
        lambda: program(SIN, BoundSymbol(prims.python_del, (SIN.output,), {}, None), COS),
        "c is defined a second time",
    ),
    "two inputs of one name": (lambda: program(args=[A, A]), "two inputs called a"),
    "used before it is defined": (
        lambda: program(call(prims.sin, tensor("d", 2, 3), out=tensor("c", 2, 3))),
        "d is used before it is defined",
    ),
    "used in a keyword before it is made": (
        lambda: program(call(Symbol("s", lambda **k: k), out=tensor("c", 2, 3), scale=[tensor("d", 1)])),
        "d is used before it is defined",
    ),
    "made by a part only": (
        lambda: program(
            composite(call(prims.sin, A, out=tensor("inner", 2, 3)), call(prims.cos, A, out=tensor("c", 2, 3))),
            call(prims.neg, tensor("inner", 2, 3), out=tensor("d", 2, 3)),
        ),
        "inner is used before it is defined",
    ),
    "returned before it is made": (lambda: program(returns=[tensor("d", 1)]), "d is used before it is defined"),
    "used after del": (lambda: program(DEL_A, SIN), "a is used after it was deleted"),
    "deleted twice": (lambda: program(DEL_A, DEL_A), "a is used after it was deleted"),
    "returned after del": (lambda: program(DEL_A, returns=A), "a is used after it was deleted"),
    "deleted before it is made": (
        lambda: program(BoundSymbol(prims.python_del, (tensor("c", 1),), {}, None)),
        "c is used before it is defined",
    ),
    "used with another shape": (
        lambda: program(SIN, call(prims.neg, tensor("c", 3, 2), out=tensor("d", 3, 2))),
        r"c is a cpu f32\[2, 3\], but is used as a cpu f32\[3, 2\]",
    ),
    "used with another dtype": (
        lambda: program(call(prims.neg, tensor("a", 2, 3, dtype=dtypes.float64), out=tensor("d", 2, 3))),
        r"a is a cpu f32\[2, 3\], but is used as a cpu f64\[2, 3\]",
    ),
    "used on another device": (
        lambda: program(call(prims.neg, tensor("a", 2, 3, device=devices.meta), out=tensor("d", 2, 3))),
        r"a is a cpu f32\[2, 3\], but is used as a meta f32\[2, 3\]",
    ),
    "used as a number": (
        lambda: program(call(prims.mul, B, NumberProxy(2.0, name="a"), out=tensor("d", 2, 3))),
        r"a is a cpu f32\[2, 3\], but is used as a float 2.0",
    ),
    "the wrong shape comes out": (
        lambda: program(call(prims.sin, A, out=tensor("c", 3, 2))),
        r"sin returns a cpu f32\[2, 3\], but c is a cpu f32\[3, 2\]",
    ),
    "the wrong dtype comes out": (
        lambda: program(call(prims.lt, A, B, out=tensor("c", 2, 3))),
        r"lt returns a cpu b8\[2, 3\], but c is a cpu f32\[2, 3\]",
    ),
    "the wrong device comes out": (
        lambda: program(call(prims.sin, A, out=tensor("c", 2, 3, device=devices.meta))),
        r"sin returns a cpu f32\[2, 3\], but c is a meta f32\[2, 3\]",
    ),
    "too many values come out": (
        lambda: program(call(prims.sin, A, out=(tensor("c", 2, 3), tensor("d", 2, 3)))),
        "sin returns 1 values, but the trace has 2",
    ),
    "arguments that the operation refuses": (
        lambda: program(call(prims.add, A, tensor("a", 2, 3), tensor("b", 2, 3), out=tensor("c", 2, 3))),
        "add does not accept these arguments: .*positional",
    ),
    "shapes that do not fit": (
        lambda: program(call(prims.add, A, tensor("d", 3, 2), out=tensor("c", 2, 3)), args=[A, B, tensor("d", 3, 2)]),
        "add does not accept these arguments: .*one shape",
    ),
    "a decomposition that makes something else": (
        lambda: program(composite(call(prims.sin, A, out=tensor("d", 2, 3)))),
        "the decomposition of gelu does not compute c",
    ),
    "a decomposition that makes half of it": (
        lambda: program(composite(SIN, out=(SIN.output, tensor("d", 2, 3)))),
        "the decomposition of gelu does not compute d",
    ),
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal(name: str) -> None:
    """It is returned as it is."""
    trace = LEGAL[name]()
    assert verify(trace) is trace


@pytest.mark.parametrize("name", ILLEGAL)
def test_illegal(name: str) -> None:
    """The message says what is wrong and which pass made it."""
    make, message = ILLEGAL[name]
    with pytest.raises(TraceVerificationError, match=message) as caught:
        verify(make())
    if "two inputs" not in message:
        assert "f (made by A careless pass) is not a valid program" in str(caught.value)


def test_no_return() -> None:
    """A program ends with its return."""
    trace = Trace("f", args=[A])
    with pytest.raises(TraceVerificationError, match="f does not end with a return"):
        verify(trace)
    trace.bound_symbols.append(SIN)
    with pytest.raises(TraceVerificationError, match="f does not end with a return"):
        verify(trace)


def test_the_lines_around_the_fault() -> None:
    """Ten before, ten after, the fault marked, and where the user wrote it."""
    chain, p = [], A
    for i in range(30):
        q = tensor(f"v{i}", 2, 3)
        chain.append(call(prims.sin, p, out=q))
        p = q
    chain[15] = call(prims.sin, tensor("lost", 2, 3), out=tensor("v15", 2, 3))
    with pytest.raises(TraceVerificationError) as caught:
        verify(program(*chain))
    message = str(caught.value)
    lines = message.splitlines()
    assert "lost is used before it is defined" in lines[0]
    assert "traced from model.py:12" in lines[1]
    shown = [line for line in lines if "prims.sin" in line]
    assert len(shown) == 21
    assert [line for line in lines if line.startswith("> ")] == ['> v15 = prims.sin(lost)  # v15: "cpu f32[2, 3]"']
    assert shown[0].startswith("  v5 = ")
    assert shown[-1].startswith("  v25 = ")


def test_a_fault_inside_a_decomposition() -> None:
    """What an operation decomposes into is a program too: it reads what the operation reads, or what it made before."""
    inner = call(prims.sin, tensor("stranger", 2, 3), out=tensor("c", 2, 3))
    with pytest.raises(TraceVerificationError, match="stranger"):
        verify(program(composite(inner)))
    with pytest.raises(TraceVerificationError, match=r"sin returns a cpu f32\[2, 3\]"):
        verify(program(composite(call(prims.sin, A, out=tensor("c", 3, 3)), out=tensor("c", 3, 3))))


def test_only_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """`THUNDER_VERIFY=1` says so."""
    bad = program(SIN, COS)
    for off in (None, "", "0"):
        monkeypatch.delenv("THUNDER_VERIFY", raising=False)
        if off is not None:
            monkeypatch.setenv("THUNDER_VERIFY", off)
        assert verify_if_asked(bad) is bad
    monkeypatch.setenv("THUNDER_VERIFY", "1")
    with pytest.raises(TraceVerificationError):
        verify_if_asked(bad)


def test_the_pass_that_made_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transform that writes nonsense is found before anything runs."""
    monkeypatch.setenv("THUNDER_VERIFY", "1")

    def nonsense(trace: Trace, executors: Any) -> Trace:
        out = trace.derive("Nonsense")
        out.bound_symbols[:] = [b for b in trace.bound_symbols if b.sym.name != "sin"]
        return out

    f = thunder.jit(lambda a: a.sin() + 1, transforms=[nonsense])
    with pytest.raises(TraceVerificationError, match=r"made by Nonsense\) .*used before it is defined"):
        f(torch.ones(2))


def test_random_operations_are_verified_by_their_metadata_alone() -> None:
    """The meta function makes proxies; nothing is drawn."""
    trace = Trace("f")
    before = torch.random.get_rng_state()
    with tracectx(trace):
        out = prims.uniform((2,), 0.0, 1.0, device=devices.cpu, dtype=dtypes.float32)
        prims.python_return(out)
    assert OpTags.RANDOM_OP in trace.bound_symbols[0].sym.tags
    verify(trace)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_one_return_of_what_was_assigned() -> None:
    """It is the last line, and `Trace.output` says nothing else."""
    twice = program(SIN)
    twice.bound_symbols.append(twice.bound_symbols[-1])
    with pytest.raises(TraceVerificationError, match="it has operations after its return"):
        verify(twice)
    trace = Trace("f", args=[A])
    trace.output = A
    trace.bound_symbols[:] = program(SIN).bound_symbols
    with pytest.raises(TraceVerificationError, match=r"was set to \(a\), but the return"):
        verify(trace)
