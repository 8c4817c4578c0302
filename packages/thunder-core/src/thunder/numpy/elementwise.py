# SPDX-License-Identifier: Apache-2.0
"""Elementwise operations of the NumPy language, with NumPy's names and type promotion.

Most operations are created from the declaration of their primitive (`thunder.core.prims.elementwise_base`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder import clang
from thunder.core import dtypes, prims
from thunder.core.dtypes import INTEGER, bool8, float64, int8
from thunder.core.prims.elementwise_base import KIND, Elementwise, each_elementwise, unary_samples
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput, elementwise_binary, elementwise_unary
from thunder.core.symbol import OpTags
from thunder.numpy.base import npsymbol
from thunder.numpy.promotion import inexact_type, result_type

_TAGS = (OpTags.ELEMENTWISE_OP,)


def _binary(x1: Any, x2: Any, fn: Callable[..., Any], *, inexact: bool = False) -> Any:
    if not isinstance(x1, TensorProxy) and not isinstance(x2, TensorProxy):
        return fn(x1, x2)
    kind = result_type(x1, x2)
    if inexact and kind.category <= INTEGER:
        kind = float64
    return fn(clang.maybe_convert_to_dtype(x1, kind), clang.maybe_convert_to_dtype(x2, kind))


@each_elementwise
def _declare(op: Elementwise) -> None:
    """Create the NumPy language's operation: it promotes like NumPy, and calls the core language's operation."""
    if not op.numpy:
        return
    run, inexact = clang.base.clang_ops[op.language_name], op.promotion is KIND.INT_TO_FLOAT
    if op.operands == 1:

        def fn(x: Any) -> Any:
            if inexact and isinstance(x, TensorProxy):
                # A function of real numbers: integers are converted to a float dtype that can represent them.
                x = clang.maybe_convert_to_dtype(x, inexact_type(x.dtype))
            return run(x)

    else:

        def fn(x1: Any, x2: Any) -> Any:  # type: ignore[misc]
            return _binary(x1, x2, run, inexact=inexact)

    names = ("x",) if op.operands == 1 else ("x1", "x2")
    fn.__name__, fn.__doc__ = op.numpy, op.docstring(*names)
    fn.__module__ = op.family.replace("thunder.core.prims", "thunder.numpy")
    sym = npsymbol(method_name=op.language_name if op.method else (), tags=_TAGS)(fn)
    samples = elementwise_unary if op.operands == 1 else elementwise_binary
    sym.samples(lambda make: samples(make, **op.domain))
    globals()[op.numpy] = sym


@npsymbol(method_name="positive", tags=_TAGS)
def positive(x: Any) -> Any:
    """Return `x` unchanged."""
    return x


@npsymbol(method_name="abs", tags=_TAGS)
def absolute(x: Any) -> Any:
    """Return the absolute value of each element; booleans do not change."""
    return x if isinstance(x, TensorProxy) and x.dtype is bool8 else clang.abs(x)


@npsymbol(tags=_TAGS)
def logical_not(x: Any) -> Any:
    """Check whether each element is zero."""
    return clang.logical_not(x)


@npsymbol(tags=_TAGS)
def isnan(x: Any) -> Any:
    """Check whether each element is NaN."""
    return clang.isnan(x)


@npsymbol(tags=_TAGS)
def isfinite(x: Any) -> Any:
    """Check whether each element is finite: not infinite and not NaN."""
    return clang.isfinite(x)


@npsymbol(tags=_TAGS)
def square(x: Any) -> Any:
    """Return `x * x`; for booleans, the result is int8."""
    x = prims.convert_element_type(x, int8) if x.dtype is bool8 else x
    return clang.mul(x, x)


@npsymbol(tags=_TAGS)
def where(condition: Any, x: Any, y: Any) -> Any:
    """Return `x` where `condition` is true, and `y` elsewhere."""
    truth = clang.ne(condition, 0) if condition.dtype is not bool8 else condition
    kind = result_type(x, y)
    if not isinstance(x, TensorProxy) and not isinstance(y, TensorProxy):
        x = prims.full((), clang.maybe_convert_to_dtype(x, kind), device=condition.device, dtype=kind)
    return clang.where(truth, clang.maybe_convert_to_dtype(x, kind), clang.maybe_convert_to_dtype(y, kind))


@npsymbol(method_name="clip", tags=_TAGS)
def clip(a: Any, a_min: Any = None, a_max: Any = None) -> Any:
    """Limit each element to the range from `a_min` to `a_max`."""
    out = a if a_min is None else _binary(a, a_min, clang.maximum)
    return out if a_max is None else _binary(out, a_max, clang.minimum)


@npsymbol(method_name="astype", tags=_TAGS)
def astype(x: TensorProxy, dtype: Any) -> Any:
    """Convert an array to `dtype`."""
    return prims.convert_element_type(x, dtypes.to_dtype(dtype))


@npsymbol(method_name="real", is_property=True, tags=_TAGS)
def real(val: Any) -> Any:
    """Return the real part of each element."""
    return clang.real(val)


for _sym in (positive, absolute, logical_not, isnan, isfinite, square, real):
    _sym.samples(unary_samples())


@where.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 4), dtype=bool8), make((4, 4)), make((4, 1)))
    yield SampleInput(make((4, 4), dtype=bool8), 1, make((4, 4)))
    yield SampleInput(make((4, 4), dtype=bool8), 1, 0)


@clip.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((4, 4)), -1, 1)
    yield SampleInput(make((4, 4)), None, 1)
    yield SampleInput(make((4, 4)), make((4,)))


@astype.samples
def _(make: MakeTensor) -> Any:
    for dtype in (float64, bool8, dtypes.int32):
        yield SampleInput(make((3, 4), low=0), dtype)
