# SPDX-License-Identifier: Apache-2.0
"""`get_grad`, `put_grad` and `put_grads`: gradient rules call them to read and to set gradients.

The calls exist only while a rule runs. The autodiff pass then replaces them by the values of the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thunder.core.dtypes import is_inexact_dtype
from thunder.core.errors import check
from thunder.core.prims.base import prim
from thunder.core.prims.creation import full
from thunder.core.proxies import TensorProxy
from thunder.core.state import state
from thunder.core.symbol import OpTags, Symbol

__all__ = ["get_grad", "needs_grad", "put_grad", "put_grads", "rule_of_vjp", "zero_vjp"]

_TAGS = (OpTags.GRAD_OP, OpTags.NON_DIFFERENTIABLE)


@prim(tags=_TAGS)
def get_grad(a: TensorProxy, /) -> TensorProxy:
    """Return the cotangent of `a`: the sum of the gradients from all uses of `a`."""
    check(
        isinstance(a, TensorProxy),
        lambda: f"get_grad expects a tensor of the rule's forward result, not {type(a).__name__}",
        TypeError,
    )
    return TensorProxy(like=a, requires_grad=False)


@prim(tags=(*_TAGS, OpTags.SIDE_EFFECT))
def put_grad(a: TensorProxy, grad: TensorProxy, /) -> None:
    """Add `grad` to the gradient of the rule's input `a`."""
    if not isinstance(a, TensorProxy):
        return
    check(
        isinstance(grad, TensorProxy),
        lambda: f"put_grad({a.name}, …) expects a tensor as the gradient, not {type(grad).__name__}",
        TypeError,
    )
    check(
        grad.shape == a.shape,
        lambda: f"put_grad: the gradient of {a.name} has the shape {grad.shape}, but {a.name} has {a.shape}",
    )


def put_grads(tensors: Sequence[Any], grads: Sequence[Any]) -> None:
    """Call `put_grad` for several inputs; skip inputs that are not tensors and gradients that are None."""
    check(
        len(tensors) == len(grads),
        lambda: f"put_grads got {len(tensors)} inputs and {len(grads)} gradients: pass one gradient for each input",
        ValueError,
    )
    for a, g in zip(tensors, grads):
        if isinstance(a, TensorProxy) and g is not None:
            put_grad(a, g)


def _incoming(out: Any) -> Any:
    if isinstance(out, TensorProxy):
        return get_grad(out) if is_inexact_dtype(out.dtype) else None
    if isinstance(out, (tuple, list)):
        return tuple(_incoming(o) for o in out)
    return None


def rule_of_vjp(sym: Symbol, vjp: Callable[..., Any]) -> Callable[..., Any]:
    """Return the gradient rule that runs `sym` and sets the gradients that `vjp(g, out, *args, **kwargs)` returns.

    With several outputs, `g` is a tuple. `vjp` returns one gradient, or a tuple with a gradient for each positional
    parameter.
    """
    names = sym.bind.names

    def backward(out: Any, *args: Any, **kwargs: Any) -> None:
        grads = vjp(_incoming(out), out, *args, **kwargs)
        if not isinstance(grads, tuple):
            grads = (grads,)
        # A positional parameter is passed as a keyword if it follows an omitted one.
        given = (*args, *(kwargs.get(name) for name in names[len(args) :]))
        for a, g in zip(given, grads):
            if isinstance(a, TensorProxy) and g is not None and is_inexact_dtype(a.dtype):
                put_grad(a, g)
            elif isinstance(a, (tuple, list)) and g is not None:
                put_grads(a, g)

    def rule(*args: Any, **kwargs: Any) -> Any:
        out = sym(*args, **kwargs)
        backward(out, *args, **kwargs)
        return out

    rule.backward = backward  # type: ignore[attr-defined]  # for callers that have already run the operation
    rule.__name__ = f"{sym.name}_grad"
    return rule


def needs_grad(a: TensorProxy) -> bool:
    """Check, in a gradient rule, whether a gradient flows into an input. If this is not known, return True."""
    return state.differentiated is None or a.name in state.differentiated


def zero_vjp(g: Any, out: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Return zeros for every tensor: the `vjp` of a piecewise constant operation."""
    return tuple(zeros_of(a) if isinstance(a, TensorProxy) and is_inexact_dtype(a.dtype) else None for a in args)


def zeros_of(a: TensorProxy) -> TensorProxy:
    """Return zeros of the shape and dtype of `a`. `a * 0` would be NaN where `a` is infinite."""
    return full(a.shape, 0, device=a.device, dtype=a.dtype)  # type: ignore[no-any-return]
