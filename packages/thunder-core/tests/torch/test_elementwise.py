# SPDX-License-Identifier: Apache-2.0
"""Results and gradients of elementwise operations at the corners: signed zeros, ties, bounds, infinities, NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thunder
from thunder.core.errors import ThunderError
from thunder.passes.autodiff import differentiate
from thunder.tests.running import execution_trace, to_primitives
from thunder.torch import private

CORNERS = torch.tensor(
    [0.0, -0.0, 1e-30, -1e-10, 0.3, -0.3, 0.5, -0.5, 1.0, -1.0, 1.5, -1.5, 2.0, -2.0, 2.5, -2.5, 3.0, -3.0, 6.0, -6.0]
    + [20.0, -20.0, 20.5, 100.0, -100.0, 710.0, -710.0, 1e10, -1e10, math.inf, -math.inf, math.nan],
    dtype=torch.float64,
)
INSIDE = torch.tensor([-2.3, -1.2, -0.7, -0.4, 0.2, 0.6, 0.9, 1.3, 2.1, 4.5], dtype=torch.float64)

_UNARY = (
    "acos acosh asin asinh atan atanh abs angle ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 floor "
    "frac i0 lgamma log log10 log1p log2 logit nan_to_num neg positive rad2deg reciprocal relu round rsqrt selu "
    "sigmoid sign sgn sin sinc sinh sqrt square tan tanh trunc"
)
_SPECIAL = "entr erfcx i0e i1 i1e ndtr ndtri"  # log_ndtr: torch's own gradient is inexact and then NaN far below zero
_ACTIVATIONS = (
    "relu6 elu celu gelu silu mish softplus logsigmoid softsign tanhshrink hardswish hardtanh hardshrink softshrink "
    "leaky_relu"
)  # hardsigmoid: torch's gradient has the precision of float32 in float64
OF_ONE: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in _UNARY.split()},
    **{name: getattr(torch.special, name) for name in _SPECIAL.split()},
    **{name: getattr(F, name) for name in _ACTIVATIONS.split()},
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "logit with eps": lambda x: torch.logit(x, eps=0.1),
    "round to one digit": lambda x: torch.round(x, decimals=1),
    "softplus with a threshold": lambda x: F.softplus(x, 2.0, 5.0),
    "celu with alpha": lambda x: F.celu(x, 2.0),
    "threshold": lambda x: F.threshold(x, 0.5, 7.0),
    "clamp": lambda x: torch.clamp(x, -1, 2),
    "clamp to NaN": lambda x: torch.clamp(x, math.nan, 1.0),
    "clamp from below": lambda x: torch.clamp(x, min=1.0),
    "polygamma": lambda x: torch.polygamma(2, x),
    "mvlgamma": lambda x: torch.mvlgamma(x + 5, 2),
    "x % 2.5": lambda x: x % 2.5,
    "fmod": lambda x: torch.fmod(x, -2.5),
    "3 / x": lambda x: 3 / x,
    "quotient towards zero": lambda x: torch.div(x, 2.5, rounding_mode="trunc"),
    "2 - x": lambda x: 2 - x,
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "masked_fill": lambda x: x.masked_fill(x > 1, -1),
    "copysign": lambda x: torch.copysign(x, -1.0),
    "float_power": lambda x: torch.float_power(x, 1.5),
    "xlogy of x": lambda x: torch.xlogy(x, 2.0),
    "xlogy of 0": lambda x: torch.xlogy(0.0, x),
    "frexp": lambda x: torch.frexp(x).mantissa,
    "lerp": lambda x: torch.lerp(x, x * 2, 0.3),
    **{f"x ** {n}": lambda x, n=n: x**n for n in (0, 1, 2, 3, 0.5, -0.5, -1, -2, 2.5)},
    **{f"{n} ** x": lambda x, n=n: n**x for n in (0.0, 1.0, 2, 0.5)},
}
_BINARY = (
    "add sub mul true_divide atan2 copysign fmax fmin fmod hypot logaddexp logaddexp2 maximum minimum pow "
    "remainder xlogy float_power"
)
if private.VERSION >= (2, 13):
    _BINARY += " nextafter"  # an older torch has no gradient of it
OF_TWO: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in _BINARY.split()},
    "xlog1py": torch.special.xlog1py,
    "quotient rounded down": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "quotient towards zero": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "clamp between tensors": lambda a, b: torch.clamp(a, b, b + 1),
    "clamp from above": lambda a, b: torch.clamp(a, max=b),
    "clamp_min": torch.clamp_min,
    "where": lambda a, b: torch.where(a > b, a, b),
    "lerp": lambda a, b: torch.lerp(a, b, a),
    "polar": lambda a, b: torch.view_as_real(torch.polar(a, b)),
}
CASES = [
    *[pytest.param(fn, 1, id=name) for name, fn in OF_ONE.items()],
    *[pytest.param(fn, 2, id=f"two: {name}") for name, fn in OF_TWO.items()],
]


def pairs(values: torch.Tensor, operands: int) -> list[torch.Tensor]:
    """The values, or every pair of them."""
    return [values] if operands == 1 else [values.repeat(len(values)), values.repeat_interleave(len(values))]


def with_gradients(fn: Callable[..., Any], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The result and the gradients under cotangents that differ from element to element."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = fn(*leaves)
    if not out.requires_grad:
        return [out]
    cotangent = torch.linspace(0.5, 1.5, out.numel(), dtype=torch.float64).reshape(out.shape).to(out.dtype)
    found = torch.autograd.grad(out, leaves, cotangent, allow_unused=True)
    return [out.detach(), *(torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found))]


@pytest.mark.parametrize(("fn", "operands"), CASES)
def test_corners(fn: Callable[..., Any], operands: int) -> None:
    """In double precision, what torch gives: values and gradients.

    What a gradient is at NaN depends in torch on whether the element falls into a vector or into the rest.
    """
    inputs = pairs(CORNERS, operands)
    (expected, *expected_grads) = with_gradients(fn, inputs)
    (found, *grads) = with_gradients(thunder.jit(fn), inputs)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12, equal_nan=True)
    known = ~torch.stack(inputs).isnan().any(0)
    for ours, theirs in zip(grads, expected_grads):
        torch.testing.assert_close(ours[known], theirs[known], rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize(("fn", "operands"), CASES)
def test_second_derivatives(fn: Callable[..., Any], operands: int) -> None:
    """Gradient rules are differentiable again, which differentiating a trace twice shows."""
    inputs = pairs(INSIDE, operands)
    if operands == 2:
        inputs[0] = inputs[0] + 0.01  # no ties
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = fn(*leaves)
    first = torch.autograd.grad(out, leaves, torch.ones_like(out), create_graph=True, allow_unused=True)
    first = [g for g in first if g is not None and g.requires_grad]
    if not first:
        return
    second = torch.autograd.grad(first, leaves, [torch.ones_like(g) for g in first], allow_unused=True)
    jitted = thunder.jit(fn)
    jitted(*inputs)
    try:
        program = differentiate(differentiate(thunder.last_traces(jitted)[0]))
    except ThunderError as error:
        # A gradient of constant pieces.
        assert "no output depends" in str(error) and all(g is None or not g.any() for g in second)
        return
    ours = execution_trace(program, ()).python_callable()(*inputs)
    for g, theirs, x in zip(ours, second, inputs):
        expected = torch.zeros_like(x) if theirs is None else theirs
        known = expected.isfinite()  # 0 ** x: torch's second derivative is NaN, ours 0
        torch.testing.assert_close(g[known], expected[known], rtol=1e-9, atol=1e-9)


def every_number(dtype: torch.dtype) -> torch.Tensor:
    """All the finite ones below 10000 of a 16-bit type."""
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    return numbers[numbers.abs() < 1e4]


def steps_off(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest distance from the exact value, in steps of the dtype at that value; 0 where it rounds to the same."""
    info = torch.finfo(found.dtype)
    known = exact.isfinite()
    found, exact = found[known], exact[known]
    step = torch.exp2(torch.floor(torch.log2(exact.abs().clamp(min=info.tiny)))) * info.eps
    off = torch.where(found == exact.to(found.dtype), 0.0, (found.double() - exact).abs() / step)
    return float(off.max()) if off.numel() else 0.0


