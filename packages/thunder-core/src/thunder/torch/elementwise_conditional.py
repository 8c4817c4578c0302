# SPDX-License-Identifier: Apache-2.0
"""Operations of the torch language that select, clamp, fill and interpolate."""

from __future__ import annotations

import math
from typing import Any

import torch

from thunder import clang
from thunder.core import prims
from thunder.core.dtypes import (
    BOOL,
    COMPLEX,
    FLOAT,
    INTEGER,
    bool8,
    complex64,
    corresponding_real_dtype,
    dtype,
    float32,
    float64,
    int64,
    to_torch_dtype,
    uint8,
)
from thunder.core.errors import TracingError, check
from thunder.core.prims.elementwise_base import conjugated, differentiable
from thunder.core.prims.elementwise_binary import extreme_errors, extreme_samples
from thunder.core.promotion import result_type
from thunder.core.proxies import TensorProxy, number_value
from thunder.core.samples import MakeTensor, SampleInput, elementwise_binary, elementwise_unary
from thunder.core.symint.numbers import SymbolicNumber
from thunder.torch.base import language, torchsymbol
from thunder.torch.elementwise_base import ELEMENTWISE, in_float32, rule_in_float32, sum_to
from thunder.torch.private import TIES_ARE_SHARED


@torchsymbol(torch.where, is_method=False, tags=ELEMENTWISE)
def where(condition: Any, input: Any = None, other: Any = None) -> Any:
    """Return `input` where `condition` is true, otherwise `other`."""
    if input is None and other is None:
        raise TracingError(
            "the size of the result of torch.where(condition) is the number of true elements of the condition, which "
            "is not known while tracing. Choose between two values (torch.where(condition, a, b)), or call torch.where "
            "outside the traced function"
        )
    if isinstance(condition, TensorProxy) and condition.dtype is uint8:
        condition = clang.ne(condition, 0)
    check(
        not isinstance(condition, TensorProxy) or condition.dtype is bool8,
        lambda: f"where expected condition to be a boolean tensor, but got a tensor with dtype {condition.dtype}",
    )
    return clang.where(condition, input, other)


def _where_method(input: Any, condition: Any, other: Any) -> Any:
    return where(condition, input, other)


language.add_method("where", _where_method)


@where.samples
def _(make: MakeTensor) -> Any:
    for s in elementwise_binary(make, numbers=False):
        yield SampleInput(make(s.args[0].shape, dtype=bool8), *s.args)
    yield SampleInput(make((3, 1), dtype=bool8), make((1, 4)), make(()))
    yield SampleInput(make((4, 4), dtype=bool8), make((4, 4)), 1)
    yield SampleInput(make((4, 4), dtype=bool8), 0, make((4, 1)))
    yield SampleInput(make((4, 4), dtype=bool8), 1, 2.5)


@where.errors
def _(make: MakeTensor) -> Any:
    a = make((2, 2), dtype=float32)
    yield SampleInput(make((2, 2), dtype=int64), a, a), RuntimeError, "expected condition to be a boolean tensor"
    yield SampleInput(make((3,), dtype=bool8), a, a), RuntimeError, "must match the size of tensor"
    yield SampleInput(make((3,), dtype=bool8)), TracingError, "the number of true elements of the condition"


# -- clamp ------------------------------------------------------------------------------------------------------------
def _bounded(name: str, input: Any, low: Any, high: Any) -> Any:
    kind = result_type(input, low, high)
    of_tensors = isinstance(low, TensorProxy) or isinstance(high, TensorProxy)
    if kind.category == COMPLEX or (kind.category == BOOL and not of_tensors):
        what = "bool" if kind.category == BOOL else "complex types"
        raise NotImplementedError(f"{name} is not supported for {what}")
    input, low, high = (clang.maybe_convert_to_dtype(x, kind) for x in clang.maybe_broadcast(input, low, high))
    if low is not None:
        input = prims.maximum(input, low)
    return input if high is None else prims.minimum(input, high)


