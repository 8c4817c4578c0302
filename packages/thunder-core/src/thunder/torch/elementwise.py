# SPDX-License-Identifier: Apache-2.0
"""Binary arithmetic operations of the torch language."""

from __future__ import annotations

from typing import Any

import torch

from thunder import clang
from thunder.core import dtypes
from thunder.core.dtypes import BOOL, COMPLEX, FLOAT, INTEGER
from thunder.core.errors import check
from thunder.core.prims.autodiff import zero_vjp
from thunder.core.prims.elementwise_base import conjugated
from thunder.core.prims.elementwise_binary import quotient_samples
from thunder.core.promotion import result_type
from thunder.core.proxies import TensorProxy, number_type
from thunder.core.samples import MakeTensor, SampleInput, elementwise_binary
from thunder.torch.base import torchsymbol
from thunder.torch.elementwise_base import ELEMENTWISE, sum_to


def _category(x: Any) -> int:
    return x.dtype.category if isinstance(x, TensorProxy) else dtypes.category(number_type(x))


def _check_alpha(a: Any, b: Any, alpha: Any) -> None:
    kind, category = _category(alpha), max(_category(a), _category(b))
    check(
        kind != BOOL or category == BOOL,
        lambda: "Boolean alpha only supported for Boolean results.",
    )
    check(
        category >= FLOAT or kind <= INTEGER,
        lambda: "For integral input tensors, argument alpha must not be a floating point number.",
    )
    check(
        category == COMPLEX or kind != COMPLEX,
        lambda: "For non-complex input tensors, argument alpha must not be a complex number.",
    )


def _scaled(a: Any, b: Any, alpha: Any) -> Any:
    """Compute alpha * b with the result type of `a + b`."""
    if type(alpha) is int and alpha == 1:
        return b
    _check_alpha(a, b, alpha)
    kind = result_type(a, b)
    if kind.category == BOOL:
        return clang.logical_and(b, bool(alpha))
    return clang.mul(clang.maybe_convert_to_dtype(b, kind), alpha)


def _alpha_samples(make: MakeTensor) -> Any:
    yield from elementwise_binary(make)
    yield SampleInput(2, make((2, 3)))
    yield SampleInput(make((2, 3)), make((3,)), alpha=2)


def _alpha_errors(make: MakeTensor) -> Any:
    a, b = make((2, 3), dtype=dtypes.int64), make((2, 3), dtype=dtypes.float32)
    yield SampleInput(a, a, alpha=2.5), RuntimeError, "alpha must not be a floating point number"
    yield SampleInput(b, b, alpha=1j), RuntimeError, "alpha must not be a complex number"
    yield SampleInput(b, b, alpha=True), RuntimeError, "Boolean alpha only supported for Boolean results"
    yield SampleInput(b, make((4,))), RuntimeError, r"The size of tensor a \(3\) must match the size of tensor b \(4\)"


@torchsymbol(torch.add, tags=ELEMENTWISE, commutative=True)
def add(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    """Compute input + alpha * other."""
    return clang.add(input, _scaled(input, other, alpha))


def _check_no_bools(input: Any, other: Any) -> None:
    bools = (_category(input) == BOOL) + (_category(other) == BOOL)
    check(
        bools < 2,
        lambda: (
            "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or `logical_xor()` "
            "operator instead."
        ),
    )
    check(
        bools < 1,
        lambda: (
            "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a "
            "mask, use the `~` or `logical_not()` operator instead."
        ),
    )


@torchsymbol(torch.sub, torch.subtract, tags=ELEMENTWISE)
def sub(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    """Compute input - alpha * other."""
    _check_no_bools(input, other)
    return clang.sub(input, _scaled(input, other, alpha))


@torchsymbol(torch.rsub, tags=ELEMENTWISE)
def rsub(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    """Compute other - alpha * input."""
    _check_no_bools(input, other)
    return clang.sub(other, _scaled(other, input, alpha))


add.samples(_alpha_samples)
add.errors(_alpha_errors)
sub.samples(_alpha_samples)


@rsub.samples
def _(make: MakeTensor) -> Any:
    yield from elementwise_binary(make)
    yield SampleInput(make((2, 3)), make((3,)), alpha=2)


@rsub.errors
def _(make: MakeTensor) -> Any:
    a = make((2, 3), dtype=dtypes.bool8)
    yield SampleInput(a, a), RuntimeError, "with two bool tensors is not supported"


@sub.errors
def _(make: MakeTensor) -> Any:
    yield from _alpha_errors(make)
    a, b = make((2, 3), dtype=dtypes.bool8), make((2, 3), dtype=dtypes.float32)
    yield SampleInput(a, a), RuntimeError, "with two bool tensors is not supported"
    yield SampleInput(a, b), RuntimeError, "with a bool tensor is not supported"


@torchsymbol(torch.div, torch.divide, tags=ELEMENTWISE)
def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    """Compute input / other. `rounding_mode` is None, "trunc" (round towards zero) or "floor" (round down)."""
    if rounding_mode is None:
        return clang.true_divide(input, other)
    check(
        rounding_mode in ("trunc", "floor"),
        lambda: f"div expected rounding_mode to be one of None, 'trunc', or 'floor' but found {rounding_mode!r}",
    )
    _check_whole_quotient("div_" + rounding_mode, input, other)
    if rounding_mode == "trunc":
        return clang.trunc_divide(input, other)
    return clang.floor_divide(input, other)


def _check_whole_quotient(name: str, input: Any, other: Any) -> None:
    category = max(_category(input), _category(other))
    if category in (BOOL, COMPLEX):
        raise NotImplementedError(f'"{name}" not implemented for {"bool" if category == BOOL else "complex numbers"}')


@div.vjp
def _(g: Any, out: Any, input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is not None:
        return zero_vjp(g, out, input, other)
    return sum_to(g / conjugated(other), input), sum_to(-g * conjugated((input / other) / other), other)


@div.samples
def _(make: MakeTensor) -> Any:
    yield from quotient_samples(make)
    for mode in ("trunc", "floor"):
        for s in quotient_samples(make):
            yield SampleInput(*s.args, rounding_mode=mode)


@div.errors
def _(make: MakeTensor) -> Any:
    a, b = make((2, 3), dtype=dtypes.float32), make((2, 3), dtype=dtypes.complex64)
    yield SampleInput(a, a, rounding_mode="up"), RuntimeError, "expected rounding_mode to be one of None"
    yield SampleInput(b, b, rounding_mode="floor"), NotImplementedError, "not implemented for"


@torchsymbol(torch.floor_divide, tags=ELEMENTWISE)
def floor_divide(input: Any, other: Any) -> Any:
    """Compute input / other, rounded down."""
    _check_whole_quotient("div_floor", input, other)
    return clang.floor_divide(input, other)


@floor_divide.vjp
def _(g: Any, out: Any, input: Any, other: Any) -> Any:
    return zero_vjp(g, out, input, other)


floor_divide.samples(quotient_samples)


@floor_divide.errors
def _(make: MakeTensor) -> Any:
    a = make((2, 3), dtype=dtypes.bool8)
    yield SampleInput(a, a), NotImplementedError, "not implemented for"