_COMPOSITES = {
    **{name: OF_ONE[name] for name in _ACTIVATIONS.split()},
    **{name: OF_ONE[name] for name in ("gelu by tanh", "sigmoid", "sinc", "logit", "entr", "lerp", "xlogy of x")},
    "selu": F.selu,
    "hardsigmoid": F.hardsigmoid,
    "logaddexp": lambda x: torch.logaddexp(x, x * 0 + 1),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("name", _COMPOSITES)
def test_sixteen_bits(name: str, dtype: torch.dtype) -> None:
    """For every number there is, a decomposition run primitive by primitive is as exact as torch's kernel."""
    fn = _COMPOSITES[name]
    x = every_number(dtype)
    theirs, exact = fn(x), fn(x.double())
    jitted = thunder.jit(fn)
    jitted(x)
    parts = to_primitives(thunder.last_traces(jitted)[0])
    ours = execution_trace(parts, ()).python_callable()(x)
    assert ours.dtype is theirs.dtype is dtype
    assert steps_off(ours, exact) <= max(0.51, 1.01 * steps_off(theirs, exact))


SPELLINGS = {
    "absolute": "abs", "arccos": "acos", "arctan2": "atan2", "clip": "clamp", "divide": "div", "fix": "trunc",
    "greater_equal": "ge", "less": "lt", "multiply": "mul", "negative": "neg", "not_equal": "ne", "subtract": "sub",
}  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_other_spellings(spelling: str) -> None:
    """A function, a method and an in-place method under another name are the same operation."""
    x = torch.rand(3, 4)
    args = (0.2, 0.8) if spelling == "clip" else (x,) if SPELLINGS[spelling] in _TWO_OPERANDS else ()
    for call in (
        lambda x: getattr(torch, spelling)(x, *args),
        lambda x: getattr(x, spelling)(*args),
        lambda x: getattr(x.clone(), f"{spelling}_")(*args),
    ):
        jitted = thunder.jit(call)
        assert torch.equal(jitted(x), call(x))
        assert f"torch.{SPELLINGS[spelling]}" in {bsym.sym.id for bsym in thunder.last_traces(jitted)[0].bound_symbols}


_TWO_OPERANDS = {"atan2", "div", "ge", "lt", "mul", "ne", "sub"}


def test_numbers_on_either_side() -> None:
    """Python's operators with a number first."""
    x = torch.tensor([[-2.0, 0.5], [1.0, 3.0]])
    i = torch.tensor([1, 2, 5])
    for call in (
        lambda x, i: (2 + x, 2 - x, 2 * x, 2 / x, 2 // x, 2 % x, 2**x, 1j * x, True + x),
        lambda x, i: (3 & i, 4 | i, 1 ^ i, ~i, 2 << i, 100 >> i, -7 // i, -7 % i, i / 2, i + 2.5, i * True, 7 - i),
    ):
        for ours, theirs in zip(thunder.jit(call)(x, i), call(x, i)):
            assert ours.dtype is theirs.dtype and torch.equal(ours, theirs)
