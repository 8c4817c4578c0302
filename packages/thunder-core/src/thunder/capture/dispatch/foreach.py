# SPDX-License-Identifier: Apache-2.0
"""Handlers of `torch._foreach_*`, which optimizers and gradient clipping call: one operation for each tensor.

This is the definition of these functions, and how torch runs them on a CPU. Executors may join the operations again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thunder.capture.base.fallback import fall_back
from thunder.capture.dispatch.registry import handles
from thunder.capture.tensors.tracer import Tracer

__all__: list[str] = []

# Functions for which a list of tensors has the same meaning as a call for each tensor.
_NAMES = (
    "abs", "acos", "add", "asin", "atan", "ceil", "clamp_max", "clamp_min", "cos", "cosh", "div", "erf", "erfc", "exp",
    "expm1", "floor", "frac", "lerp", "lgamma", "log", "log10", "log1p", "log2", "mul", "neg", "pow", "reciprocal",
    "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "sub", "tan", "tanh", "trunc",
)  # fmt: skip


def _for_each(name: str, function: Callable[..., Any]) -> None:
    listed = getattr(torch, name, None)
    if listed is None:
        return

    @handles(listed, traced=True)
    def handler(tracer: Tracer, xs: Any, *args: Any, **kwargs: Any) -> Any:
        args = tuple([_numbers(x, name) for x in args])
        kwargs = {k: _numbers(x, name) for k, x in kwargs.items()}
        if not isinstance(xs, (list, tuple)):  # a number to the power of tensors
            return tuple([function(xs, x) for x in args[0]])
        found = [
            function(x, *[_item(a, i) for a in args], **{k: _item(a, i) for k, a in kwargs.items()})
            for i, x in enumerate(xs)
        ]
        return found if name.endswith("_") else tuple(found)


def _numbers(x: Any, name: str) -> Any:
    """Return the numbers in a tensor, one for each tensor of a list. A tensor without dimensions is one factor."""
    if not isinstance(x, torch.Tensor) or not x.ndim:
        return x
    if x.device.type != "cpu":
        fall_back(f"the program calls {name} with numbers in a tensor that is not on the CPU")
    return x.tolist()


def _item(x: Any, i: int) -> Any:
    return x[i] if isinstance(x, (list, tuple)) else x


def _with_value(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, a, b, value=1: function(x, a, b, value=value)


for _name in _NAMES:
    _for_each(f"_foreach_{_name}", getattr(torch, _name))
    _for_each(f"_foreach_{_name}_", getattr(torch.Tensor, f"{_name}_"))
for _name in ("addcdiv", "addcmul"):
    _for_each(f"_foreach_{_name}", _with_value(getattr(torch, _name)))
    _for_each(f"_foreach_{_name}_", _with_value(getattr(torch.Tensor, f"{_name}_")))
for _name, _bound in (("maximum", torch.clamp_min), ("minimum", torch.clamp_max)):  # by tensors or numbers
    _for_each(f"_foreach_{_name}", _bound)
    _for_each(f"_foreach_{_name}_", getattr(torch.Tensor, f"{_bound.__name__}_"))
_for_each("_foreach_clone", torch.clone)
_for_each("_foreach_max", torch.max)
_for_each("_foreach_zero_", torch.Tensor.zero_)
_for_each("_foreach_copy_", torch.Tensor.copy_)
_for_each("_foreach_norm", lambda x, ord=2, dtype=None: torch.linalg.vector_norm(x, ord, dtype=dtype))
