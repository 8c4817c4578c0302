# SPDX-License-Identifier: Apache-2.0
"""Shared code of elementwise operations: their declaration, and the precision of their arithmetic.

Most operations are declared together with their primitive (`thunder.core.prims.elementwise_base`). The files of this
folder contain operations that need more, or that consist of other operations.

For bfloat16 and float16, torch's kernels compute in float32 and round the result once. Primitives do the same. A
composition of primitives would round after each step, so it must use the decorators of this module.
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
    """Return a tensor of 16-bit floats as float32, and everything else unchanged."""
    if isinstance(x, TensorProxy) and x.dtype in low_precision_dtypes:
        return clang.maybe_convert_to_dtype(x, float32)
    return x


def to_inexact(x: Any) -> Any:
    """Return a tensor of integers or booleans in the default floating point dtype, and everything else unchanged."""
    if isinstance(x, TensorProxy) and x.dtype.category <= INTEGER:
        return clang.maybe_convert_to_dtype(x, default_dtype())
    return x


def sum_to(grad: Any, like: Any) -> Any:
    """Return the gradient of an operand, given that of the result to which the operand was broadcast and converted.

    Return None if the operand has no gradient.
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
    """Run a decomposition in float32 if tensors have 16 bits. The result is rounded once.

    The operators in its body are those of the core language, so that it decomposes directly into primitives.
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
    """Run a `vjp` rule in float32 if tensors have 16 bits. Each gradient has the dtype of its input."""

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
    """Declare the torch operation of an elementwise operation. It calls the core language's operation."""
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
