# SPDX-License-Identifier: Apache-2.0
"""The primitives that nvFuser supports, and the code of each primitive in a fusion definition.

Half precision is computed in single precision. Inputs are converted. Values are rounded where the program converts or
compares them, and where one of torch's operations returns them (`rounded_results`). An entry of the table is a function
of the operation and of a function that writes an operand. The entry returns the expression, or None if nvFuser does not
support the call.

Slices, concatenations and padding are not in the table. When fused, they silently gave wrong elements in five of 3256
random programs, and misaligned addresses in one program (nvFuser 0.2.36).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from thunder import prims
from thunder.extend import NumberProxy, SymbolicNumber, TensorProxy, dtypes

__all__ = [
    "OPERATIONS",
    "UNIFORM",
    "VIEWS",
    "as_half",
    "cast",
    "held",
    "is_told_at_the_call",
    "number",
    "stored",
    "uniform",
]

UNIFORM = "nvfuser.nvfuser_uniform"  # the id of the operator that draws random numbers

Write = Callable[[Any], str]
Entry = Callable[[Any, Write], "str | None"]

_TYPES = {
    dtypes.float64: "Double", dtypes.float32: "Float", dtypes.float16: "Half", dtypes.bfloat16: "BFloat16",
    dtypes.int64: "Int", dtypes.int32: "Int32", dtypes.bool8: "Bool",
}  # fmt: skip
_HALF = (dtypes.float16, dtypes.bfloat16)


def stored(dtype: Any) -> str | None:
    """Return nvFuser's name of a dtype in memory; None if nvFuser does not support the dtype."""
    return _TYPES.get(dtype)


def held(dtype: Any) -> str:
    """Return the dtype in which values of a dtype are computed."""
    return "Float" if dtype in _HALF else _TYPES[dtype]


def cast(text: str, to: str) -> str:
    """Return a cast to another dtype."""
    return f"fd.ops.cast({text}, DataType.{to})"


def is_told_at_the_call(x: Any) -> bool:
    """Check whether a value is a symbolic number."""
    return isinstance(x, (SymbolicNumber, NumberProxy))


def number(value: Any, dtype: Any) -> str:
    """Return a number as a literal for operations on a dtype."""
    if dtypes.is_float_dtype(dtype):
        value = float(value)
        return repr(value) if math.isfinite(value) else f'float("{value}")'
    return repr(bool(value) if dtype is dtypes.bool8 else int(value))


def _is_float(x: Any) -> bool:
    return dtypes.is_float_dtype(x.dtype)


def _first(bsym: Any) -> Any:
    """Return the first tensor operand of an operation."""
    return next(a for a in bsym.args if isinstance(a, TensorProxy))


def _operand(bsym: Any, a: Any, write: Write) -> str:
    known = not isinstance(a, TensorProxy) and not is_told_at_the_call(a)
    return number(a, _first(bsym).dtype) if known else write(a)


def _call(name: str, *, floats: bool = False, bools: bool = True, halves: bool = True) -> Entry:
    """Return the entry of a function that has the same arguments in nvFuser."""

    def entry(bsym: Any, write: Write) -> str | None:
        x = _first(bsym)
        if (floats and not _is_float(x)) or (not bools and x.dtype is dtypes.bool8):
            return None
        if not halves and x.dtype in _HALF:
            return None
        return f"fd.ops.{name}({', '.join(_operand(bsym, a, write) for a in bsym.args)})"

    return entry


def _for_bools(name: str, of_bools: str) -> Entry:
    """Return the entry of a function that differs for booleans."""
    return lambda bsym, write: _call(of_bools if _first(bsym).dtype is dtypes.bool8 else name)(bsym, write)


def as_half(text: str, dtype: Any) -> str:
    """Round a value computed in single precision to its dtype in memory."""
    return cast(cast(text, _TYPES[dtype]), held(dtype)) if dtype in _HALF else text


