# SPDX-License-Identifier: Apache-2.0
"""The code of each primitive in Triton's language.

Half precision is computed in single precision. Values are rounded where the program converts or stores them, and where
one of torch's operations returns them (`rounded_results`). For functions that Triton's language lacks, kernels call
libdevice on a GPU. The interpreter does not support these functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from thunder import prims
from thunder.extend import Proxy, TensorProxy, dtypes
from thunder_ex_triton.fusion.sizes import Size
from thunder_ex_triton.probe import interpreting

__all__ = [
    "MATVEC", "POINTWISE", "REDUCTIONS", "as_half", "compute_type", "float_of", "literal", "operands_of",
    "quotient", "storage_type",
]  # fmt: skip

MATVEC = "triton.triton_matvec"  # the id of the operator that multiplies a weight by a single row

_TYPES = {
    dtypes.float64: "tl.float64", dtypes.float32: "tl.float32", dtypes.float16: "tl.float16",
    dtypes.bfloat16: "tl.bfloat16", dtypes.int64: "tl.int64", dtypes.int32: "tl.int32", dtypes.int16: "tl.int16",
    dtypes.int8: "tl.int8", dtypes.uint8: "tl.uint8", dtypes.bool8: "tl.int1", dtypes.float8_e4m3fn: "tl.float8e4nv",
}  # fmt: skip
_ROUNDED = (dtypes.float16, dtypes.bfloat16, dtypes.float8_e4m3fn)


def storage_type(dtype: Any) -> str | None:
    """Return Triton's name of a dtype; None if kernels do not support the dtype."""
    return _TYPES.get(dtype)


def compute_type(dtype: Any) -> str:
    """Return the dtype in which values of a dtype are computed."""
    return "tl.float32" if dtype in _ROUNDED else _TYPES[dtype]


def literal(value: Any) -> str:
    """Return a number as a literal of Triton's language."""
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def operands_of(bsym: Any) -> list[Any]:
    """Return the tensors and numbers that a pointwise operation reads."""
    return [a for a in bsym.args if isinstance(a, (Proxy, Size, int, float, complex))]


def _is_float(dtype: Any) -> bool:
    return dtypes.is_float_dtype(dtype)


def _typed(dtype: Any, bsym: Any, *operands: str) -> list[str]:
    """Return the operands with numbers as values of a dtype.

    A number alone is an int32 or a float32, also as an operand of `tl.maximum` and of comparisons in Triton 3.6 to 3.8.
    With an int8, the result is then an int32, which does not wrap. With a float64, the number is a rounded one.
    """
    kind = compute_type(dtype)
    return [a if isinstance(x, Proxy) else f"tl.full((), {a}, {kind})" for x, a in zip(operands_of(bsym), operands)]


def _unary(text: str) -> Callable[..., str]:
    return lambda bsym, a: text.format(a)


def _binary(text: str) -> Callable[..., str]:
    return lambda bsym, a, b: text.format(a, b)


def _libdevice(name: str) -> Callable[..., str | None]:
    """Return a function that writes a call of libdevice."""

    def write(bsym: Any, *args: str) -> str | None:
        if interpreting():
            return None
        typed = _typed(bsym.output.dtype, bsym, *args)  # libdevice selects the overload by dtype
        return f"libdevice.{name}({', '.join(typed)})"

    return write


def _division(bsym: Any, a: str, b: str) -> str | None:
    """Write a quotient. Multiply by the reciprocal of a number, as torch's kernels for GPUs do."""
    if not _is_float(bsym.output.dtype):
        return None  # Triton's integer division rounds towards zero, so integers are not supported
    divisor, kind = operands_of(bsym)[1], bsym.output.dtype
    a, b = _typed(kind, bsym, a, b)
    if isinstance(divisor, Proxy) or interpreting():
        return quotient(kind, a, b)
    if isinstance(divisor, Size):
        return f"({a} * {quotient(kind, '1.0', b)})"
    wide = torch.float64 if kind is dtypes.float64 else torch.float32
    return f"({a} * {literal(torch.tensor(divisor, dtype=wide, device='cpu').reciprocal().item())})"


def quotient(dtype: Any, a: str, b: str) -> str:
    """Return the code of a quotient that is rounded once: x / x is 1. Triton's `/` is an approximation in float32."""
    return f"tl.div_rn({a}, {b})" if compute_type(dtype) == "tl.float32" else f"({a} / {b})"


def _minimum(sign: str) -> Callable[..., str]:
    def write(bsym: Any, a: str, b: str) -> str:
        floats = _is_float(bsym.output.dtype)
        if floats and interpreting():  # as on the CPU, the first operand wins if the operands are 0 and -0
            order = "<" if sign == "maximum" else ">"
            return f"tl.where(({a} != {a}) | ({b} == {b}) & ~({a} {order} {b}), {a}, {b})"
        nans = ", propagate_nan=tl.PropagateNan.ALL" if floats else ""  # as torch does
        return f"tl.{sign}({', '.join(_typed(bsym.output.dtype, bsym, a, b))}{nans})"

    return write


