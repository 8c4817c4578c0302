# SPDX-License-Identifier: Apache-2.0
"""What families of elementwise operations share: the precision that torch's kernels compute in.

torch computes bfloat16 and float16 in float32 inside of one kernel and rounds the result once. A primitive does so by
itself; a composition of several of them has to say it, or it would round at each step.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from thunder import clang
from thunder.core.dtypes import INTEGER, dtype, float32, is_complex_dtype, low_precision_dtypes
from thunder.core.langctx import set_langctx
from thunder.core.prims.elementwise_base import differentiable
from thunder.core.promotion import default_dtype
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import NON_DIFFERENTIABLE, OpTags
from thunder.core.symint.numbers import same_shape

__all__ = ["COMPARISON", "ELEMENTWISE", "in_float32", "rule_in_float32", "sum_to", "to_float32", "to_inexact"]

F = TypeVar("F", bound=Callable[..., Any])

ELEMENTWISE = (OpTags.ELEMENTWISE_OP,)
# Of truth values and integers: no gradient flows through them.
COMPARISON = (OpTags.ELEMENTWISE_OP, NON_DIFFERENTIABLE)


def to_float32(x: Any) -> Any:
    """A tensor of few bits as float32; everything else as it is."""
    if isinstance(x, TensorProxy) and x.dtype in low_precision_dtypes:
        return clang.maybe_convert_to_dtype(x, float32)
    return x


def to_inexact(x: Any) -> Any:
    """A tensor of integers or truth values in the default floating point type; everything else as it is."""
    if isinstance(x, TensorProxy) and x.dtype.category <= INTEGER:
        return clang.maybe_convert_to_dtype(x, default_dtype())
    return x


def sum_to(grad: Any, like: Any) -> Any:
    """The gradient of an operand from that of the result it was broadcast and converted to; None for what has none."""
    if not differentiable(like) or grad is None:
        return None
    if not same_shape(grad.shape, like.shape):
        new = grad.ndim - like.ndim
        spread = [d for d in range(grad.ndim) if d < new or (like.shape[d - new] == 1 and grad.shape[d] != 1)]
        if spread:
            grad = grad.sum(tuple(spread))
        if not same_shape(grad.shape, like.shape):
            grad = grad.reshape(like.shape)
    if is_complex_dtype(grad.dtype) and not is_complex_dtype(like.dtype):
        grad = grad.real
    return clang.maybe_convert_to_dtype(grad, like.dtype)


def _low_precision(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dtype | None:
    for x in (*args, *kwargs.values()):
        if isinstance(x, TensorProxy) and x.dtype in low_precision_dtypes:
            return x.dtype
    return None


def in_float32(decomposition: F) -> F:
    """Decorator of a decomposition: 16-bit tensors come in as float32, and the result goes back rounded once.

    Its operators are the core language's, so that it decomposes into primitives at once.
    """

    @functools.wraps(decomposition)
    def widened(*args: Any, **kwargs: Any) -> Any:
        low = _low_precision(args, kwargs)
        with set_langctx(clang.clangctx):
            if low is None:
                return decomposition(*args, **kwargs)
            out = decomposition(*map(to_float32, args), **{k: to_float32(v) for k, v in kwargs.items()})
            return clang.maybe_convert_to_dtype(out, low)

    return widened  # type: ignore[return-value]


def rule_in_float32(rule: F) -> F:
    """Decorator of a `vjp` rule: computes in float32 what comes in 16 bits, each gradient in its input's own dtype."""

    names = list(inspect.signature(rule).parameters)[2:]

    @functools.wraps(rule)
    def widened(g: Any, out: Any, *args: Any, **kwargs: Any) -> Any:
        if _low_precision((g, *args), kwargs) is None:
            return rule(g, out, *args, **kwargs)
        wide = {k: to_float32(v) for k, v in kwargs.items()}
        grads = rule(to_float32(g), to_float32(out), *map(to_float32, args), **wide)
        grads = grads if isinstance(grads, tuple) else (grads,)
        given = (*args, *(kwargs.get(name) for name in names[len(args) :]))
        return tuple(
            clang.maybe_convert_to_dtype(grad, a.dtype) if isinstance(grad, TensorProxy) else grad
            for grad, a in zip(grads, given)
        )

    return widened  # type: ignore[return-value]
