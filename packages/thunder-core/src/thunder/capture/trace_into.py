# SPDX-License-Identifier: Apache-2.0
"""Tracing of a user function into an existing trace, on proxies of that trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thunder.capture.base.substitutions import Substitutions, undone
from thunder.capture.handlers import make_tracer
from thunder.capture.session import keep_thread
from thunder.capture.tensors.handle import Handle, Storage
from thunder.capture.torch_patches import replace_torch_functions
from thunder.core.dtypes import is_inexact_dtype
from thunder.core.errors import TracingError
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, map_proxies
from thunder.core.trace import Trace

__all__ = ["trace_into"]


def trace_into(trace: Trace, fn: Callable[..., Any], arguments: Sequence[Any]) -> tuple[list[BoundSymbol], Any]:
    """Trace `fn` on values of `trace`. Return the new operations, whose names are new in `trace`, and the result.

    The function calls torch functions on tensors, like any jitted function. It may read only its arguments, and may not
    write to them. The result contains proxies.
    """
    tracer = make_tracer(trace.name, lift=False)
    tracer.trace = trace
    handles: list[Handle] = []

    def handle(p: Any) -> Any:
        if not isinstance(p, TensorProxy):
            return p
        found = Handle.make(tracer, p, requires_grad=is_inexact_dtype(p.dtype), storage=Storage(p, p))
        handles.append(found)
        return found

    given = [map_proxies(a, handle) for a in arguments]

    def run(substitutions: Substitutions) -> tuple[list[BoundSymbol], Any]:
        keep_thread(substitutions)
        replace_torch_functions(substitutions)
        with trace.scope() as operations, tracer.user_code():
            return operations, fn(*given)

    operations, out = undone(run)
    written = next((h for h in handles if h._storage.written), None)
    if written is not None:
        raise TracingError(
            f"{getattr(fn, '__name__', 'a function')} writes to its argument {written._value.name}. A function that is "
            "traced into another program must return its results instead"
        )
    with tracer.proxies():
        return operations, tracer.unwrap(out)
