# SPDX-License-Identifier: Apache-2.0
"""Primitives of programs that recompute values instead of saving them for backward (`torch.utils.checkpoint`)."""

from __future__ import annotations

from functools import partial
from typing import Any

from thunder.core import devices
from thunder.core.dtypes import is_inexact_dtype, uint8
from thunder.core.errors import check
from thunder.core.generators import set_generator, state_of_generator
from thunder.core.prims.base import prim
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags

__all__ = ["barrier", "exchange_rng_state", "rng_state", "set_generator", "state_of_generator"]

# Like a draw of random numbers, reading or setting a generator's state must keep its order among the draws.
_TAGS = (OpTags.RANDOM_OP, OpTags.GENERATOR_STATE_OP, OpTags.NON_DIFFERENTIABLE)


@prim()
def barrier(*values: TensorProxy) -> tuple[TensorProxy, ...]:
    """Return `values` under new names: new values of the trace for the same tensors.

    Operations on the results run after all arguments are computed, and are not merged with operations on the arguments.
    """
    for value in values:
        check(
            isinstance(value, TensorProxy),
            partial("barrier expects tensors, not {}".format, type(value).__name__),
            TypeError,
        )
    return tuple([TensorProxy(like=value) for value in values])


@barrier.vjp
def _(g: Any, out: Any, *values: TensorProxy) -> tuple[Any, ...]:
    return tuple([gradient if is_inexact_dtype(value.dtype) else None for gradient, value in zip(g, values)])


@barrier.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)))
    yield SampleInput(make(()), make((0,)), make((3, 2)).mT)


@barrier.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2,)), 1), TypeError, "barrier expects tensors, not int"


def _state_meta(device: devices.Device, generator: Any) -> TensorProxy:
    return TensorProxy(shape=tuple(state_of_generator(device, generator).shape), device=devices.cpu, dtype=uint8)


@prim(tags=_TAGS)
def rng_state(device: devices.Device, generator: Any = None, /) -> TensorProxy:
    """Return the state of `generator`, or of torch's default generator for `device`, as a tensor of bytes."""
    return _state_meta(device, generator)


@rng_state.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(devices.to_device(make.device))


@prim(tags=_TAGS)
def exchange_rng_state(state: TensorProxy, device: devices.Device, generator: Any = None, /) -> TensorProxy:
    """Set a generator to `state`, a result of `rng_state`, and return the generator's previous state."""
    check(
        isinstance(state, TensorProxy) and state.dtype is uint8 and state.device.type == "cpu" and state.ndim == 1,
        lambda: f"exchange_rng_state expects a state that rng_state returned, bytes on the cpu, not {state!r}",
        TypeError,
    )
    return _state_meta(device, generator)


@exchange_rng_state.samples
def _(make: MakeTensor) -> Any:
    device = devices.to_device(make.device)
    yield SampleInput(state_of_generator(device, None), device)


@exchange_rng_state.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(1, devices.to_device(make.device)), TypeError, "expects a state that rng_state returned"
