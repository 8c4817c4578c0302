# SPDX-License-Identifier: Apache-2.0
"""Comparisons: two operands of one dtype in, truth values out."""

from __future__ import annotations

from typing import Any

from thunder.core.dtypes import bool8
from thunder.core.prims.base import prim
from thunder.core.prims.elementwise_base import COMPARISON, binary_samples, ordered_meta
from thunder.core.prims.metas import elementwise_meta
from thunder.core.proxies import TensorProxy


@prim(torch="torch.eq", tags=COMPARISON)
def eq(a: Any, b: Any, /) -> TensorProxy:
    """Where `a` equals `b`."""
    return elementwise_meta("eq", a, b, out_dtype=bool8)


@prim(torch="torch.ne", tags=COMPARISON)
def ne(a: Any, b: Any, /) -> TensorProxy:
    """Where `a` differs from `b`; NaN differs from everything."""
    return elementwise_meta("ne", a, b, out_dtype=bool8)


@prim(torch="torch.lt", tags=COMPARISON)
def lt(a: Any, b: Any, /) -> TensorProxy:
    """Where `a` is less than `b`."""
    return ordered_meta("lt", a, b, out_dtype=bool8)


@prim(torch="torch.le", tags=COMPARISON)
def le(a: Any, b: Any, /) -> TensorProxy:
    """Where `a` is at most `b`."""
    return ordered_meta("le", a, b, out_dtype=bool8)


@prim(torch="torch.gt", tags=COMPARISON)
def gt(a: Any, b: Any, /) -> TensorProxy:
    """Where `a` is greater than `b`."""
    return ordered_meta("gt", a, b, out_dtype=bool8)


@prim(torch="torch.ge", tags=COMPARISON)
def ge(a: Any, b: Any, /) -> TensorProxy:
    """Where `a` is at least `b`."""
    return ordered_meta("ge", a, b, out_dtype=bool8)


for _comparison in (eq, ne, lt, le, gt, ge):
    _comparison.samples(binary_samples(numbers=True))
