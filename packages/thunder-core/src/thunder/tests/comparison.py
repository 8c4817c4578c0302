# SPDX-License-Identifier: Apache-2.0
"""Compare results: structure, shape, dtype and device exactly, and values within the tolerance of their dtype.

A value passes if it is close to torch's. If a float64 result is available, a value also passes if its error against
float64 is at most a few times torch's error. A decomposition need not round like torch's kernel, but its error must be
similar.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

__all__ = ["Mismatch", "Tolerance", "compare", "default_tolerance", "describe", "widened"]

Tolerance = tuple[float, float]

# The maximal error of a result, as a multiple of torch's error against float64.
MARGIN = 4.0

_TOLERANCES: dict[str, Tolerance] = {
    "float64": (1e-7, 1e-7),
    "float32": (1.3e-6, 1e-5),
    "float16": (1e-3, 1e-3),
    "bfloat16": (1.6e-2, 1e-2),
    "complex128": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5),
    "complex32": (1e-3, 1e-3),
    # One ulp. A dtype that has only powers of two has no mantissa.
    "float8_e4m3fn": (0.125, 2**-9),
    "float8_e4m3fnuz": (0.125, 2**-10),
    "float8_e5m2": (0.25, 2**-16),
    "float8_e5m2fnuz": (0.25, 2**-17),
    "float8_e8m0fnu": (0.0, 0.0),
}


class Mismatch(AssertionError):
    """Two results differ. The message contains the position of the difference."""


def default_tolerance(dtype: torch.dtype) -> Tolerance:
    """Return the suite's default `(rtol, atol)` for results of a dtype."""
    return _TOLERANCES.get(str(dtype).removeprefix("torch."), (0.0, 0.0))


def compare(
    actual: Any,
    expected: Any,
    *,
    tolerance: Callable[[torch.dtype], Tolerance] = default_tolerance,
    truth: Callable[[], Any] | None = None,
    values: bool = True,
    signed_zeros: bool = False,
) -> None:
    """Raise `Mismatch` unless `actual` matches `expected`.

    truth: a function that computes the same results from float64 inputs; called only if values are not close.
    values: if False, compare only structure, shapes, dtypes and devices.
    signed_zeros: also compare the signs of zeros.
    """
    exact = _Once(truth)
    _compare(actual, expected, _Rules(tolerance, exact, values, signed_zeros), ())


class _Once:
    """The float64 results, computed on first use; None if they cannot be computed."""

    def __init__(self, fn: Callable[[], Any] | None):
        self.fn = fn
        self.known = False
        self.result: Any = None

    def at(self, path: tuple[Any, ...]) -> torch.Tensor | None:
        if self.fn is None:
            return None
        if not self.known:
            self.known = True
            try:
                self.result = self.fn()
            except Exception:  # this call has no float64 version, so only the tolerance counts
                self.result = None
        found = self.result
        try:
            for key in path:
                found = found[key]
        except (TypeError, IndexError, KeyError):
            return None
        return found if isinstance(found, torch.Tensor) else None


class _Rules:
    def __init__(self, tolerance: Callable[[torch.dtype], Tolerance], truth: _Once, values: bool, signed_zeros: bool):
        self.tolerance = tolerance
        self.truth = truth
        self.values = values
        self.signed_zeros = signed_zeros


def _at(path: tuple[Any, ...]) -> str:
    return f"result{''.join(f'[{key!r}]' for key in path)}"


def _compare(actual: Any, expected: Any, rules: _Rules, path: tuple[Any, ...]) -> None:
    if isinstance(expected, torch.Tensor):
        _compare_tensors(actual, expected, rules, path)
    elif isinstance(expected, (tuple, list)):
        if not isinstance(actual, (tuple, list)) or len(actual) != len(expected):
            raise Mismatch(f"{_at(path)} is {describe(actual)}, but should be {describe(expected)}")
        for i, (a, e) in enumerate(zip(actual, expected)):
            _compare(a, e, rules, (*path, i))
    elif isinstance(expected, Mapping):
        if not isinstance(actual, Mapping) or list(actual) != list(expected):
            raise Mismatch(f"{_at(path)} is {describe(actual)}, but should be {describe(expected)}")
        for key in expected:
            _compare(actual[key], expected[key], rules, (*path, key))
    elif rules.values and not _same_object(actual, expected):
        raise Mismatch(f"{_at(path)} is {actual!r}, but should be {expected!r}")


def _same_object(actual: Any, expected: Any) -> bool:
    if isinstance(expected, (float, complex)) and type(actual) is type(expected):
        if actual == expected:
            return True
        if isinstance(expected, complex) or isinstance(actual, complex):  # the types are equal
            return abs(actual - expected) <= 1e-6 * abs(expected) or (actual != actual and expected != expected)
        return math.isclose(actual, expected, rel_tol=1e-6) or (math.isnan(actual) and math.isnan(expected))
    return type(actual) is type(expected) and bool(actual == expected)