def _bounded_grads(g: Any, input: Any, low: Any, high: Any) -> tuple[Any, Any, Any]:
    """Return the gradients of the clamped value and of its bounds.

    Where the value equals a bound, the gradient goes to the value. This differs since torch 2.14: if the bounds are
    numbers, no operand receives the gradient. If a bound is a tensor, the value and the bound share the gradient.
    """
    if TIES_ARE_SHARED:
        tensors = isinstance(low, TensorProxy) or isinstance(high, TensorProxy)
        return _shared_grads(g, input, low, high) if tensors else (_strictly_inside(g, input, low, high), None, None)
    not_below = True if low is None else clang.ge(input, low)
    not_above = True if high is None else clang.le(input, high)
    inside = not_below if high is None else not_above if low is None else clang.logical_and(not_below, not_above)
    by_low = by_high = None
    if differentiable(low):
        below = clang.lt(input, low)
        by_low = clang.where(below if high is None else clang.logical_and(below, clang.lt(low, high)), g, 0)
    if differentiable(high):
        above = clang.gt(input, high)
        by_high = clang.where(above if low is None else clang.logical_or(above, clang.lt(high, low)), g, 0)
    return sum_to(clang.where(inside, g, 0), input), sum_to(by_low, low), sum_to(by_high, high)


def _strictly_inside(g: Any, input: Any, low: Any, high: Any) -> Any:
    if low is not None:
        g = clang.where(clang.gt(input, low), g, 0)
    return g if high is None else clang.where(clang.lt(input, high), g, 0)


def _shared_grads(g: Any, input: Any, low: Any, high: Any) -> tuple[Any, Any, Any]:
    """Return the gradients. Where the value equals a bound, each of them receives half of the gradient."""
    half = g * 0.5
    by_input, by_low, by_high = g, None, None
    if low is not None:
        by_input = clang.where(clang.lt(input, low), 0, clang.where(clang.eq(input, low), half, g))
        by_low = clang.where(clang.lt(input, low), g, clang.where(clang.eq(input, low), half, 0))
    if high is not None:
        at_both = half if low is None else clang.where(clang.eq(low, high), g, half)
        by_input = clang.where(clang.gt(input, high), 0, clang.where(clang.eq(input, high), at_both, by_input))
        by_high = clang.where(clang.gt(input, high), g, clang.where(clang.eq(input, high), half, 0))
    if low is not None and high is not None:
        crossed = clang.gt(low, high)
        meet = clang.logical_and(clang.eq(low, high), clang.eq(input, low))
        by_input = clang.where(crossed, 0, by_input)
        by_low = clang.where(clang.logical_or(crossed, meet), 0, by_low)
        by_high = clang.where(crossed, g, clang.where(meet, 0, by_high))
    return (
        sum_to(by_input, input),
        sum_to(by_low, low) if differentiable(low) else None,
        sum_to(by_high, high) if differentiable(high) else None,
    )


@torchsymbol(torch.clamp, torch.clip, tags=ELEMENTWISE)
def clamp(input: Any, min: Any = None, max: Any = None) -> Any:
    """Return `input` clamped to [`min`, `max`]."""
    check(
        min is not None or max is not None,
        lambda: "torch.clamp: At least one of 'min' or 'max' must not be None",
    )
    return _bounded("clamp", input, min, max)


@torchsymbol(torch.clamp_min, tags=ELEMENTWISE)
def clamp_min(input: Any, min: Any) -> Any:
    """Return the larger of `input` and `min`."""
    return _bounded("clamp_min", input, min, None)


@torchsymbol(torch.clamp_max, tags=ELEMENTWISE)
def clamp_max(input: Any, max: Any) -> Any:
    """Return the smaller of `input` and `max`."""
    return _bounded("clamp_max", input, None, max)


@clamp.vjp
def _(g: Any, out: Any, input: Any, min: Any = None, max: Any = None) -> Any:
    return _bounded_grads(g, input, min, max)


@clamp_min.vjp
def _(g: Any, out: Any, input: Any, min: Any) -> Any:
    by_input, by_min, _ = _bounded_grads(g, input, min, None)
    return by_input, by_min


@clamp_max.vjp
def _(g: Any, out: Any, input: Any, max: Any) -> Any:
    by_input, _, by_max = _bounded_grads(g, input, None, max)
    return by_input, by_max


@clamp.samples
def _(make: MakeTensor) -> Any:
    for s in elementwise_unary(make):
        yield SampleInput(*s.args, -2, 3)
    yield SampleInput(make((4, 4)), 1)
    yield SampleInput(make((4, 4)), None, 1)
    yield SampleInput(make((4, 4)), max=2.5)
    yield SampleInput(make((4, 4)), 3, -3)
    yield SampleInput(make((4, 4)), make((4, 4)), make((4, 4)))
    yield SampleInput(make((4, 1)), make((1, 4)), make(()))
    yield SampleInput(make((4, 4)), max=make((4,)))


