# SPDX-License-Identifier: Apache-2.0
"""What families of elementwise operations share: their declaration, and the precision that torch's kernels compute in.

Most operations come whole from the block that declares their primitive (`thunder.core.prims.elementwise_base`); the
files of this folder have those that are more, or that are made of others.

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
from thunder.core.prims.elementwise_base import COMPARISON, ELEMENTWISE, Elementwise, differentiable, each_elementwise
from thunder.core.promotion import default_dtype
from thunder.core.proxies import TensorProxy
from thunder.core.symint.numbers import same_shape
from thunder.torch.base import named, torchsymbol

__all__ = ["COMPARISON", "ELEMENTWISE", "in_float32", "rule_in_float32", "sum_to", "to_float32", "to_inexact"]

F = TypeVar("F", bound=Callable[..., Any])


def to_float32(x: Any) -> Any:
    """Return a tensor of few bits as float32; everything else as it is."""
    if isinstance(x, TensorProxy) and x.dtype in low_precision_dtypes:
        return clang.maybe_convert_to_dtype(x, float32)
    return x


def to_inexact(x: Any) -> Any:
    """Return a tensor of integers or truth values in the default floating point type; everything else as it is."""
    if isinstance(x, TensorProxy) and x.dtype.category <= INTEGER:
        return clang.maybe_convert_to_dtype(x, default_dtype())
    return x


def sum_to(grad: Any, like: Any) -> Any:
    """Return the gradient of an operand from that of the result it was broadcast and converted to; None for what has
    none.
    """
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
    """Compute a decomposition in float32 where tensors have 16 bits; the result is rounded once.

    Its operators are the core language's, so that it decomposes into primitives at once.
    """

    @functools.wraps(decomposition)
    def widened(*args: Any, **kwargs: Any) -> Any:
        low = _low_precision(args, kwargs)
        with set_langctx(clang.base.clangctx):
            if low is None:
                return decomposition(*args, **kwargs)
            out = decomposition(*map(to_float32, args), **{k: to_float32(v) for k, v in kwargs.items()})
            return clang.maybe_convert_to_dtype(out, low)

    return widened  # type: ignore[return-value]


def rule_in_float32(rule: F) -> F:
    """Compute a `vjp` rule in float32 where tensors have 16 bits; each gradient has its input's own dtype."""

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


@each_elementwise
def _declare(op: Elementwise) -> None:
    """Make the torch language's operation of an elementwise operation: a call of the core language's."""
    if "torch" in op.overridden_in:
        return
    run = clang.base.clang_ops[op.language_name]
    if op.operands == 1:

        def fn(input: Any) -> Any:
            return run(input)

    else:

        def fn(input: Any, other: Any) -> Any:  # type: ignore[misc]
            return run(input, other)

    fn.__name__ = fn.__qualname__ = op.language_name
    fn.__module__, fn.__doc__ = op.family.replace("thunder.core.prims", "thunder.torch"), op.docstring("input", "other")
    functions = [named(name) for name in op.torch_names]
    sym = torchsymbol(*functions, id=op.torch_names[0], tags=op.prim.tags, **op.facts)(fn)
    sym.samples(op.language_samples)
    if op.operands == 2 or op.prim.error_generator is not None:
        sym.errors(op.language_errors)
