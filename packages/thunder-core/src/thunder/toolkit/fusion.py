# SPDX-License-Identifier: Apache-2.0
"""Shared parts of fusion executors: regions of a trace, checks of values, roundings, and random numbers in a fusion.

A fusion pass is

    parts = partition(trace, by_device(executor))
    return replace_regions(trace, parts, run, "Fusion by …")

`run(region)` returns the operations that replace a region, or None. Usually this is one operation, created by
`executor.register_temporary_operation`. The results of a region must not be views, so `without_views` first moves the
views at its border out of it. `torch_program` runs a region with torch, for calls that the compiler of a fusion
executor cannot run. `rounded_results` returns the values that a fusion rounds to half precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.execution.regions import Region, by_device, flattened, partition, without_views
from thunder.execution.regions import fused as replace_regions
from thunder.execution.rounding import rounded_results
from thunder.executors.torch_compile import program_of as torch_program
from thunder.passes.rng_fusion import draw_of_seeds as draw_from_seeds
from thunder.torch.private import FakeTensorMode

__all__ = [
    "Region",
    "by_device",
    "draw_from_seeds",
    "flattened",
    "partition",
    "reject_values",
    "replace_regions",
    "rounded_results",
    "torch_program",
    "without_data",
    "without_views",
]


def reject_values(
    values: Iterable[Any],
    library: str,
    has_type: Callable[[Any], Any],
    unusable_device: Callable[[Any], str | None],
    *,
    max_dimensions: int | None = None,
) -> str | None:
    """Return why a compiler does not support the values that an operation reads and produces; None if it does.

    Supported values are tensors on one usable device, and numbers that are constant or symbolic.

    library: the compiler's name in messages.
    has_type: whether the compiler has a dtype; a false value or None means no.
    unusable_device: returns why the compiler cannot run on a device, or None.
    max_dimensions: the maximal number of dimensions of tensors.
    """
    devices = set()
    for value in values:
        reason = _reject_value(value, library, has_type, max_dimensions)
        if reason is None and isinstance(value, TensorProxy):
            devices.add(value.device)
            reason = unusable_device(value.device)
        if reason is not None:
            return reason
    return "uses several devices" if len(devices) > 1 else None


def _reject_value(value: Any, library: str, has_type: Callable[[Any], Any], max_dimensions: int | None) -> str | None:
    if isinstance(value, NumberProxy):
        known = value.symbol is not None and value.symbol.hint is not None
        return None if known else "has a data-dependent number"
    if not isinstance(value, TensorProxy):
        return "uses a value that is not a tensor"
    if max_dimensions is not None and value.ndim > max_dimensions:
        return f"has more than {max_dimensions} dimensions"
    if not has_type(value.dtype):
        return f"{library} has no type {value.dtype}"
    sizes: tuple[Any, ...] = value.shape
    if any(type(size) is not int and size.hint is None for size in sizes):
        return "has a data-dependent size"
    return None


@contextmanager
def without_data() -> Iterator[None]:
    """Create tensors without data in the context. Operations on them compute only shapes and strides."""
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        yield