def _convert(bsym: Any, a: str) -> str | None:
    source, target = bsym.args[0].dtype, bsym.output.dtype
    if source is target:
        return a
    if source in (dtypes.bfloat16, dtypes.float16) and not _is_float(target):
        a = as_half(a, source)  # truncate the rounded value
    if target is dtypes.bool8:
        return f"({a} != 0)"
    if _is_float(source) and not _is_float(target) and target not in (dtypes.int32, dtypes.int64):
        return None
    if source in (dtypes.int8, dtypes.uint8) and compute_type(target) == "tl.float32":  # any of the dtypes is exact
        return float_of(a, source)
    if not _is_float(source) and _is_float(target) and target is not dtypes.float64:
        a = f"{a}.to(tl.float32)"  # there is no direct conversion of integers to half precision
    if source is dtypes.float64 and compute_type(target) != _TYPES[target]:
        a = f"{a}.to(tl.float32)"  # torch rounds twice, too
    if target in (dtypes.bfloat16, dtypes.float16):
        return as_half(a, target)
    text = f"{a}.to({_TYPES[target]})"
    return f"{text}.to(tl.float32)" if compute_type(target) != _TYPES[target] else text


def as_half(a: str, dtype: Any) -> str:
    """Return the code that rounds single precision to values of half precision."""
    if interpreting():
        return f"rounded_by_bits({a})" if dtype is dtypes.bfloat16 else f"{a}.to(tl.float16).to(tl.float32)"
    return f"rounded_to_{dtype}({a})"


def float_of(a: str, source: Any) -> str:
    """Return the code that converts int8 or uint8 to single precision."""
    return f"{a}.to(tl.float32)" if interpreting() else f"float_of_byte({a}, {0 if source is dtypes.uint8 else 128})"


def _negative(bsym: Any, a: str) -> str:
    return f"({a} * -1.0)" if _is_float(bsym.output.dtype) else f"(-{a})"  # Triton's minus maps 0 to 0, not -0


def _absolute(bsym: Any, a: str) -> str:
    return f"tl.abs({a})"


def _rounding(name: str) -> Callable[..., str | None]:
    def write(bsym: Any, a: str) -> str | None:
        if not _is_float(bsym.output.dtype):
            return a
        return f"tl.{name}({a})" if interpreting() else f"libdevice.{name}({a})"

    return write


def _truncated(bsym: Any, a: str) -> str:
    if not _is_float(bsym.output.dtype):
        return a
    return f"tl.where({a} < 0, tl.ceil({a}), tl.floor({a}))" if interpreting() else f"libdevice.trunc({a})"


def _tanh(bsym: Any, a: str) -> str:
    if not interpreting():
        return f"tanh({a})" if compute_type(bsym.output.dtype) == "tl.float32" else f"libdevice.tanh({a})"
    # Exponentials of non-positive numbers cannot overflow.
    t = f"tl.exp(-2.0 * tl.abs({a}))"
    positive = f"(1.0 - {t}) / (1.0 + {t})"
    return f"tl.where({a} > 0, {positive}, tl.where({a} == 0, {a}, -({positive})))"


def _integers_only(text: str) -> Callable[..., str | None]:
    return lambda bsym, *args: None if _is_float(bsym.output.dtype) else text.format(*args)


def _multiplication(bsym: Any, a: str, b: str) -> str:
    return f"({a} & {b})" if bsym.output.dtype is dtypes.bool8 else f"({a} * {b})"


def _addition(bsym: Any, a: str, b: str) -> str:
    return f"({a} | {b})" if bsym.output.dtype is dtypes.bool8 else f"({a} + {b})"


def _power(bsym: Any, a: str, b: str) -> str | None:
    exponent = bsym.args[1]
    if type(exponent) in (int, float) and _is_float(bsym.output.dtype):
        if exponent in (2, 3):
            return f"({' * '.join([a] * int(exponent))})"
        if exponent == 1:
            return a
        if abs(exponent) == 0.5 and not (interpreting() and bsym.output.dtype is dtypes.float16):
            # torch uses (r)sqrt except in its CPU kernel for float16: the power of -inf is inf, but its root is NaN.
            return _root(bsym, a) if exponent > 0 else f"tl.rsqrt({a})"
    if not isinstance(bsym.args[0], Proxy) and bsym.output.dtype is dtypes.float32 and not interpreting():
        # An optimizer's bias correction is the difference of 1 and a power of a number near 1: each rounding matters.
        return f"libdevice.pow(tl.full((), {a}, tl.float32).to(tl.float64), {b}.to(tl.float64)).to(tl.float32)"
    return _libdevice("pow")(bsym, a, b) if _is_float(bsym.output.dtype) else None


def _comparison(text: str, *, equality: bool = False) -> Callable[..., str]:
    """Return a function that writes a comparison.

    It rounds numbers to half precision, as torch does; for equality also values, because stored values are rounded too.
    """

    def write(bsym: Any, *operands: str) -> str:
        dtype = next(x.dtype for x in bsym.args if isinstance(x, TensorProxy))
        if dtype is dtypes.float64:
            return text.format(*_typed(dtype, bsym, *operands))
        if compute_type(dtype) == _TYPES[dtype]:
            return text.format(*operands)
        given = zip(operands_of(bsym), operands)
        return text.format(*(_as_stored(x, a, dtype) if equality or not isinstance(x, Proxy) else a for x, a in given))

    return write