def _comparison(name: str) -> Entry:
    """Return the entry of a comparison of rounded values: the gradient of amax compares elements with its output.

    Numbers are rounded to half precision, too, as torch does: 0.1 in bfloat16 is not above the number 0.1.
    """

    def entry(bsym: Any, write: Write) -> str | None:
        dtype = _first(bsym).dtype
        half = dtype in _HALF
        if half and any(is_told_at_the_call(a) for a in bsym.args):
            return None
        texts = []
        for a in bsym.args:
            if half and not isinstance(a, TensorProxy):
                a = torch.tensor(a, dtype=dtypes.to_torch_dtype(dtype), device="cpu").item()
            text = _operand(bsym, a, write)
            texts.append(as_half(text, dtype) if isinstance(a, TensorProxy) else text)
        return f"fd.ops.{name}({', '.join(texts)})"

    return entry


_ROOTS = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}


def _power(bsym: Any, write: Write) -> str | None:
    a, exponent = bsym.args
    if not _is_float(_first(bsym)):
        return None
    if type(exponent) in (int, float) and isinstance(a, TensorProxy):
        if exponent in (2, 3):
            square = f"fd.ops.mul({write(a)}, {write(a)})"
            return square if exponent == 2 else f"fd.ops.mul({square}, {write(a)})"
        if exponent == 1:
            return f"fd.ops.set({write(a)})"
        if exponent in _ROOTS:  # as in torch: pow differs for -0.0 and -inf
            return f"fd.ops.{_ROOTS[exponent]}({write(a)})"
    return _call("pow")(bsym, write)


def _abs(bsym: Any, write: Write) -> str | None:
    text = _call("abs", bools=False)(bsym, write)
    return f"fd.ops.add({text}, 0.0)" if text is not None and _is_float(bsym.args[0]) else text  # turns -0.0 into 0.0


def _where(bsym: Any, write: Write) -> str | None:
    condition, *values = bsym.args
    if not isinstance(condition, TensorProxy):
        return None
    kind = bsym.output.dtype
    typed = [write(v) if isinstance(v, TensorProxy) else _scalar(v, kind, write) for v in values]
    return f"fd.ops.where({write(condition)}, {', '.join(typed)})"


def _scalar(value: Any, kind: Any, write: Write) -> str:
    """Return a scalar of a dtype."""
    if is_told_at_the_call(value):
        return cast(write(value), held(kind))
    return f"fd.define_scalar({number(value, kind)}, DataType.{held(kind)})"


def _convert(bsym: Any, write: Write) -> str | None:
    a, target = bsym.args[0], bsym.output.dtype
    text = write(a)
    if a.dtype is target:
        return f"fd.ops.set({text})"
    if a.dtype in _HALF:  # the multiplication prevents nvFuser from merging casts, which it sometimes does wrongly
        text = f"fd.ops.mul({as_half(text, a.dtype)}, 1.0)"
    if held(a.dtype) != held(target) or target not in _HALF:
        text = cast(text, held(target))
    return as_half(text, target)


def _sizes(shape: Any, write: Write) -> str:
    return f"[{', '.join(write(n) if is_told_at_the_call(n) else str(int(n)) for n in shape)}]"


def _full(bsym: Any, write: Write) -> str | None:
    shape, value = bsym.args
    if type(value) is complex:
        return None
    kind = bsym.output.dtype
    return as_half(f"fd.ops.full({_sizes(shape, write)}, {_scalar(value, kind, write)}, DataType.{held(kind)})", kind)


def _iota(bsym: Any, write: Write) -> str | None:
    kind, given = bsym.output.dtype, bsym.kwargs
    if kind not in (dtypes.int64, dtypes.int32):
        return None
    length, start, step = (_scalar(n, dtypes.int64, write) for n in (bsym.args[0], given["start"], given["step"]))
    return f"fd.ops.iota({length}, {start}, {step}, DataType.{_TYPES[kind]})"


