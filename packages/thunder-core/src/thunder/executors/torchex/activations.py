# SPDX-License-Identifier: Apache-2.0
"""Gradients of activations by torch's kernels. Each gradient is one kernel, where the gradient rule would run several.

Each backward operator decomposes into the activation's gradient rule, so that other executors and higher-order
differentiation can use the decomposition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.core.dtypes import is_float_dtype
from thunder.core.prims import get_grad, put_grad
from thunder.core.symbol import Symbol
from thunder.executors.torchex.base import MODULE, ex, implementations

aten = torch.ops.aten


def _by_input(sym: Symbol, run: Callable[..., torch.Tensor]) -> None:
    """Register `run(g, input, *options)` as the gradient of `sym`."""

    def like(g: Any, input: Any, *options: Any) -> Any:
        assert sym.vjp_rule is not None
        return _one(sym.vjp_rule(g, None, input, *options))

    backward = _operator(f"{sym.name}_backward", like, run)

    def rule(input: Any, *options: Any, **named: Any) -> Any:
        out = sym(input, *options, **named)
        put_grad(input, backward(get_grad(out), input, *options, **named))
        return out

    ex.register_implementation(sym, checker=_is_real, grad_transform=rule)


def _by_output(sym: Symbol, run: Callable[..., torch.Tensor], like: Callable[[Any, Any], Any]) -> None:
    """Register `run(g, output)` as the gradient of `sym`. `like` is its decomposition."""
    backward = _operator(f"{sym.name}_backward", like, run)

    def rule(input: Any, *options: Any, **named: Any) -> Any:
        out = sym(input, *options, **named)
        put_grad(input, backward(get_grad(out), out))
        return out

    ex.register_implementation(sym, checker=_is_real, grad_transform=rule)


def _operator(name: str, like: Callable[..., Any], run: Callable[..., torch.Tensor]) -> Symbol:
    op = ex.register_operator(name, like=like, fn=run)
    op.module = MODULE
    implementations[name] = run
    return op


def _is_real(input: Any, *options: Any, **named: Any) -> bool:
    return is_float_dtype(input.dtype)


def _one(grads: Any) -> Any:
    return grads[0] if isinstance(grads, tuple) else grads


def _gelu(g: Any, input: Any, *, approximate: str = "none") -> Any:
    assert ltorch.gelu.vjp_rule is not None
    return _one(ltorch.gelu.vjp_rule(g, None, input, approximate=approximate))


def _register_gelu() -> None:
    backward = _operator("gelu_backward", _gelu, aten.gelu_backward)

    def rule(input: Any, *, approximate: str = "none") -> Any:
        out = ltorch.gelu(input, approximate=approximate)
        put_grad(input, backward(get_grad(out), input, approximate=approximate))
        return out

    ex.register_implementation(ltorch.gelu, checker=_is_real, grad_transform=rule)


_register_gelu()
_by_input(ltorch.silu, lambda g, input, inplace=False: aten.silu_backward(g, input))
_by_input(ltorch.mish, lambda g, input, inplace=False: aten.mish_backward(g, input))
_by_input(ltorch.hardswish, lambda g, input, inplace=False: aten.hardswish_backward(g, input))
_by_output(
    ltorch.relu, lambda g, out: aten.threshold_backward(g, out, 0), lambda g, out: ltorch.where(out <= 0, 0.0, g)
)
