# SPDX-License-Identifier: Apache-2.0
"""Autocast: insert the casts that torch makes, by the policy that each operation declares (`Facts.autocast`).

A trace has explicit dtypes, so the casts of autocast become operations of the trace. Common subexpression elimination
then casts each weight only once.
"""

from __future__ import annotations

from typing import Any

import torch

import thunder.torch as ltorch
from thunder.core import dtypes
from thunder.core.facts import AutocastPolicy
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol, map_proxies, proxies_in

__all__ = ["autocast_arguments"]


def autocast_arguments(sym: Symbol, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return a call's arguments with autocast's casts applied."""
    tensors = [p for p in proxies_in((args, kwargs)) if isinstance(p, TensorProxy)]
    kind = next((p.device.type for p in tensors if p.ndim), tensors[0].device.type if tensors else "")
    policy = sym.facts.autocast.get(kind)
    if policy is None or not torch.is_autocast_enabled(kind):
        return args, kwargs
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
