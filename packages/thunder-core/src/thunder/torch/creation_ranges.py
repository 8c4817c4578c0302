# SPDX-License-Identifier: Apache-2.0
"""Operations of the torch language that create ranges, evenly spaced numbers and identity matrices."""

from __future__ import annotations

import math
from typing import Any

import torch

from thunder import clang
from thunder.core import devices, dtypes, prims
from thunder.core.dtypes import BOOL, COMPLEX, INTEGER, float32, float64, int64
from thunder.core.errors import check
from thunder.core.promotion import default_dtype, result_type
from thunder.core.proxies import NumberProxy, TensorProxy, number_value
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import NON_DIFFERENTIABLE
from thunder.core.symint.numbers import converted, is_unbacked
from thunder.torch.base import torchsymbol
from thunder.torch.creation import device_or_default, dtype_or_default

_TAGS = (NON_DIFFERENTIABLE,)


@torchsymbol(torch.arange, tags=_TAGS)
def arange(start: Any = None, end: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> Any:
    """Return start, start + step, …, without `end`. A single argument is the end."""
    if end is None:
        start, end = 0, start
    elif start is None:
        start = 0
    start, end, step = (_known_number("arange", x) for x in (start, end, step))
    kind = dtypes.to_dtype(dtype) or (int64 if all(isinstance(x, int) for x in (start, end, step)) else default_dtype())
    check(step != 0, lambda: "step must be nonzero")
    finite = all(isinstance(x, int) or math.isfinite(x) for x in (start, end))
    check(finite, lambda: f"unsupported range: {start} -> {end}")
    _check_sign(start, end, step)
    if kind.category == BOOL:
        raise NotImplementedError('"arange" not implemented for bool. Convert the result of another dtype instead')
    return _arange(start, end, step, kind, device_or_default(device))


def _known_number(name: str, x: Any) -> Any:
    if isinstance(x, (bool, int, float, NumberProxy)):
        value = number_value(x)
        return int(value) if isinstance(value, bool) else value
    if isinstance(x, TensorProxy):
        raise TypeError(f"{name}: the bounds determine the length of the result, so they must be numbers, not tensors")
    raise TypeError(f"{name}: the bounds must be real numbers, but found {type(x).__name__}: {x!r}")


def _check_sign(start: Any, end: Any, step: Any) -> None:
    def inconsistent() -> str:
        return f"upper bound and lower bound inconsistent with step sign: {start} -> {end} by {step}"

    if is_unbacked(start, end) and all(isinstance(x, int) for x in (start, end)):
        clang.base.demand(start, "<=" if step > 0 else ">=", end, inconsistent)
    else:
        check(start == end or (start < end) == (step > 0), inconsistent)


def _arange(start: Any, end: Any, step: Any, kind: dtypes.dtype, device: devices.Device) -> Any:
    if kind is int64:
        start, end, step = converted(start, int), converted(end, int), converted(step, int)
        check(step != 0, lambda: "step must be nonzero")
        clang.base.demand(-((start - end) // step), ">=", 0, lambda: "arange: the length must not be negative")
        return prims.iota(-((start - end) // step), start=start, step=step, device=device, dtype=kind)
    length = max(0, math.ceil((end - start) / step))
    if kind.category == INTEGER:
        # Same as torch: the length is computed from the original bounds, but the values from the bounds as integers.
        return prims.iota(length, start=converted(start, int), step=converted(step, int), device=device, dtype=kind)
    whole = all((isinstance(x, int) or float(x).is_integer()) and abs(x) < 2**53 for x in (start, step))
    if whole:
        numbers = prims.iota(length, start=converted(start, int), step=converted(step, int), device=device, dtype=int64)
        return prims.convert_element_type(numbers, kind)
    # Use double precision, as torch's CPU kernels do.
    position = prims.convert_element_type(prims.iota(length, start=0, step=1, device=device, dtype=int64), float64)
    found = clang.add(clang.mul(position, converted(step, float)), converted(start, float))
    return clang.maybe_convert_to_dtype(found, kind)


@arange.samples
def _(make: MakeTensor) -> Any:
    for args in ((5,), (0,), (2, 7), (0, 10, 3), (10, 0, -3), (0.5, 4), (3, 3), (-2, 3)):
        yield SampleInput(*args, device=make.device, dtype=make.dtype)
        yield SampleInput(*args)
    yield SampleInput(1, 2.5, 0.3)
    fractions = SampleInput(1, 2.5, 0.3, device=make.device, dtype=make.dtype)
    if make.dtype.is_floating_point:
        yield fractions
    elif make.dtype is not torch.int64:  # for int64 the step becomes 0: an error, or a crash in torch 2.11
        yield fractions.left_out_when("torch converts the step to the integer 0 and divides by it", device="cuda")
    yield SampleInput(end=4)
    yield SampleInput(0, end=9, step=4)


@arange.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(0, 5, 0), RuntimeError, "step must be nonzero"
    yield SampleInput(0, 5, -1), RuntimeError, "upper bound and lower bound inconsistent with step sign"
    yield SampleInput(0, math.inf), RuntimeError, "unsupported range"


@torchsymbol(torch.linspace, tags=_TAGS)
def linspace(start: Any, end: Any, steps: int, *, dtype: Any = None, device: Any = None) -> Any:
    """Return `steps` evenly spaced numbers from `start` to `end`, both included."""
    check(steps >= 0, lambda: "number of steps must be non-negative")
    kind = _type_of_ends("linspace", start, end, dtype)
    return clang.maybe_convert_to_dtype(_linspace(start, end, int(steps), kind, device_or_default(device)), kind)


def _type_of_ends(name: str, start: Any, end: Any, dtype: Any) -> dtypes.dtype:
    found = result_type(start, end)
    if dtype is not None:
        kind: dtypes.dtype = dtypes.to_dtype(dtype)  # type: ignore[assignment]
        check(
            found.category < COMPLEX or kind.category == COMPLEX,
            lambda: f"{name}: inferred dtype {found} can't be safely cast to passed dtype {kind}",
        )
        return kind
    if found.category == COMPLEX:
        return dtypes.corresponding_complex_dtype(default_dtype())
    return default_dtype()


def _wrapped(x: Any, kind: dtypes.dtype) -> Any:
    if isinstance(x, TensorProxy):
        return x
    x = int(number_value(x))
    return x if kind.is_signed or x >= 0 else x + 2 ** (8 * kind.bytes)


def _linspace(start: Any, end: Any, steps: int, kind: dtypes.dtype, device: devices.Device) -> Any:
    wide = dtypes.complex128 if kind.category == COMPLEX else float64
    if kind.category == INTEGER:
        start, end = _wrapped(start, kind), _wrapped(end, kind)
    position = prims.convert_element_type(prims.iota(steps, start=0, step=1, device=device, dtype=int64), float64)
    if steps < 2:
        return clang.add(clang.maybe_convert_to_dtype(position, wide), start)
    step = clang.true_divide(clang.sub(end, start), steps - 1)
    # Compute from the nearer end, so that both ends are exact.
    up = clang.add(clang.mul(position, step), start)
    down = clang.sub(end, clang.mul(clang.sub(steps - 1, position), step))
    out = clang.where(clang.lt(position, steps // 2), up, down)
    return clang.trunc(out) if kind.category == INTEGER else out


@torchsymbol(torch.logspace, tags=_TAGS)
def logspace(start: Any, end: Any, steps: int, base: float = 10.0, *, dtype: Any = None, device: Any = None) -> Any:
    """Compute `base` to the power of `linspace(start, end, steps)`."""
    check(steps >= 0, lambda: "number of steps must be non-negative")
    kind = _type_of_ends("logspace", start, end, dtype)
    exponents = _linspace(
        start, end, int(steps), dtypes.float64 if kind.category == INTEGER else kind, device_or_default(device)
    )
    return clang.maybe_convert_to_dtype(clang.pow(base, exponents), kind)


@linspace.samples
def _(make: MakeTensor) -> Any:
    for args in ((0, 1, 5), (-3, 8, 4), (2, 2, 3), (5, -5, 7), (0, 9, 1), (0, 1, 0)):
        yield SampleInput(*args, device=make.device, dtype=make.dtype)
        yield SampleInput(*args)
    yield SampleInput(0.25, 3.5, 6)


@logspace.samples
def _(make: MakeTensor) -> Any:
    for args in ((0, 1, 5), (-1, 2, 4), (0, 2, 1), (0, 1, 0), (0, 3, 4, 2.0)):
        if args[0] >= 0 or make.dtype.is_signed:
            yield SampleInput(*args, device=make.device, dtype=make.dtype)
        yield SampleInput(*args)


def _steps_errors(make: MakeTensor) -> Any:
    yield SampleInput(0, 1, -1), RuntimeError, "number of steps must be non-negative"
    yield SampleInput(0, 1j, 3, dtype=float32), RuntimeError, "can't be safely cast to passed dtype"


for _op in (linspace, logspace):
    _op.errors(_steps_errors)


@torchsymbol(torch.eye, tags=_TAGS)
def eye(n: int, m: int | None = None, *, dtype: Any = None, device: Any = None) -> Any:
    """Return a matrix with ones on the diagonal and zeros elsewhere."""
    columns = n if m is None else m
    clang.base.demand(n, ">=", 0, lambda: f"n must be greater or equal to 0, got {n}")
    clang.base.demand(columns, ">=", 0, lambda: f"m must be greater or equal to 0, got {columns}")
    where = device_or_default(device)
    row = prims.iota(n, start=0, step=1, device=where, dtype=int64)
    column = prims.iota(columns, start=0, step=1, device=where, dtype=int64)
    row = prims.broadcast_in_dim(row, [n, columns], (0,))
    column = prims.broadcast_in_dim(column, [n, columns], (1,))
    return clang.maybe_convert_to_dtype(prims.eq(row, column), dtype_or_default(dtype))


@eye.samples
def _(make: MakeTensor) -> Any:
    for args in ((3,), (2, 4), (4, 2), (0,), (3, 0)):
        yield SampleInput(*args, device=make.device, dtype=make.dtype)
        yield SampleInput(*args)


@eye.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(-1), RuntimeError, "n must be greater or equal to 0"
    yield SampleInput(1, -1), RuntimeError, "m must be greater or equal to 0"
