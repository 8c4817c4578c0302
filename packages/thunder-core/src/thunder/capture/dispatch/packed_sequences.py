# SPDX-License-Identifier: Apache-2.0
"""Packed sequences: `pack_padded_sequence`, recurrent modules on packed sequences, and `pad_packed_sequence`.

The numbers of rows and of steps of a packed sequence are data-dependent. The number of sequences is known while
tracing: it equals `batch_sizes[0]`, which torch's code reads as a number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils import rnn

from thunder.capture.base.tracing_mode import TracingMode
from thunder.capture.dispatch.data_dependent import run, unknown_size
from thunder.capture.dispatch.registry import gives, handles
from thunder.capture.dispatch.scalars import known_number
from thunder.capture.tensors import aliasing
from thunder.capture.tensors.tracer import Tracer
from thunder.core.dtypes import int64
from thunder.core.proxies import TensorProxy
from thunder.core.state import state

__all__ = ["first_of"]

_pack: Any = rnn._VF._pack_padded_sequence  # type: ignore[attr-defined]
_pad: Any = rnn._VF._pad_packed_sequence  # type: ignore[attr-defined]


def _counts() -> dict[str, Any]:
    """Return the number of sequences for each `batch_sizes` proxy of the trace, by the proxy's name."""
    assert state.trace is not None
    found: dict[str, Any] = state.trace.info.setdefault("packed", {})
    return found


@gives(_pack)
def _packed(input: TensorProxy, lengths: TensorProxy, batch_first: bool) -> Any:
    steps, count = input.shape[:2][::-1] if batch_first else input.shape[:2]
    rows = unknown_size(1, steps * count)
    sizes = TensorProxy(like=lengths, shape=(unknown_size(1, steps),), dtype=int64)
    _counts()[sizes.name] = count
    return TensorProxy(like=input, shape=(rows, *input.shape[2:]), requires_grad=True), sizes


@gives(_pad)
def _padded(data: TensorProxy, sizes: TensorProxy, batch_first: bool, value: float, steps: Any) -> Any:
    count = _counts().get(sizes.name)
    count = unknown_size(1) if count is None else count
    shape = (count, steps) if batch_first else (steps, count)
    out = TensorProxy(like=data, shape=(*shape, *data.shape[1:]), requires_grad=True)
    return out, TensorProxy(like=sizes, shape=(count,), dtype=int64)


def _ran(func: Any) -> Callable[..., Any]:
    def handler(tracer: Tracer, x: Any, *args: Any) -> Any:
        return run(tracer, func, x, *args, differentiable=True)

    return handler


handles(_pack)(_ran(_pack))
handles(_pad)(_ran(_pad))


# -- the number of sequences ------------------------------------------------------------------------------------------
def first_of(tracer: Tracer, x: Any, key: Any) -> Any:
    """Return `x[key]` and register its value for `known_number` if this is `batch_sizes[0]`, else return None."""
    counts = tracer.trace.info.get("packed")
    count = counts and type(key) is int and key == 0 and counts.get(tracer.handle_of(x)._value.name)
    if not count:
        return None
    out = torch.Tensor.select(x, 0, 0)
    tracer.unknown["number", aliasing.read(tracer.handle_of(out)).name] = count
    return out


def _with_numbers(factory: Any) -> Callable[..., Any]:
    def handler(tracer: Tracer, *args: Any, **kwargs: Any) -> Any:
        """Call the factory with numbers in place of tensors, which torch accepts as sizes."""
        if not any(isinstance(x, torch.Tensor) for x in args):
            return NotImplemented
        given = []
        for x in args:
            number = known_number(tracer, x)
            given.append(number if number is not None else x.item() if isinstance(x, torch.Tensor) else x)
        with TracingMode():
            return factory(*given, **kwargs)

    return handler


for _factory in (torch.zeros, torch.ones, torch.empty, torch.rand, torch.randn):
    handles(_factory)(_with_numbers(_factory))
