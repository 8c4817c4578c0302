# SPDX-License-Identifier: Apache-2.0
"""Eager execution of a symbol that is called on real tensors, outside any trace."""

from __future__ import annotations

from typing import Any

import torch

from thunder.core.devices import to_device
from thunder.core.dtypes import to_dtype
from thunder.core.errors import OnlyInTracesError
from thunder.core.langctx import set_langctx
from thunder.core.prims import python_return
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_leaves
from thunder.core.state import state, tracectx
from thunder.core.symbol import Symbol
from thunder.core.trace import Trace
from thunder.execution.claim import transform_for_execution
from thunder.extend import get_always_executors
from thunder.runtime.torch_private import functorch_active

__all__ = ["run_symbol"]


def run_symbol(sym: Symbol, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one operation with its function if it has one, otherwise with torch's implementation."""
    executors = get_always_executors()  # also registers the implementations
    if sym.fn is not None:
        if state.replaces_trace and sym.executor is not None and _needs_gradients(args, kwargs):
            raise OnlyInTracesError(
                f"{sym.name} is an operator of the executor {sym.executor.name!r}, whose gradient exists only in traces"
            )
        return sym.fn(*args, **kwargs)
    trace = Trace(sym.name if sym.name.isidentifier() else "operation")
    tensors: list[torch.Tensor] = []
    with tracectx(trace), set_langctx("torch"):

        def proxy(x: Any) -> Any:
            if isinstance(x, torch.Tensor):
                tensors.append(x)
                p = TensorProxy(shape=tuple(x.shape), device=to_device(x.device), dtype=to_dtype(x.dtype))
                trace.args.append(p)
                return p
            if isinstance(x, (tuple, list)):
                return type(x)(proxy(i) for i in x)
            return {k: proxy(v) for k, v in x.items()} if isinstance(x, dict) else x

        out = sym(*[proxy(a) for a in args], **{k: proxy(v) for k, v in kwargs.items()})
        python_return(out)
    return transform_for_execution(trace, executors)[-1].python_callable(decorators=False)(*tensors)


def _needs_gradients(*arguments: Any) -> bool:
    """Check whether autograd or a transform of torch.func sees a call."""
    if functorch_active():
        return True
    return torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in tree_leaves(arguments)
    )
