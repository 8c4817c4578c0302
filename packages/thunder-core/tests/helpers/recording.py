# SPDX-License-Identifier: Apache-2.0
"""Traces for tests: a function recorded on proxies, and the names of what it recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from thunder.core import devices, dtypes, prims
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.trace import Trace


def record(
    fn: Callable[..., Any],
    args: Sequence[TensorProxy],
    *,
    name: str = "f",
    taken: Iterable[str] = (),
    unpack: bool = False,
) -> Trace:
    """Return the trace of `fn` on these inputs; `taken` are names that it must not give, `unpack` names its inputs."""
    trace = Trace(name, args=list(args))
    trace.names.update(taken)
    with tracectx(trace):
        for p in args if unpack else ():
            prims.unpack_trivial(p)
        trace.output = fn(*args)
        prims.python_return(trace.output)
    return trace


def float_tensor(name: str, *shape: int) -> TensorProxy:
    """Return a float32 tensor on the CPU."""
    return TensorProxy(name, shape=shape, device=devices.cpu, dtype=dtypes.float32)


def traced(fn: Callable[..., Any], count: int = 2, shape: Sequence[int] = (2, 3), *, unpack: bool = False) -> Trace:
    """Return the trace of `fn` on float32 tensors a, b, c … of one shape."""
    return record(fn, [float_tensor(name, *shape) for name in "abcdefgh"[:count]], unpack=unpack)


def names(trace: Trace) -> list[str]:
    """Return the operations of a trace by name, without its return."""
    return [op.sym.name for op in trace.bound_symbols[:-1]]
