# SPDX-License-Identifier: Apache-2.0
"""Batch rules (`@op.batch`) that many operations share.

Their first argument `b` is a `Batch` (`passes/batching.py`), which aligns the dimensions of batched tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder.core.symbol import Symbol

__all__ = ["along_dim", "as_for_one", "at_positions", "over_dims"]


def along_dim(op: Symbol) -> Callable[..., Any]:
    """Return the rule of an operation `(a, dim, …)` along one dimension."""

    def rule(b: Any, a: Any, dim: int, *options: Any) -> Any:
        return op(b.at_least_1d(a), b.dim(a, dim), *options)

    return rule


def as_for_one(op: Symbol) -> Callable[..., Any]:
    """Return the rule of an operation that needs no change for a batch, e.g. an elementwise operation."""
    return lambda b, *args: op(*args)


def over_dims(op: Symbol) -> Callable[..., Any]:
    """Return the rule of a reduction `(a, dims)`."""

    def rule(b: Any, a: Any, dims: Any, **options: Any) -> Any:
        return op(*b.reduced(a, dims), **options)

    return rule


def at_positions(op: Symbol) -> Callable[..., Any]:
    """Return the rule of an operation `(a, dim, index, …)` that reads or writes elements along `dim`, e.g. gather."""

    def rule(b: Any, a: Any, dim: int, *others: Any, **options: Any) -> Any:
        batch, *rest = (b.at_least_1d(b.expand(x)) for x in (a, *others))
        return op(batch, b.dim(batch, dim), *rest, **options)

    return rule
