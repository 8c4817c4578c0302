# SPDX-License-Identifier: Apache-2.0
"""Primitives that make tensors from nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thunder.core import devices, dtypes
from thunder.core.prims.base import prim
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import NON_DIFFERENTIABLE


@prim(tags=(NON_DIFFERENTIABLE,))
def full(shape: Sequence[int], fill_value: Any, /, *, device: devices.Device, dtype: dtypes.dtype) -> TensorProxy:
    """A tensor of `shape` with every element `fill_value`."""
    return TensorProxy(shape=tuple(shape), device=device, dtype=dtype)


@full.samples
def _(make: MakeTensor) -> Any:
    for shape in ((2, 2), (), (0, 3)):
        yield SampleInput(shape, 1.0, device=devices.cpu, dtype=dtypes.float32)