def uniform(sizes: str, seed: str) -> str:
    """Return numbers in [0, 1) by nvFuser's Philox, a function of a seed, an offset and an element's position."""
    low, high = (f"fd.define_scalar({n}, DataType.Float)" for n in (0.0, 1.0))
    state = f"rng_seed={seed}[0], rng_offset={seed}[1]"
    return f"fd.ops.uniform({low}, {high}, {sizes}, {state}, dtype=DataType.Float)"


def _reduction(name: str) -> Entry:
    def entry(bsym: Any, write: Write) -> str | None:
        a, dims = bsym.args
        if not dims or not (_is_float(a) or a.dtype in (dtypes.int64, dtypes.int32)):
            return None
        text = f"fd.ops.{name}({write(a)}, {list(dims)}, False)"
        return cast(text, "Int32") if a.dtype is dtypes.int32 else text

    return entry


def _variance(*, mean: bool) -> Entry:
    """Return the entry of a variance, computed from deviations. nvFuser's is wrong if a dimension has stride 0."""

    def entry(bsym: Any, write: Write) -> str | None:
        (a, dims), correction = bsym.args, bsym.kwargs["correction"]
        sizes = [a.shape[d] for d in dims]
        if not dims or not _is_float(a) or any(type(n) not in (int, float) for n in (correction, *sizes)):
            return None
        if int(correction) != correction or math.prod(sizes) <= correction:
            return None
        x, n, over = write(a), float(math.prod(sizes)), list(dims)
        squares = f"fd.ops.mul(_off := fd.ops.sub({x}, _mean := fd.ops.div(fd.ops.sum({x}, {over}, True), {n})), _off)"
        variance = f"fd.ops.div(fd.ops.sum({squares}, {over}, False), {n - correction})"
        return f"({variance}, fd.ops.squeeze(_mean, {over}))" if mean else variance

    return entry


def _named(*names: str, **how: Any) -> dict[Any, Entry]:
    """Return entries of functions that have the same name in thunder and nvFuser."""
    return {getattr(prims, name).id: _call(name, **how) for name in names}


def _view(name: str) -> Entry:
    return lambda bsym, write: (
        f"fd.ops.{name}({', '.join([write(bsym.args[0]), *(_sizes(given, write) for given in bsym.args[1:])])})"
    )


# Views and copies. A region that contains only these is not fused.
VIEWS: dict[Any, Entry] = {
    prims.broadcast_in_dim.id: _view("broadcast_in_dim"), prims.reshape.id: _view("reshape"),
    prims.view.id: _view("reshape"), prims.transpose.id: _view("permute"), prims.squeeze.id: _view("squeeze"),
    prims.full.id: _full, prims.iota.id: _iota, prims.detach.id: _view("set"),
    prims.clone.id: _view("set"),
}  # fmt: skip

OPERATIONS: dict[Any, Entry] = {
    **_named(
        "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tan",
        "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma",
        "ceil", "floor", "round", "trunc", "atan2", "div", floats=True,
    ),
    **_named("nextafter", floats=True, halves=False),
    **_named("neg", "sign", "sub", "fmod", "remainder", bools=False),
    **{getattr(prims, name).id: _comparison(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **_named("bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor"),
    **_named("bitwise_left_shift", "bitwise_right_shift", "gcd", bools=False),
    prims.add.id: _for_bools("add", "bitwise_or"),
    prims.mul.id: _for_bools("mul", "bitwise_and"),
    prims.maximum.id: _for_bools("maximum", "bitwise_or"),
    prims.minimum.id: _for_bools("minimum", "bitwise_and"),
    prims.abs.id: _abs,
    prims.pow.id: _power,
    prims.where.id: _where,
    prims.convert_element_type.id: _convert,
    prims.sum.id: _reduction("sum"),
    prims.prod.id: _reduction("prod"),
    prims.amax.id: _reduction("max"),
    prims.amin.id: _reduction("min"),
    prims.var.id: _variance(mean=False),
    prims.var_mean.id: _variance(mean=True),
    UNIFORM: lambda bsym, write: uniform(_sizes(bsym.args[1], write), write(bsym.args[0])),
    **VIEWS,
}  # fmt: skip
