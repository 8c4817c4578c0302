# SPDX-License-Identifier: Apache-2.0
"""Autocast: insert the casts that torch makes, by the policy that each operation declares (`Facts.autocast`).

A trace has explicit dtypes, so the casts of autocast become operations of the trace. Common subexpression elimination
then casts each weight only once. An operation that torch composes of others has no policy of its own: there, autocast
casts the inputs of the parts.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.core import dtypes
from thunder.core.facts import AutocastPolicy
from thunder.core.proxies import TensorProxy
from thunder.core.state import current_trace, state
from thunder.core.symbol import Symbol, map_proxies, proxies_in

__all__ = ["call_with_autocast", "is_composite"]


def call_with_autocast(sym: Symbol, args: Any, kwargs: Any) -> Any:
    """Call an operation while autocast is enabled."""
    tensors = [p for p in proxies_in((args, kwargs)) if isinstance(p, TensorProxy)]
    kind = next((p.device.type for p in tensors if p.ndim), tensors[0].device.type if tensors else "")
    enabled = kind and torch.is_autocast_enabled(kind)
    policy = sym.facts.autocast.get(kind)
    frontend, before = state.frontend, state.parts
    if enabled and policy is None and not sym.is_prim and is_composite(str(sym.id)):
        parts = _Parts()
        state.frontend, state.parts = None, parts
        try:
            out = sym.record(args, kwargs)
        finally:
            state.frontend, state.parts = frontend, before
        if parts.cast:  # an executor that ran the operation as a whole would not cast
            operations = current_trace().scopes[-1]
            operations.extend(operations.pop().subsymbols)
            if isinstance(before, _Parts):
                before.cast = True
        return out
    if enabled and policy is not None:
        given = args, kwargs
        args, kwargs = _cast(policy, kind, tensors, args, kwargs)
        if isinstance(before, _Parts):
            before.cast |= any(a is not b for a, b in zip(proxies_in((args, kwargs)), proxies_in(given)))
    state.frontend = state.parts = None
    try:
        return sym.record(args, kwargs)
    finally:
        state.frontend, state.parts = frontend, before


class _Parts:
    """Receives the parts of an operation that torch composes of others."""

    cast = False  # whether the inputs of a part were cast

    def call_symbol(self, sym: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a part of the operation."""
        return call_with_autocast(sym, args, kwargs)


@functools.cache
def is_composite(name: str) -> bool:
    """Check whether torch runs a function, e.g. `torch.linalg.inv`, as calls of others, each with its own policy."""
    path = name.split(".")
    for operator in ("_".join(path[1:]), path[-1]):
        packet = getattr(torch.ops.aten, operator, None)
        if packet is not None:
            schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
            return any(_has_composite_kernel(f"{s.name}.{s.overload_name}".rstrip(".")) for s in schemas)
    return True  # a function of Python


def _has_composite_kernel(operator: str) -> bool:
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(operator, "CompositeImplicitAutograd")
    except RuntimeError:  # an operator of TorchScript alone
        return False


def _cast(policy: AutocastPolicy, kind: str, tensors: list[TensorProxy], args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return a call's arguments with autocast's casts applied."""
    target = _target(policy, kind, tensors)
    if target is None:
        return args, kwargs
    lower = policy == "lower" and target is not dtypes.float32

    def cast(p: Any) -> Any:
        if not isinstance(p, TensorProxy) or not dtypes.is_float_dtype(p.dtype) or p.dtype is target:
            return p
        if p.dtype is dtypes.float64 or (not lower and p.dtype.bytes > target.bytes) or p.device.type != kind:
            return p

        return ltorch.to(p, target)

    return map_proxies(args, cast), map_proxies(kwargs, cast)


def _target(policy: AutocastPolicy, kind: str, tensors: list[TensorProxy]) -> dtypes.dtype | None:
    """Return the dtype to which the inputs are cast, or None."""
    if policy == "lower":
        return dtypes.to_dtype(torch.get_autocast_dtype(kind))
    if policy == "float32":
        return dtypes.float32
    return dtypes.float32 if any(p.dtype is dtypes.float32 for p in tensors) else None