def _compare_tensors(actual: Any, expected: torch.Tensor, rules: _Rules, path: tuple[Any, ...]) -> None:
    if not isinstance(actual, torch.Tensor):
        raise Mismatch(f"{_at(path)} is {describe(actual)}, but should be {describe(expected)}")
    for what in ("shape", "dtype", "device", "layout"):
        a, e = getattr(actual, what), getattr(expected, what)
        if a != e:
            a, e = (tuple(a), tuple(e)) if what == "shape" else (a, e)
            raise Mismatch(f"the {what} of {_at(path)} is {a}, but should be {e}")
    if not rules.values or expected.numel() == 0 or expected.layout is not torch.strided:
        return
    actual, expected = actual.detach().resolve_conj().resolve_neg(), expected.detach().resolve_conj().resolve_neg()
    if rules.signed_zeros and expected.is_floating_point():
        _compare_signs_of_zeros(actual, expected, path)
    if str(expected.dtype) == "torch.float4_e2m1fn_x2":
        actual, expected = actual.view(torch.uint8), expected.view(torch.uint8)
    if _bitwise(actual, expected):
        return
    rtol, atol = rules.tolerance(expected.dtype)
    a, e = widened(actual), widened(expected)
    close = _close(a, e, rtol, atol)
    if close.all():
        return
    truth = rules.truth.at(path)
    if truth is not None and truth.shape == e.shape:
        close |= _as_good(a, e, widened(truth.detach().to(a.device)), rtol, atol)
    if not close.all():
        raise Mismatch(_difference(actual, expected, close, a, e, rtol, atol, path))


def _bitwise(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    try:
        return torch.equal(actual, expected)
    except RuntimeError:  # torch cannot compare float8
        return False


def widened(x: torch.Tensor) -> torch.Tensor:
    """Convert to the widest dtype of the same kind."""
    if x.is_complex():
        return x.to(torch.complex128)
    if x.is_floating_point():
        return x.to(torch.float64)
    return x.to(torch.int64) if x.dtype is not torch.uint64 else x.view(torch.int64)


def _close(a: torch.Tensor, e: torch.Tensor, rtol: float, atol: float) -> torch.Tensor:
    if not (e.is_floating_point() or e.is_complex()):
        return a == e
    if e.is_complex():
        finite = torch.isfinite(a) & torch.isfinite(e)
        near = (a - e).abs() <= atol + rtol * e.abs()
        # It is unspecified which component of a complex result is infinite or NaN. It is specified whether any is.
        return torch.where(finite, near, torch.isfinite(a) == torch.isfinite(e))
    return torch.isclose(a, e, rtol=rtol, atol=atol, equal_nan=True)


def _as_good(a: torch.Tensor, e: torch.Tensor, truth: torch.Tensor, rtol: float, atol: float) -> torch.Tensor:
    """Return the elements whose error in `a` is at most a multiple of the largest error of torch's `e`."""
    if truth.dtype != a.dtype:
        return torch.zeros_like(a, dtype=torch.bool)
    # The exact value is correct even if torch's kernel misses it (e.g. an infinity that becomes NaN).
    usable = torch.isfinite(a) & torch.isfinite(truth)
    theirs = torch.where(usable & torch.isfinite(e), (e - truth).abs(), 0.0)
    worst = float(theirs.max()) if theirs.numel() else 0.0
    return (a == truth) | usable & ((a - truth).abs() <= atol + rtol * truth.abs() + MARGIN * worst)


def _compare_signs_of_zeros(actual: torch.Tensor, expected: torch.Tensor, path: tuple[Any, ...]) -> None:
    wrong = (actual == 0) & (expected == 0) & (torch.signbit(actual) != torch.signbit(expected))
    if wrong.any():
        index = tuple(torch.nonzero(wrong)[0].tolist())
        raise Mismatch(f"{_at(path)} has {float(actual[index])} at {index}, where torch has {float(expected[index])}")


def _difference(
    actual: torch.Tensor,
    expected: torch.Tensor,
    close: torch.Tensor,
    a: torch.Tensor,
    e: torch.Tensor,
    rtol: float,
    atol: float,
    path: tuple[Any, ...],
) -> str:
    wrong = ~close
    first = tuple(torch.nonzero(wrong)[0].tolist())
    finite = (
        torch.isfinite(a) & torch.isfinite(e) if a.is_floating_point() or a.is_complex() else torch.ones_like(wrong)
    )
    distance = torch.where(finite & wrong, (a - e).abs().to(torch.float64), 0.0)
    worst = float(distance.max())
    return (
        f"{int(wrong.sum())} of {wrong.numel()} elements of {_at(path)} ({describe(expected)}) differ: "
        f"first at {first}, where it is {actual[first].item()} and should be {expected[first].item()}; "
        f"the largest difference is {worst:.3g} (rtol={rtol:g}, atol={atol:g})"
    )


def describe(x: Any) -> str:
    """Describe an argument or result briefly."""
    if isinstance(x, torch.Tensor):
        kind = f"{x.device!s} {str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
        if x.layout is not torch.strided:
            return f"{kind} of layout {str(x.layout).removeprefix('torch.')}"
        return kind if x.is_contiguous() else f"{kind} with strides {list(x.stride())}"
    if isinstance(x, (tuple, list)):
        items = ", ".join(map(describe, x))
        return f"({items}{',' if len(x) == 1 else ''})" if isinstance(x, tuple) else f"[{items}]"
    if isinstance(x, Mapping):
        return "{" + ", ".join(f"{key!r}: {describe(value)}" for key, value in x.items()) + "}"
    text = repr(x)
    return text if len(text) <= 60 else f"a {type(x).__name__}"
