# SPDX-License-Identifier: Apache-2.0
"""Powers, exponentials, logarithms and trigonometry: elementwise functions of real and complex numbers.

Gradients follow torch's convention for complex numbers: the cotangent times the conjugate of the derivative.
"""

from __future__ import annotations

import cmath
import math
from functools import partial
from typing import Any

from thunder.core.dtypes import is_complex_dtype
from thunder.core.prims.elementwise_base import INEXACT, KIND, conjugated, elementwise
from thunder.core.symbol import Symbol

_function = partial(elementwise, categories=INEXACT, promotion=KIND.INT_TO_FLOAT)
# Declares a function that autocast computes in float32 on a GPU.
_float32_on_gpus = partial(_function, facts={"autocast": {"cuda": "float32"}})

exp = _float32_on_gpus(
    "exp",
    "Return e to the power of each element.",
    number_fn="exp",
    vjp=lambda g, out, a: g * conjugated(out),
    numpy="exp",
)
exp2 = _function(
    "exp2",
    "Return 2 to the power of each element.",
    number_fn=lambda x: 2.0**x,
    vjp=lambda g, out, a: g * conjugated(out) * math.log(2),
    torch=("torch.exp2", "torch.special.exp2"),
)
expm1 = _float32_on_gpus(
    "expm1",
    "Return exp({a}) - 1, with full precision for elements near zero.",
    number_fn="expm1",
    vjp=lambda g, out, a: g * (conjugated(out) + 1),
    torch=("torch.expm1", "torch.special.expm1"),
    numpy="expm1",
)
log = _float32_on_gpus(
    "log",
    "Return the natural logarithm of each element.",
    number_fn="log",
    vjp=lambda g, out, a: g / conjugated(a),
    numpy="log",
    domain={"low": 0.1},
)
log1p = _float32_on_gpus(
    "log1p",
    "Return log(1 + {a}), with full precision for elements near zero.",
    number_fn="log1p",
    vjp=lambda g, out, a: g / conjugated(a + 1),
    torch=("torch.log1p", "torch.special.log1p"),
    numpy="log1p",
    domain={"low": -0.9},
)


def _logarithm(base: int, factor: float) -> Symbol:
    return _float32_on_gpus(
        f"log{base}",
        f"Return the logarithm of each element to base {base}.",
        number_fn=f"log{base}",
        vjp=lambda g, out, a: g / (conjugated(a) * factor),
        domain={"low": 0.1},
    )


# torch's constant for 10 is one unit in the last place below log(10).
log2, log10 = _logarithm(2, math.log(2)), _logarithm(10, math.nextafter(math.log(10), 0))
sqrt = _function(
    "sqrt",
    "Return the square root of each element.",
    number_fn="sqrt",
    vjp=lambda g, out, a: g / (2 * conjugated(out)),
    numpy="sqrt",
    domain={"low": 0},
)
rsqrt = _float32_on_gpus(
    "rsqrt",
    "Return one over the square root of each element.",
    number_fn=lambda x: 1 / (cmath if isinstance(x, complex) else math).sqrt(x),
    vjp=lambda g, out, a: -0.5 * g * conjugated(out * out * out),
    domain={"low": 0.1},
)
reciprocal = _float32_on_gpus(
    "reciprocal",
    "Return one over each element.",
    number_fn=lambda x: 1 / x,
    vjp=lambda g, out, a: -g * conjugated(out * out),
    domain={"low": 0.1},
)
sin = _function(
    "sin",
    "Return the sine of each element.",
    number_fn="sin",
    vjp=lambda g, out, a: g * conjugated(cos(a)),
    numpy="sin",
)
cos: Symbol = _function(
    "cos",
    "Return the cosine of each element.",
    number_fn="cos",
    vjp=lambda g, out, a: -g * conjugated(sin(a)),
    numpy="cos",
)
tan = _float32_on_gpus(
    "tan",
    "Return the tangent of each element.",
    number_fn="tan",
    vjp=lambda g, out, a: g * conjugated(1 + out * out),
    domain={"low": -1.5, "high": 1.5},
)
asin = _float32_on_gpus(
    "asin",
    "Return the inverse sine of each element, in [-pi/2, pi/2].",
    number_fn="asin",
    vjp=lambda g, out, a: g * conjugated(rsqrt(1 - a * a)),
    torch=("torch.asin", "torch.arcsin"),
    domain={"low": -1, "high": 1},
)
acos = _float32_on_gpus(
    "acos",
    "Return the inverse cosine of each element, in [0, pi].",
    number_fn="acos",
    vjp=lambda g, out, a: -g * conjugated(rsqrt(1 - a * a)),
    torch=("torch.acos", "torch.arccos"),
    domain={"low": -1, "high": 1},
)
atan = _function(
    "atan",
    "Return the inverse tangent of each element, in [-pi/2, pi/2].",
    number_fn="atan",
    vjp=lambda g, out, a: g / conjugated(a * a + 1),
    torch=("torch.atan", "torch.arctan"),
)
sinh = _float32_on_gpus(
    "sinh",
    "Return the hyperbolic sine of each element.",
    number_fn="sinh",
    vjp=lambda g, out, a: g * conjugated(cosh(a)),
    domain={"low": -5, "high": 5},
)
cosh: Symbol = _float32_on_gpus(
    "cosh",
    "Return the hyperbolic cosine of each element.",
    number_fn="cosh",
    vjp=lambda g, out, a: g * conjugated(sinh(a)),
    domain={"low": -5, "high": 5},
)
tanh = _function(
    "tanh",
    "Return the hyperbolic tangent of each element.",
    number_fn="tanh",
    vjp=lambda g, out, a: g * conjugated(1 - out * out),
    torch=("torch.tanh", "torch.nn.functional.tanh"),
    numpy="tanh",
)
asinh = _function(
    "asinh",
    "Return the inverse hyperbolic sine of each element.",
    number_fn="asinh",
    vjp=lambda g, out, a: g * conjugated(rsqrt(a * a + 1)),
    torch=("torch.asinh", "torch.arcsinh"),
)
acosh = _function(
    "acosh",
    "Return the inverse hyperbolic cosine of each element, which is at least zero.",
    number_fn="acosh",
    torch=("torch.acosh", "torch.arccosh"),
    domain={"low": 1},
)


@acosh.vjp
def _(g: Any, out: Any, a: Any) -> Any:
    if is_complex_dtype(a.dtype):
        # rsqrt((a + 1) * (a - 1)) would choose another branch of the complex square root.
        return g * conjugated(rsqrt(a + 1) * rsqrt(a - 1))
    return g * rsqrt(a * a - 1)


atanh = _function(
    "atanh",
    "Return the inverse hyperbolic tangent of each element.",
    number_fn="atanh",
    vjp=lambda g, out, a: g / conjugated(1 - a * a),
    torch=("torch.atanh", "torch.arctanh"),
    domain={"low": -0.95, "high": 0.95},
)
