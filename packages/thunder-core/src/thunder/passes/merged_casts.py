# SPDX-License-Identifier: Apache-2.0
"""Gradients of what common subexpression elimination merged after a cast: summed in the dtype before the cast.

Eager mode sums the gradients of separate casts in that dtype.

Contract: the gradient of a merged cast, and of merged operations on its result, may have the dtype before the cast
until a gradient rule computes with it. Casts and operations that only move elements keep that dtype.
"""

from __future__ import annotations

from typing import Any

from thunder.core import prims
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol, OpTags, map_proxies, renamed
from thunder.core.trace import Trace

__all__ = ["MERGED_CASTS", "WideGradients", "converted"]

#: The key in `Trace.info` of merged results that depend on merged casts: the name, and the dtype before the cast.
MERGED_CASTS = "merged_casts"


def converted(grad: Any, dtype: Any) -> Any:
    """Return a gradient in a dtype; None for the dtype leaves it as it is."""
    return grad if dtype is None or grad.dtype is dtype else prims.convert_element_type(grad, dtype)


class WideGradients:
    """The gradients in a recorded rule whose dtype is wider than when the rule was recorded, while it is replayed."""

    def __init__(self, trace: Trace, env: dict[str, Any], fresh: dict[str, str] | None):
        self._trace, self._env, self._fresh = trace, env, fresh
        self._names: set[str] = set()

    def note(self, recorded: TensorProxy, grad: Any) -> None:
        """Note the dtype of a gradient that arrives."""
        if grad.dtype is not recorded.dtype:
            self._names.add(recorded.name)

    def replay(self, op: BoundSymbol) -> bool:
        """Record an operation, or find that its result exists. Return whether this is done.

        False means that all operands have their recorded dtypes now, so the caller records the operation as it is.
        """
        read = self._names.intersection(op.arg_names)
        if not read:
            return False
        env = self._env
        if op.sym is prims.convert_element_type and env[op.args[0].name].dtype is op.output.dtype:
            env[op.output.name] = env[op.args[0].name]
            return True
        tensors = [p for p in op.flat_args if isinstance(p, TensorProxy)]
        if OpTags.SHAPE_OP in op.sym.tags and len(tensors) == 1 and isinstance(op.output, TensorProxy):

            def now(p: Proxy) -> Any:
                return renamed(p, env, self._fresh)

            env[op.output.name] = op.sym(*map_proxies(op.args, now), **map_proxies(op.kwargs, now))
            self._names.add(op.output.name)
            return True
        for p in tensors:
            if p.name in read:
                env[p.name] = converted(env[p.name], p.dtype)
        self._names -= read
        return False