@clamp.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((3,))), RuntimeError, "At least one of 'min' or 'max' must not be None"
    yield (
        SampleInput(make((3,), dtype=complex64), 0, 1),
        NotImplementedError,
        "clamp is not supported for complex types",
    )


for _bound in (clamp_min, clamp_max):
    _bound.samples(elementwise_binary)


# -- extremes of two --------------------------------------------------------------------------------------------------
def _first_where(name: str, a: Any, b: Any, wins: Any) -> Any:
    check(not a.dtype.is_complex, lambda: f"{name} not implemented for complex tensors.")
    return clang.where(clang.logical_or(wins(a, b), clang.isnan(b)), a, b)


@torchsymbol(torch.fmax, tags=ELEMENTWISE)
def fmax(input: Any, other: Any) -> Any:
    """Return the larger of two elements. If one of them is NaN, return the other one."""
    return clang.base.elementwise_binary(input, other, prim=lambda a, b: _first_where("fmax", a, b, clang.ge))


@torchsymbol(torch.fmin, tags=ELEMENTWISE)
def fmin(input: Any, other: Any) -> Any:
    """Return the smaller of two elements. If one of them is NaN, return the other one."""
    return clang.base.elementwise_binary(input, other, prim=lambda a, b: _first_where("fmin", a, b, clang.le))


def _first_where_grads(g: Any, a: Any, b: Any, wins: Any) -> tuple[Any, Any]:
    """Return the gradients of two operands, where `wins(a, b)` selects the first one.

    The gradient of equal elements goes to the first operand. Since torch 2.14, each operand receives half of it.
    """
    of_first = clang.where(clang.logical_or(wins(a, b), clang.isnan(b)), g, 0)
    of_second = clang.where(clang.logical_or(wins(a, b), clang.isnan(b)), 0, g)
    if TIES_ARE_SHARED:
        equal, half = clang.eq(a, b), g * 0.5
        of_first, of_second = clang.where(equal, half, of_first), clang.where(equal, half, of_second)
    return sum_to(of_first, a), sum_to(of_second, b)


@fmax.vjp
def _(g: Any, out: Any, input: Any, other: Any) -> Any:
    return _first_where_grads(g, input, other, clang.ge)


@fmin.vjp
def _(g: Any, out: Any, input: Any, other: Any) -> Any:
    return _first_where_grads(g, input, other, clang.le)


for _op in (fmax, fmin):
    _op.samples(extreme_samples)
    _op.errors(extreme_errors)


# -- filling ----------------------------------------------------------------------------------------------------------
def number_of_dtype(value: Any, kind: dtype) -> Any:
    """Return `value` as a number that a tensor of dtype `kind` can contain. Otherwise raise torch's error."""
    value = number_value(value)
    if isinstance(value, complex) and kind.category < COMPLEX:
        raise RuntimeError(f"value {value} cannot be converted to type {kind} without overflow")
    if kind.category == INTEGER and isinstance(value, float):
        check(math.isfinite(value), lambda: f"value {value} cannot be converted to type {kind} without overflow")
        return int(value)
    return bool(value) if kind.category == BOOL else clang.maybe_convert_to_dtype(value, kind)


@torchsymbol(torch.masked_fill, tags=ELEMENTWISE, layout="contiguous")
def masked_fill(input: Any, mask: Any, value: Any) -> Any:
    """Return `input` with `value` where `mask` is true."""
    check(
        mask.dtype is bool8, lambda: f"masked_fill_ only supports boolean masks, but got mask with dtype {mask.dtype}"
    )
    if not isinstance(value, TensorProxy):
        value = number_of_dtype(value, input.dtype)
    else:
        check(
            value.ndim == 0,
            lambda: (
                f"masked_fill_ only supports a 0-dimensional value tensor, but got tensor with {value.ndim} "
                "dimension(s)."
            ),
        )
        value = clang.maybe_convert_to_dtype(value, input.dtype)
    mask, value, input = clang.maybe_broadcast(mask, value, input)
    return prims.where(mask, value, input)


@masked_fill.samples
def _(make: MakeTensor) -> Any:
    for shape, mask in (((4, 4), (4, 4)), ((), ()), ((4, 1), (1, 3)), ((0, 3), (3,)), ((2, 3, 4), (3, 1))):
        yield SampleInput(make(shape), make(mask, dtype=bool8), 1)
    yield SampleInput(make((4, 4)), make((4, 4), dtype=bool8), make(()))
    if make.dtype.is_floating_point:
        yield SampleInput(make((4, 4)), make((4, 4), dtype=bool8), -math.inf)


