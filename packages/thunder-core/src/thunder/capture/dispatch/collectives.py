# SPDX-License-Identifier: Apache-2.0
"""Collectives of torch.distributed in a traced program.

All ranks must run the same collectives in the same order. If a pass removed a collective on one rank, the next
collective of this rank would pair with another one of the other ranks, and the numbers would be wrong without an error.

- A functional collective (`torch.ops._c10d_functional`) is an opaque operation with a side effect. No pass removes,
  merges or moves it.
- Any other program with collectives falls back: it runs eagerly, and the modules that it calls are compiled. Examples
  are a program that is differentiated, a collective in place, and a call of a process group (`dist.barrier()`).
"""

from __future__ import annotations

import functools
import sys
from typing import Any, NoReturn

import torch

from thunder.capture.base.fallback import fall_back
from thunder.capture.base.sources import Root, Source
from thunder.capture.dispatch.opaque_operations import opaque_symbol
from thunder.capture.dispatch.writing import assign, mutating_overload
from thunder.capture.tensors.tracer import Tracer, needs_grad, tensors_in
from thunder.core.events import current_log
from thunder.core.state import state

__all__ = ["call_collective", "replaced_collectives", "values_of_collectives"]


def call_collective(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record a call of `func`, an operator of torch.distributed, or fall back."""
    name = f"torch.ops.{func}".removesuffix(".default")
    sym = opaque_symbol(func)
    if mutating_overload(func, args, kwargs) is not None or not name.startswith("torch.ops._c10d_functional."):
        fall_back(f"the program calls {name}, a collective that no trace can express")
    if len(tracer.trace.scopes) > 1 or tracer.parts:
        fall_back(f"a function that thunder differentiates, batches or recomputes calls {name}, a collective")
    if torch.is_grad_enabled() and any(map(needs_grad, tensors_in(args, kwargs))):
        fall_back(f"the program calls {name}, a collective, on a tensor that requires grad")
    tracer.collective = tracer.collective or name
    with tracer.recording():  # the program does not see the logger
        current_log().add("collective", name, where=state.source)
    if name.endswith(".wait_tensor"):
        return _wait(tracer, sym, *args, **kwargs)
    return tracer.call_symbol(sym, args, kwargs)


def _wait(tracer: Tracer, sym: Any, tensor: torch.Tensor) -> torch.Tensor:
    """Record a wait for the result of a collective. Later reads of the tensor depend on the wait, and follow it."""
    handle = tracer.handle_of(tensor)
    result = tracer.call_symbol(sym, (handle,), {})
    if any(x.handle._storage is handle._storage for x in tracer.inputs):
        return result  # type: ignore[no-any-return]  # an input that the program does not change
    return assign(tracer, handle, result, "wait_tensor")


def replaced_collectives() -> list[tuple[Any, str, Any]]:
    """Return replacements of private functions of torch.distributed.

    One wraps the result of a functional collective in a tensor subclass, which waits at its first use. A trace contains
    the wait instead, so that executors receive plain tensors.
    """
    found = []
    module: Any = sys.modules.get("torch.distributed._functional_collectives")
    if hasattr(module, "_maybe_wrap_tensor"):
        found.append((module, "_maybe_wrap_tensor", torch.ops._c10d_functional.wait_tensor))
    module = sys.modules.get("torch.distributed.nn.functional")
    if hasattr(module, "_not_supported_under_compile"):  # it raises an error if `torch.compiler.is_compiling()`
        found.append((module, "_not_supported_under_compile", _leave_to_python))
    group: Any = getattr(sys.modules.get("torch._C._distributed_c10d"), "ProcessGroup", None)
    if group is not None and torch.distributed.is_initialized():
        methods = [name for name in _METHODS if hasattr(group, name)]
        found += [(group, name, functools.partial(_leave_method_to_python, name)) for name in methods]
    return found


# The methods of a process group that communicate. All functions of torch.distributed call them.
_METHODS = (
    "all_gather_single", "all_gather_single_coalesced", "all_to_all_single", "allgather", "_allgather_base",
    "allgather_coalesced", "allgather_into_tensor_coalesced", "allreduce",
    "allreduce_coalesced", "alltoall", "alltoall_base", "barrier", "broadcast", "gather", "monitored_barrier", "recv",
    "recv_anysource", "reduce", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single",
    "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", "scatter",
    "send",
)  # fmt: skip


def _leave_method_to_python(name: str, *args: Any, **kwargs: Any) -> NoReturn:
    fall_back(f"the program calls `{name}` of torch.distributed, which may communicate with other processes")


def _leave_to_python(name: str, **kwargs: Any) -> NoReturn:
    fall_back(f"the program calls torch.distributed.nn.functional.{name}")


def values_of_collectives(tracer: Tracer) -> list[tuple[Source, int]]:
    """Return the number of processes and the rank, with their sources, if the program has collectives.

    Fall back if the program is differentiated, because passes then move operations between forward and backward.
    """
    if tracer.collective is None:
        return []
    if torch.is_grad_enabled() and any(x.tensor.requires_grad for x in tracer.inputs):
        fall_back(f"the program calls {tracer.collective}, a collective, and requires grad")
    module = Root(torch.distributed, "torch.distributed")
    return [(module.attr(name).call(), getattr(torch.distributed, name)()) for name in ("get_world_size", "get_rank")]
