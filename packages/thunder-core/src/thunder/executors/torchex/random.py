# SPDX-License-Identifier: Apache-2.0
"""torch's implementations of the random primitives. Each draws the same numbers as eager mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.core import prims
from thunder.executors.torchex.base import torch_impl


def _empty(shape: Sequence[int], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(tuple(shape), device=device, dtype=dtype)


def _drawn_by(name: str) -> Callable[..., torch.Tensor]:
    """Return a function that draws a new tensor with the in-place tensor method `name_`."""
    fill = getattr(torch.Tensor, f"{name}_")

    def draw(
        shape: Sequence[int], *parameters: float, device: torch.device, dtype: torch.dtype, generator: Any = None
    ) -> torch.Tensor:
        return fill(_empty(shape, device, dtype), *parameters, generator=generator)  # type: ignore[no-any-return]

    draw.__name__ = name
    return draw


_DISTRIBUTIONS = ("uniform", "normal", "bernoulli", "exponential", "geometric", "cauchy", "log_normal")
for _name in _DISTRIBUTIONS:
    torch_impl(getattr(prims, _name))(_drawn_by(_name))


@torch_impl(ltorch.normal)
def normal_of(mean: Any, std: Any = 1.0, size: Any = None, **options: Any) -> torch.Tensor:
    """Return numbers from normal distributions. With a size, torch requires both parameters to be numbers."""
    return torch.normal(mean, std, **options) if size is None else torch.normal(mean, std, size, **options)


@torch_impl(prims.randint)
def randint(
    shape: Sequence[int],
    low: int | None,
    high: int | None,
    *,
    device: torch.device,
    dtype: torch.dtype,
    generator: Any = None,
) -> torch.Tensor:
    """Return uniformly distributed integers."""
    out = _empty(shape, device, dtype)
    return out.random_(generator=generator) if low is None else out.random_(low, high, generator=generator)


@torch_impl(prims.bernoulli_tensor)
def bernoulli_tensor(p: torch.Tensor, *, dtype: torch.dtype, generator: Any = None) -> torch.Tensor:
    """Return a tensor of ones and zeros. Each element is one with the given probability."""
    return torch.empty_like(p, dtype=dtype).bernoulli_(p, generator=generator)


@torch_impl(prims.rrelu_noise)
def rrelu_noise(a: torch.Tensor, lower: float, upper: float) -> torch.Tensor:
    """Return the random slopes of torch's rrelu kernel."""
    noise = torch.ones_like(a)
    torch._C._nn.rrelu_with_noise(a, noise, lower, upper, True)
    return noise


@torch_impl(prims.rng_state)
def rng_state(device: torch.device, generator: Any = None) -> torch.Tensor:
    """Return the state of the generator."""
    return prims.state_of_generator(device, generator)  # type: ignore[no-any-return]


@torch_impl(prims.exchange_rng_state)
def exchange_rng_state(state: torch.Tensor, device: torch.device, generator: Any = None) -> torch.Tensor:
    """Set the state of the generator. Return the previous state."""
    before = prims.state_of_generator(device, generator)
    prims.set_generator(state, device, generator)
    return before  # type: ignore[no-any-return]


@torch_impl(prims.barrier)
def barrier(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the arguments, as the same tensors. This keeps operations in order."""
    return values