@masked_fill.errors
def _(make: MakeTensor) -> Any:
    a, m = make((3,), dtype=float32), make((3,), dtype=bool8)
    yield SampleInput(a, make((3,), dtype=uint8), 1), RuntimeError, "only supports boolean masks"
    yield SampleInput(a, m, make((1,))), RuntimeError, "only supports a 0-dimensional value tensor"
    yield SampleInput(a, m, 1j), RuntimeError, "cannot be converted to type"


@torchsymbol(torch.nan_to_num, tags=ELEMENTWISE)
def nan_to_num(input: Any, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Any:
    """Replace NaN by `nan` (default: 0), and infinities by `posinf` and `neginf` (default: extreme finite numbers)."""
    if input.dtype.category < FLOAT:
        return prims.clone(input)
    if input.dtype.is_complex:
        parts = (_finite(part, nan, posinf, neginf) for part in (prims.real(input), prims.imag(input)))
        return prims.complex(*parts)
    return _finite(input, nan, posinf, neginf)


def _finite(x: Any, nan: float | None, posinf: float | None, neginf: float | None) -> Any:
    limits = torch.finfo(to_torch_dtype(corresponding_real_dtype(x.dtype)))
    out = clang.where(clang.isnan(x), 0.0 if nan is None else float(nan), x)
    out = clang.where(clang.eq(x, math.inf), limits.max if posinf is None else float(posinf), out)
    return clang.where(clang.eq(x, -math.inf), limits.min if neginf is None else float(neginf), out)


@nan_to_num.vjp
def _(g: Any, out: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
    return g * clang.isfinite(input)


@nan_to_num.samples
def _(make: MakeTensor) -> Any:
    yield from elementwise_unary(make)
    x = make((3, 4), low=1)
    if x.is_floating_point() or x.is_complex():
        for value in (math.inf, -math.inf, math.nan):
            yield SampleInput(make((3, 4), low=1) * value)
        yield SampleInput(x * math.nan, 2.0)
        yield SampleInput(x * math.inf, posinf=3.0)
        yield SampleInput(x * -math.inf, neginf=-3.0)


# -- interpolation and fused arithmetic -------------------------------------------------------------------------------
@torchsymbol(torch.lerp, tags=ELEMENTWISE)
def lerp(input: Any, end: Any, weight: Any) -> Any:
    """Compute input + weight * (end - input)."""
    check(input.dtype is end.dtype, lambda: f"expected dtype {input.dtype} for `end` but got dtype {end.dtype}")
    if input.dtype.category < FLOAT:
        raise NotImplementedError(f'"lerp" not implemented for {input.dtype}: it requires floating point tensors')
    if isinstance(weight, TensorProxy):
        check(
            weight.dtype is input.dtype or weight.ndim == 0,
            lambda: f"expected dtype {input.dtype} for `weight` but got dtype {weight.dtype}",
        )
        weight = clang.maybe_convert_to_dtype(weight, input.dtype)
    return in_float32(_lerp)(input, end, weight)


def _lerp(a: Any, b: Any, weight: Any) -> Any:
    # Compute from the nearer end, so that both ends are exact.
    way = b - a
    near, far = a + weight * way, b - way * (1 - weight)
    if isinstance(weight, TensorProxy):
        return clang.where(clang.abs(weight) < 0.5, near, far)
    return near if abs(number_value(weight)) < 0.5 else far


@lerp.vjp
@rule_in_float32
def _(g: Any, out: Any, input: Any, end: Any, weight: Any) -> Any:
    by_weight = sum_to(g * conjugated(end - input), weight) if differentiable(weight) else None
    return sum_to(g * conjugated(1 - weight), input), sum_to(g * conjugated(weight), end), by_weight


@lerp.samples
def _(make: MakeTensor) -> Any:
    for s in elementwise_binary(make, numbers=False):
        yield SampleInput(*s.args, 0.3)
        yield SampleInput(*s.args, make((), low=0, high=1))
    for weight in (0.0, 0.5, 0.8, 1.0, 1.7, -0.3):
        yield SampleInput(make((4, 4)), make((4, 4)), weight)
    yield SampleInput(make((4, 4)), make((4, 4)), make((4, 4), low=0, high=1))
    yield SampleInput(make((4, 1)), make((1, 4)), make((3, 1, 1), low=-1, high=2))


@lerp.errors
def _(make: MakeTensor) -> Any:
    a, b, c = make((3,), dtype=float32), make((3,), dtype=float64), make((3,), dtype=int64)
    yield SampleInput(a, b, 0.5), RuntimeError, "for `end` but got dtype"
    yield SampleInput(a, a, b), RuntimeError, "for `weight` but got dtype"
    yield SampleInput(c, c, 0.5), NotImplementedError, "not implemented for"


def _fused(input: Any, a: Any, b: Any, value: Any, op: Any) -> Any:
    kind = result_type(input, a, b)
    if kind.category == BOOL:
        raise NotImplementedError("addcmul is not implemented for bool: convert the tensors to a numeric dtype")
    operands = (clang.maybe_convert_to_dtype(x, kind) for x in clang.maybe_broadcast(input, a, b))
    return in_float32(op)(*operands, value=number_of_dtype(value, kind))


def _is_one(factor: Any) -> bool:
    """Check for the factor 1. A symbolic factor gets its multiplication: no program depends on whether it is 1."""
    return not isinstance(factor, SymbolicNumber) and bool(factor == 1)


@torchsymbol(torch.addcmul, tags=ELEMENTWISE, autocast={"cuda": "widest"})
def addcmul(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Any:
    """Compute input + value * tensor1 * tensor2."""
    return _fused(input, tensor1, tensor2, value, _add_product)


def _add_product(input: Any, a: Any, b: Any, value: Any) -> Any:
    return input + (a * b if _is_one(value) else a * value * b)


@addcmul.vjp
def _(g: Any, out: Any, input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Any:
    by_first = g * conjugated(_times(tensor2, value)) if differentiable(tensor1) else None
    by_second = g * conjugated(_times(tensor1, value)) if differentiable(tensor2) else None
    return sum_to(g, input), sum_to(by_first, tensor1), sum_to(by_second, tensor2)


def _times(x: Any, value: Any) -> Any:
    return x if _is_one(value) else x * value


@torchsymbol(torch.addcdiv, tags=ELEMENTWISE, autocast={"cuda": "widest"})
def addcdiv(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Any:
    """Compute input + value * tensor1 / tensor2."""
    check(
        max(tensor1.dtype.category, tensor2.dtype.category) > INTEGER,
        lambda: (
            "Integer division with addcdiv is no longer supported. Convert tensor1 or tensor2 to a floating point "
            "type, or divide with torch.div and its rounding_mode"
        ),
    )
    return _fused(input, tensor1, tensor2, value, _add_quotient)


def _add_quotient(input: Any, a: Any, b: Any, value: Any) -> Any:
    return input + (a / b if _is_one(value) else value * (a / b))


@addcdiv.vjp
def _(g: Any, out: Any, input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Any:
    by_first = g * conjugated(value / tensor2) if differentiable(tensor1) else None
    by_second = -g * conjugated(_times(tensor1, value) / (tensor2 * tensor2)) if differentiable(tensor2) else None
    return sum_to(g, input), sum_to(by_first, tensor1), sum_to(by_second, tensor2)


def _fused_samples(make: MakeTensor) -> Any:
    for shapes in (((4, 4),) * 3, ((), (), ()), ((4, 1), (3,), (2, 1, 1)), ((0, 3), (3,), (1, 3)), ((2, 2), (), ())):
        yield SampleInput(*(make(shape, exclude_zero=True) for shape in shapes))
    yield SampleInput(make((4, 4)), make((4, 4)), make((4, 4), exclude_zero=True), value=2)
    if make.dtype.is_floating_point:
        yield SampleInput(make((4, 4)), make((4, 4)), make((4, 4), exclude_zero=True), value=-0.3)


@addcmul.samples
def _(make: MakeTensor) -> Any:
    if make.dtype.is_floating_point:
        # Choose a factor that keeps the product small: torch's kernel adds the product before rounding it.
        yield SampleInput(make((4, 4)), make((4, 4)), make((4, 4)), value=0.5)
    yield from _fused_samples(make)


addcdiv.samples(_fused_samples)


@addcdiv.errors
def _(make: MakeTensor) -> Any:
    a = make((3,), dtype=int64)
    yield SampleInput(a, a, a), RuntimeError, "Integer division with addcdiv is no longer supported"


@addcmul.errors
def _(make: MakeTensor) -> Any:
    a = make((3,), dtype=bool8)
    yield SampleInput(a, a, a), NotImplementedError, "not implemented for"
