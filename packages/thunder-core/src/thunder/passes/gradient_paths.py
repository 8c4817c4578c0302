# SPDX-License-Identifier: Apache-2.0
"""The operations through which gradients flow from values of a program to its leaves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from thunder.core import prims
from thunder.core.dtypes import is_inexact_dtype
from thunder.core.symbol import BoundSymbol

__all__ = ["GradientPath", "add_paths_through", "depending_on", "gradient_path"]


class GradientPath(NamedTuple):
    """Names of values on the way of gradients."""

    values: set[str]  # all values through which gradients flow
    results: set[str]  # those that an operation computed
    read: set[str]  # the tensors that these operations read
    operations: list[BoundSymbol]  # those through which gradients flow, in the program's order


def gradient_path(operations: Sequence[BoundSymbol], start: Iterable[str]) -> GradientPath:
    """Return the values through which gradients of the values `start` flow."""
    values = set(start)
    results: set[str] = set()
    read: set[str] = set()
    found: list[BoundSymbol] = []
    for op in reversed(operations):
        if values.isdisjoint(op.out_names) or not op.sym.differentiable:
            continue
        found.append(op)
        tensors = op.tensors()
        if op.sym is prims.assign_value:  # autograd does not know of it
            tensors = tensors[:1]
        else:
            results.update(op.out_names)
            read.update(p.name for p in tensors)
        values.update(p.name for p in tensors if is_inexact_dtype(p.dtype))
    return GradientPath(values, results, read, found[::-1])


def add_paths_through(results: AbstractSet[str], found: set[str], operations: Iterable[BoundSymbol]) -> None:
    """Add the values whose gradient path has one of `results` to `found`, which has those of earlier operations."""
    for op in operations:
        if not op.sym.differentiable:
            continue
        tensors, computed = op.tensors(), op.out_names
        if op.sym is prims.assign_value:
            tensors, computed = tensors[:1], ()
        if not results.isdisjoint(computed) or any(p.name in found and is_inexact_dtype(p.dtype) for p in tensors):
            found.update(op.out_names)


def depending_on(operations: Sequence[BoundSymbol], leaves: Iterable[str]) -> set[str]:
    """Return the values that require grad because they are computed from `leaves`."""
    found = set(leaves)
    for op in operations:
        if op.sym.differentiable and any(p.name in found for p in op.tensors()):
            found.update(op.out_names)
    return found
