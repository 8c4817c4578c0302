# SPDX-License-Identifier: Apache-2.0
"""`torch._foreach_*`: kernels for lists of tensors, which return new tensors or write to those of the first list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder.runtime.kernels.table import kernel
from thunder.runtime.torch_originals import original_torch

__all__ = ["NAMES"]

#: The names behind `torch._foreach_` of the functions that programs call, if this version of torch has them.
NAMES = (
    "abs", "acos", "add", "asin", "atan", "ceil", "clamp_max", "clamp_min", "cos", "cosh", "div", "erf", "erfc",
    "exp", "expm1", "floor", "frac", "lerp", "lgamma", "log", "log10", "log1p", "log2", "mul", "neg", "pow",
    "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "sub", "tan", "tanh", "trunc",
    "addcdiv", "addcmul", "max", "maximum", "minimum", "norm",
)  # fmt: skip


def _returning(name: str, listed: Callable[..., Any]) -> Callable[..., Any]:
    def run(xs: Any, *args: Any, **kwargs: Any) -> list[Any]:
        return list(listed(xs, *args, **kwargs))

    run.__name__ = f"foreach_{name}"
    return run


def _writing(name: str, listed: Callable[..., Any]) -> Callable[..., Any]:
    def run(xs: Any, *args: Any, **kwargs: Any) -> Any:
        listed(xs, *args, **kwargs)
        return xs

    run.__name__ = f"foreach_{name}_"
    return run


for _name in NAMES:
    _listed = getattr(original_torch, f"_foreach_{_name}", None)
    if _listed is not None:
        kernel(_returning(_name, _listed))
    _listed = getattr(original_torch, f"_foreach_{_name}_", None)
    if _listed is not None:
        kernel(_writing(_name, _listed))