def _as_stored(x: Any, a: str, dtype: Any) -> str:
    if type(x) in (int, float):
        return literal(torch.tensor(x, dtype=dtypes.to_torch_dtype(dtype), device="cpu").item())
    if isinstance(x, Size):
        return f"tl.full((), {a}, {_TYPES[dtype]}).to(tl.float32)"
    if not isinstance(x, TensorProxy):
        return a
    return as_half(a, dtype)


def _reciprocal(bsym: Any, a: str) -> str | None:
    return quotient(bsym.output.dtype, "1.0", a) if _is_float(bsym.output.dtype) else None


def _root(bsym: Any, a: str) -> str:
    return f"tl.sqrt_rn({a})" if compute_type(bsym.output.dtype) == "tl.float32" else f"tl.sqrt({a})"


def _sign(bsym: Any, a: str) -> str | None:
    if bsym.output.dtype is dtypes.bool8:
        return a
    kind = compute_type(bsym.output.dtype)
    return f"(({a} > 0).to({kind}) - ({a} < 0).to({kind}))"


def _where(bsym: Any, p: str, a: str, b: str) -> str:
    if not any(isinstance(x, Proxy) for x in bsym.args[1:]):  # a choice of two numbers has their dtype
        _, a, b = _typed(bsym.output.dtype, bsym, p, a, b)
    return f"tl.where({p}, {a}, {b})"


def _not(bsym: Any, a: str) -> str | None:
    if bsym.output.dtype is dtypes.bool8:
        return f"({a} == 0)"
    # The interpreter of Triton 3.8 and older cannot represent -1 in an unsigned type.
    return f"({a} ^ 255)" if bsym.output.dtype is dtypes.uint8 else f"(~{a})"


# For each primitive: a function of the operation and of its operands' names. It returns the expression, or None if this
# executor does not support the call.
POINTWISE: dict[Any, Callable[..., str | None]] = {
    prims.add.id: _addition, prims.sub.id: _binary("({} - {})"), prims.mul.id: _multiplication, prims.div.id: _division,
    prims.neg.id: _negative, prims.abs.id: _absolute, prims.reciprocal.id: _reciprocal, prims.pow.id: _power,
    prims.exp.id: _unary("tl.exp({})"), prims.exp2.id: _unary("tl.exp2({})"), prims.log.id: _unary("tl.log({})"),
    prims.log2.id: _unary("tl.log2({})"), prims.sqrt.id: _root, prims.rsqrt.id: _unary("tl.rsqrt({})"),
    prims.sin.id: _unary("tl.sin({})"), prims.cos.id: _unary("tl.cos({})"), prims.erf.id: _unary("tl.erf({})"),
    prims.tanh.id: _tanh, prims.expm1.id: _libdevice("expm1"), prims.log1p.id: _libdevice("log1p"),
    prims.tan.id: _libdevice("tan"), prims.asin.id: _libdevice("asin"), prims.acos.id: _libdevice("acos"),
    prims.atan.id: _libdevice("atan"), prims.sinh.id: _libdevice("sinh"), prims.cosh.id: _libdevice("cosh"),
    prims.asinh.id: _libdevice("asinh"), prims.acosh.id: _libdevice("acosh"), prims.atanh.id: _libdevice("atanh"),
    prims.erfc.id: _libdevice("erfc"), prims.atan2.id: _libdevice("atan2"), prims.log10.id: _libdevice("log10"),
    prims.floor.id: _rounding("floor"), prims.ceil.id: _rounding("ceil"), prims.sign.id: _sign,
    prims.trunc.id: _truncated,
    prims.maximum.id: _minimum("maximum"), prims.minimum.id: _minimum("minimum"),
    prims.eq.id: _comparison("({} == {})", equality=True), prims.ne.id: _comparison("({} != {})", equality=True),
    prims.lt.id: _comparison("({} < {})"), prims.le.id: _comparison("({} <= {})"),
    prims.gt.id: _comparison("({} > {})"), prims.ge.id: _comparison("({} >= {})"),
    prims.bitwise_and.id: _integers_only("({} & {})"), prims.bitwise_or.id: _integers_only("({} | {})"),
    prims.bitwise_xor.id: _integers_only("({} ^ {})"),
    prims.bitwise_not.id: _not,
    prims.where.id: _where,
    prims.convert_element_type.id: _convert, prims.clone.id: lambda bsym, a: a, prims.detach.id: lambda bsym, a: a,
}  # fmt: skip

# For each primitive: the reduction of a tile along an axis, the combination of two tiles, and the neutral element.
REDUCTIONS: dict[Any, tuple[str, str, str]] = {
    prims.sum.id: ("tl.sum({}, {})", "{} + {}", "0"), prims.amax.id: ("_max({}, {})", "_larger({}, {})", "-inf"),
    prims.amin.id: ("_min({}, {})", "_smaller({}, {})", "inf"),
}  # fmt: skip
