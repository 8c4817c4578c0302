# SPDX-License-Identifier: Apache-2.0
"""Handlers of conversions to another device, dtype or layout that do not correspond to one operation."""

from __future__ import annotations

from typing import Any

import torch

from thunder.capture.dispatch.registry import handles
from thunder.capture.tensors.tracer import Tracer

__all__: list[str] = []


@handles(torch.Tensor.to_dense)
def _to_dense(tracer: Tracer, x: Any, dtype: Any = None, *, masked_grad: Any = None) -> Any:
    return x if dtype is None else x.to(dtype)  # traced tensors are always dense


@handles(torch.Tensor.__deepcopy__)
def _deepcopy(tracer: Tracer, x: Any, memo: Any) -> Any:
    return x.clone()


@handles(torch.Tensor.cuda)
def _cuda(
    tracer: Tracer, x: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format
) -> Any:
    where = device if device is not None else x.device if x.device.type == "cuda" else torch.cuda.current_device()
    where = f"cuda:{where}" if isinstance(where, int) else where
    return x.to(where, non_blocking=non_blocking, memory_format=memory_format)
