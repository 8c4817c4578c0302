# SPDX-License-Identifier: Apache-2.0
"""The verifier, which checks that a trace is a valid program. `THUNDER_VERIFY=1` verifies every trace between passes.

`thunder.execution.verify_results` checks the results of executors when a program runs.

The rules of a valid program:

- Each value is defined once, before its uses, and is not used after its `del`.
- The results of a primitive have the shape, dtype and device that its meta function returns.
- The decomposition of an operation is a valid program that computes the operation's results.
- The program ends with its only return, which returns the value that was assigned to `Trace.output`, if any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thunder.core.errors import TraceVerificationError
from thunder.core.langctx import set_langctx
from thunder.core.printer import lines_around
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol, OpTags, proxies_in
from thunder.core.symint.numbers import same_shape
from thunder.core.trace import Trace, verification_level

__all__ = ["same_type", "verify", "verify_if_asked"]


def verify(trace: Trace) -> Trace:
    """Return `trace` if it is a valid program; otherwise raise `TraceVerificationError`."""
    defined: dict[str, Proxy] = {}
    deleted: set[str] = set()
    for p in trace.args:
        if p.name in defined:
            raise TraceVerificationError(f"{trace.name} has two inputs called {p.name}")
        defined[p.name] = p
    in_flight: set[str] = set()
    scratch = Trace("verification")  # in which meta functions run
    # The counters are copied too: with them, one step finds an unused name.
    scratch.names, scratch._counters = set(trace.names), dict(trace._counters)
    scratch.info.update(trace.info)
    for i, bsym in enumerate(trace.bound_symbols):
        args, outs = bsym.flat_args, bsym.flat_outs
        _verify_reads(trace, i, args, defined, deleted)
        _verify_waits(trace, i, bsym, in_flight)
        if _is_del(bsym):
            deleted.update(bsym.arg_names)
            continue
        if OpTags.UNPACK_OP not in bsym.sym.tags:
            _verify_output(trace, i, bsym, defined)
        for p in outs:
            defined.setdefault(p.name, p)
        _verify_decomposition(trace, i, bsym, args, outs, scratch)
        _verify_metadata(trace, i, bsym, outs, scratch)
    if not trace.bound_symbols or not trace.bound_symbols[-1].sym.is_return:
        raise TraceVerificationError(f"{trace.name} does not end with a return")
    for i, bsym in enumerate(trace.bound_symbols[:-1]):
        if bsym.sym.is_return:
            raise _fault(trace, i, "it has operations after its return")
    trace.check_output()
    return trace


def _is_del(bsym: BoundSymbol) -> bool:
    return bsym.sym.is_prim and str(bsym.sym.id) == "PrimIDs.DEL"


def _fault(trace: Trace, index: int, message: str) -> TraceVerificationError:
    where = f" (made by {trace.provenance.name})" if trace.provenance else ""
    source = trace.bound_symbols[index].source
    at = f"\n  traced from {source}" if source else ""
    return TraceVerificationError(
        f"{trace.name}{where} is not a valid program: {message}{at}\n{lines_around(trace.bound_symbols, index)}"
    )


def _verify_reads(trace: Trace, i: int, args: list[Proxy], defined: dict[str, Proxy], deleted: set[str]) -> None:
    for p in args:
        if p.name in deleted:
            raise _fault(trace, i, f"{p.name} is used after it was deleted")
        known = defined.get(p.name)
        if known is None:
            raise _fault(trace, i, f"{p.name} is used before it is defined")
        if not same_type(known, p):
            raise _fault(trace, i, _clash(known, p))


def _verify_waits(trace: Trace, i: int, bsym: BoundSymbol, in_flight: set[str]) -> None:
    """Check that only `wait` reads the result of a collective that is in flight."""
    is_collective = OpTags.COLLECTIVE in bsym.sym.tags
    waits = is_collective and bsym.sym.name == "wait"
    if not waits and not _is_del(bsym) and not in_flight.isdisjoint(bsym.arg_names):
        raise _fault(trace, i, f"{bsym.sym.name} reads a result of a collective that is in flight: insert a `wait`")
    if is_collective and not waits:
        in_flight.update(bsym.out_names)


def _clash(known: Proxy, used: Proxy) -> str:
    return f"{known.name} is a {known.type_string()}, but is used as a {used.type_string()}"


def _verify_output(trace: Trace, i: int, bsym: BoundSymbol, defined: dict[str, Proxy]) -> None:
    for name in bsym.out_names:
        if name in defined:
            raise _fault(trace, i, f"{name} is defined a second time")


def same_type(a: Proxy, b: Proxy) -> bool:
    """Check whether two tensors have the same shape, dtype and device, or neither of the two values is a tensor."""
    if a is b:
        return True
    if isinstance(a, TensorProxy) and isinstance(b, TensorProxy):
        return same_shape(a.shape, b.shape) and a.dtype is b.dtype and a.device is b.device
    return isinstance(a, TensorProxy) == isinstance(b, TensorProxy)


def _verify_decomposition(
    trace: Trace, i: int, bsym: BoundSymbol, args: list[Proxy], outs: list[Proxy], scratch: Trace
) -> None:
    if not bsym.subsymbols:
        return
    inside = {p.name: p for p in args}
    for sub in bsym.subsymbols:
        args_of_sub, outs_of_sub = sub.flat_args, sub.flat_outs
        for p in args_of_sub:
            known = inside.get(p.name)
            if known is None and isinstance(p, NumberProxy) and p.symbol is not None:
                continue  # symbolic sizes are available if the tensor is available
            if known is None:
                raise _fault(trace, i, f"the decomposition of {bsym.sym.name} uses the undefined {p.name}: {sub}")
            if not same_type(known, p):
                raise _fault(trace, i, f"in the decomposition of {bsym.sym.name}, {_clash(known, p)}: {sub}")
        for p in outs_of_sub:
            inside.setdefault(p.name, p)
        _verify_decomposition(trace, i, sub, args_of_sub, outs_of_sub, scratch)
        _verify_metadata(trace, i, sub, outs_of_sub, scratch)
    for p in outs:
        known = inside.get(p.name)
        if known is None:
            raise _fault(trace, i, f"the decomposition of {bsym.sym.name} does not compute {p.name}")
        if not same_type(known, p):
            raise _fault(trace, i, f"the decomposition of {bsym.sym.name} has another result: {_clash(known, p)}")


def _verify_metadata(trace: Trace, i: int, bsym: BoundSymbol, outs: list[Proxy], scratch: Trace) -> None:
    sym = bsym.sym
    if not sym.is_prim or sym.is_fusion or sym.executor is not None or sym.printer is not None or not bsym.out_names:
        return
    try:
        with tracectx(scratch), set_langctx("torch"):
            expected: Any = sym.meta(*bsym.args, **bsym.kwargs)
    except Exception as error:
        raise _fault(trace, i, f"{sym.name} does not accept these arguments: {error}") from error
    _compare(trace, i, bsym, proxies_in(expected), outs)


def _compare(trace: Trace, i: int, bsym: BoundSymbol, expected: Sequence[Proxy], found: Sequence[Proxy]) -> None:
    if len(expected) != len(found):
        raise _fault(trace, i, f"{bsym.sym.name} returns {len(expected)} values, but the trace has {len(found)}")
    for want, got in zip(expected, found):
        if not same_type(want, got):
            raise _fault(
                trace, i, f"{bsym.sym.name} returns a {want.type_string()}, but {got.name} is a {got.type_string()}"
            )


def verify_if_asked(trace: Trace) -> Trace:
    """Verify a trace if the environment variable `THUNDER_VERIFY` is set to 1 or 2."""
    return verify(trace) if verification_level() else trace
