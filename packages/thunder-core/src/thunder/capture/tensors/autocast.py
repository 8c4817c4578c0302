# SPDX-License-Identifier: Apache-2.0
"""Autocast: insert the casts that torch makes, by the policy that each operation declares (`Facts.autocast`).

A trace has explicit dtypes, so the casts of autocast become operations of the trace. Common subexpression elimination
then casts each weight only once. An operation that torch composes of others has no policy of its own: there, autocast
casts the inputs of the parts.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.capture.base.fallback import fall_back
from thunder.core import dtypes
from thunder.core.facts import AutocastPolicy
from thunder.core.proxies import TensorProxy
from thunder.core.state import current_trace, state
from thunder.core.symbol import OpTags, Symbol, map_proxies, proxies_in
from thunder.torch.private import autocast_key, has_kernel

__all__ = ["call_with_autocast", "is_composite"]


def call_with_autocast(sym: Symbol, args: Any, kwargs: Any, transforms: Sequence[Any] = ()) -> Any:
    """Call an operation, in a function to which `transforms` (`WriteObserver`) are applied, under autocast."""
    return _call(sym, args, kwargs, batched=any(part.name == "vmap" for part in transforms))


def _call(sym: Symbol, args: Any, kwargs: Any, *, batched: bool) -> Any:
    tensors = [p for p in proxies_in((args, kwargs)) if isinstance(p, TensorProxy)]
    kind = next((p.device.type for p in tensors if p.ndim), tensors[0].device.type if tensors else "")
    enabled = kind and torch.is_autocast_enabled(kind)
    policy = _policy(sym, kind) if enabled else None
    if enabled and batched:
        batched = not _check_batched(sym, policy, kind, tensors)
    frontend, before = state.frontend, state.parts
    if enabled and policy is None and not sym.is_prim and is_composite(str(sym.id)):
        parts = _Parts(batched)
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
    if policy is not None:
        given = args, kwargs
        args, kwargs = _cast(policy, kind, tensors, args, kwargs)
        if isinstance(before, _Parts):
            before.cast |= any(a is not b for a, b in zip(proxies_in((args, kwargs)), proxies_in(given)))
    state.frontend = state.parts = None
    try:
        return sym.record(args, kwargs)
    finally:
        state.frontend, state.parts = frontend, before


def _policy(sym: Symbol, kind: str) -> AutocastPolicy | None:
    """Return the policy of an operation on a type of device.

    A device that is neither CPU nor CUDA casts the inputs of the operators for which its backend registers a kernel of
    autocast. torch offers CUDA's lists to backends, so these operators have CUDA's policy.
    """
    known = sym.facts.autocast
    if kind in ("cpu", "cuda"):
        return known.get(kind)
    policy, registered = known.get("cuda"), casts_inputs(str(sym.id), kind)
    if registered and policy is None:
        fall_back(f"autocast on {kind} casts the inputs of {sym.name} in a way that thunder does not know")
    return None if registered is False else policy


# Products of two tensors that vmap replaces by one product, whose inputs autocast casts.
_BATCHED_PRODUCTS = frozenset({"mm", "bmm", "matmul", "linear", "einsum"})


def _check_batched(sym: Symbol, policy: AutocastPolicy | None, kind: str, tensors: list[TensorProxy]) -> bool:
    """Fall back if autocast may cast other tensors under `vmap`, which replaces an operation by others before: e.g.
    `linear` by a product and a sum, which adds the bias without a cast.

    Return whether the operation is certain to have its own policy.
    """
    if sym.name in _BATCHED_PRODUCTS and len(tensors) == 2:
        return True
    given = {p.dtype for p in tensors if dtypes.is_float_dtype(p.dtype)}
    if OpTags.MATMUL_OP in sym.tags:
        same = given <= {dtypes.to_dtype(torch.get_autocast_dtype(kind))}
    elif policy is None or OpTags.SHAPE_OP in sym.tags:
        same = len(given) < 2 or not sym.tags.isdisjoint((OpTags.ELEMENTWISE_OP, OpTags.SHAPE_OP))
    else:
        same = len(given) < 2 and given <= {_target(policy, kind, tensors), dtypes.float64}
    if not same and OpTags.OPAQUE_OP not in sym.tags:  # torch runs an opaque operation under vmap
        fall_back(f"the program calls {sym.name} under vmap and autocast, which casts other tensors there")
    return False


class _Parts:
    """Receives the parts of an operation that torch composes of others."""

    def __init__(self, batched: bool):
        self.batched = batched
        self.cast = False  # whether the inputs of a part were cast

    def call_symbol(self, sym: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a part of the operation."""
        return _call(sym, args, kwargs, batched=self.batched)


@functools.cache
def is_composite(name: str) -> bool:
    """Check whether torch runs a function, e.g. `torch.linalg.inv`, as calls of others, each with its own policy."""
    operators = _operators_of(name)
    return operators is None or has_kernel(operators, "CompositeImplicitAutograd")


@functools.cache
def casts_inputs(name: str, kind: str) -> bool | None:
    """Check whether autocast on a type of device casts a function's inputs; None for a function of Python."""
    operators = _operators_of(name)
    return None if operators is None else has_kernel(operators, autocast_key(kind))


def _operators_of(name: str) -> list[str] | None:
    """Return the names of torch's operators behind a function; None for a function of Python."""
    path = name.split(".")
    for operator in ("_".join(path[1:]), path[-1]):
        packet = getattr(torch.ops.aten, operator, None)
        if packet is not None:
            schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
            return [f"{s.name}.{s.overload_name}".rstrip(".") for s in schemas]
    return None


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
