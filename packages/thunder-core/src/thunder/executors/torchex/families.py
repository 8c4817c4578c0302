# SPDX-License-Identifier: Apache-2.0
"""The whole torch executor, and the functions with which contributors extend it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thunder.core.devices import to_torch_device
from thunder.core.dtypes import to_torch_dtype
from thunder.core.families import import_families
from thunder.core.symbol import Symbol
from thunder.executors.torchex.base import ex, torch_impl, torch_operator

__all__ = [
    "_always_executable",
    "_register_implementation",
    "_register_torch_operation",
    "ex",
    "to_torch_device",
    "to_torch_dtype",
    "torch_impl",
]


import_families("thunder.executors.torchex")  # importing a family registers its implementations


def _always_executable(*args: Any, **kwargs: Any) -> bool:
    """Accept every call. This is a checker."""
    return True


def _register_torch_operation(name: str, *, module: Any = torch) -> Symbol:
    """Return the operator of the torch executor that runs `module.name`."""
    fn = getattr(module, name, None)
    if fn is None:
        raise AttributeError(f"{getattr(module, '__name__', module)} has no {name!r} to create an operator from")
    sym = torch_operator(fn, name)
    ex.opmap[name] = sym
    return sym


def _register_implementation(
    sym: Symbol | Any,
    op: Symbol | None = None,
    *,
    checker: Callable[..., bool | str],
    execution_transform: Callable[..., Any] | None = None,
    grad_transform: Callable[..., Any] | None = None,
) -> None:
    """Register the torch executor's implementation of `sym`: `op` with its arguments, or an `execution_transform`."""
    ex.register_implementation(
        sym, op, checker=checker, execution_transform=execution_transform, grad_transform=grad_transform
    )
