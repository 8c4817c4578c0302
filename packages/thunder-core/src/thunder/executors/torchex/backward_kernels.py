# SPDX-License-Identifier: Apache-2.0
"""Gradients by torch's backward kernels, so that they equal eager's bit by bit, and each is one kernel.

Each kernel (`runtime/kernels/backward_kernels.py`) is an operator of the torch executor, e.g. `tanh_backward`. It
decomposes into the operation's declared gradient rule, which other executors fuse, and which is batched and
differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import thunder.torch as ltorch
from thunder.core import prims
from thunder.core.dtypes import is_float_dtype
from thunder.core.prims import get_grad, put_grad, put_grads
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.core.symint.numbers import same_shape
from thunder.executors.torchex import implementations  # noqa: F401  (the products and scans)
from thunder.executors.torchex.base import MODULE, ex
from thunder.runtime.kernels import backward_kernels  # noqa: F401
from thunder.runtime.kernels.table import kernels
from thunder.torch.elementwise_base import sum_to


def _operator(name: str, like: Callable[..., Any]) -> Symbol:
    """Return the operator of a kernel in `runtime/kernels/backward_kernels.py`."""
    op = ex.register_operator(name, like=like, fn=kernels[name])
    op.module = MODULE
    return op


def _is_real(input: Any, *options: Any, **named: Any) -> bool:
    return is_float_dtype(input.dtype)


def _declared(sym: Symbol) -> Callable[..., Any]:
    """Return the gradient of the first argument by the declared rule, from the cotangent, result and arguments."""

    def like(g: Any, out: Any, *args: Any, **named: Any) -> Any:
        assert sym.vjp_rule is not None
        grads = sym.vjp_rule(g, out, *args, **named)
        return grads[0] if isinstance(grads, tuple) else grads

    return like


def _from_input(sym: Symbol) -> None:
    """Register the kernel `(g, input, *options)` as the gradient of `sym`."""
    declared = _declared(sym)

    def like(g: Any, input: Any, *options: Any, **named: Any) -> Any:
        return declared(g, None, input, *options, **named)

    backward = _operator(f"{sym.name}_backward", like)

    def rule(input: Any, *options: Any, **named: Any) -> Any:
        out = sym(input, *options, **named)
        put_grad(input, backward(get_grad(out), input, *options, **named))
        return out

    ex.register_implementation(sym, checker=_is_real, grad_transform=rule)


def _from_result(sym: Symbol, like: Callable[[Any, Any], Any] | None = None) -> None:
    """Register the kernel `(g, result)` as the gradient of `sym`.

    `like` is its decomposition. By default it is the declared rule, which then reads only the result.
    """
    declared = _declared(sym)
    backward = _operator(f"{sym.name}_backward", like or (lambda g, out: declared(g, out, out)))

    def rule(input: Any, *options: Any, **named: Any) -> Any:
        out = sym(input, *options, **named)
        put_grad(input, backward(get_grad(out), out))
        return out

    ex.register_implementation(sym, checker=_is_real, grad_transform=rule)


# -- gradients that read the input or the result -----------------------------------------------------------------------
for _sym in (
    ltorch.gelu, ltorch.silu, ltorch.mish, ltorch.hardswish, ltorch.hardsigmoid, ltorch.logsigmoid, ltorch.softplus,
    ltorch.elu, ltorch.selu, ltorch.celu, ltorch.glu,
):  # fmt: skip
    _from_input(_sym)

_from_result(prims.tanh)
_from_result(ltorch.sigmoid)
_from_result(ltorch.relu, lambda g, out: ltorch.where(out <= 0, 0.0, g))


# -- gradients of several tensors --------------------------------------------------------------------------------------
def _register_convolution() -> None:
    """Register the kernel for the gradients of weight and bias. Which sum the bias gets depends on the library."""

    def like(g: Any, a: Any, weight: Any, *how: Any) -> Any:
        return prims.convolution_weight_grad(g, a, weight, *how), ltorch.sum(g, (0, *range(2, g.ndim)))

    backward = _operator("convolution_parameters_grad", like)

    def rule(a: Any, weight: Any, bias: Any, *how: Any) -> Any:
        out = prims.convolution(a, weight, bias, *how)
        g = get_grad(out)
        put_grad(a, prims.convolution_input_grad(g, a, weight, *how))
        put_grads((weight, bias), backward(g, a, weight, *how))
        return out

    def has_bias(a: Any, weight: Any, bias: Any, *how: Any) -> bool:
        return isinstance(bias, TensorProxy)

    ex.register_implementation(prims.convolution, checker=has_bias, grad_transform=rule)


_register_convolution()


def _register_broadcast(sym: Symbol, gradients: Callable[..., tuple[Any, Any]]) -> None:
    """Register the gradients of a product or quotient with a broadcast operand.

    The formulas are torch's, which affects rounding in two ways. A sum over broadcast dimensions depends on the layout
    of its input, which is that of the first operand, the cotangent. And torch's kernels do not round an operand without
    dimensions to the lower precision of the other operand.
    """

    def rule(input: Any, other: Any) -> Any:
        out = sym(input, other)
        by_input, by_other = gradients(get_grad(out), input, other)
        put_grads((input, other), (sum_to(by_input, input), sum_to(by_other, other)))
        return out

    def is_broadcast(input: Any, other: Any) -> bool:
        tensors = isinstance(input, TensorProxy) and isinstance(other, TensorProxy)
        real = tensors and is_float_dtype(input.dtype) and is_float_dtype(other.dtype)
        return real and not same_shape(input.shape, other.shape)

    ex.register_implementation(sym, checker=is_broadcast, grad_transform=rule)


_register_broadcast(ltorch.mul, lambda g, input, other: (g * other, g * input))
_register_broadcast(ltorch.true_divide, lambda g, input, other: (g / other, -g * ((input / other) / other)))


# -- gradients whose formulas are in torch's autograd alone ------------------------------------------------------------
def _by_autograd(sym: Symbol) -> None:
    """Let torch's autograd compute the gradient of `sym` on the CPU, which computes the result again.

    torch's formulas for products depend on whether there are zeros. On other devices the declared rule is used, which
    does not wait for the device.
    """
    declared = _declared(sym)

    op = _operator(f"{sym.name}_backward", lambda g, input, *options: declared(g, None, input, *options))

    def rule(input: Any, *options: Any) -> Any:
        out = sym(input, *options)
        g = get_grad(out)
        own = input.device.type == "cpu" and _is_real(input)
        put_grad(input, op(g, input, *options) if own else declared(g, out, input, *options))
        return out

    ex.register_implementation(sym, ex.implmap[sym.id].op, grad_transform=rule)


_by_autograd(prims.prod)
_by_autograd(prims.cumprod)
