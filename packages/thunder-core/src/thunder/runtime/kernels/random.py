# SPDX-License-Identifier: Apache-2.0
"""Kernels that draw random numbers. Each draws the same numbers as eager mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.core.generators import set_generator, state_of_generator
from thunder.runtime.kernels.table import kernel

__all__ = ["DISTRIBUTIONS"]


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


DISTRIBUTIONS = ("uniform", "normal", "bernoulli", "exponential", "geometric", "cauchy", "log_normal")
for _name in DISTRIBUTIONS:
    kernel(_drawn_by(_name))


@kernel
def normal_of(mean: Any, std: Any = 1.0, size: Any = None, **options: Any) -> torch.Tensor:
    """Return numbers from normal distributions. With a size, torch requires both parameters to be numbers."""
    return torch.normal(mean, std, **options) if size is None else torch.normal(mean, std, size, **options)


@kernel
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


@kernel
def bernoulli_tensor(p: torch.Tensor, *, dtype: torch.dtype, generator: Any = None) -> torch.Tensor:
    """Return a tensor of ones and zeros. Each element is one with the given probability."""
    return torch.empty_like(p, dtype=dtype).bernoulli_(p, generator=generator)


@kernel
def rrelu_noise(a: torch.Tensor, lower: float, upper: float) -> torch.Tensor:
    """Return the random slopes of torch's rrelu kernel."""
    noise = torch.ones_like(a)
    torch._C._nn.rrelu_with_noise(a, noise, lower, upper, True)
    return noise


@kernel
def rng_state(device: torch.device, generator: Any = None) -> torch.Tensor:
    """Return the state of the generator."""
    return state_of_generator(device, generator)  # type: ignore[no-any-return]


@kernel
def exchange_rng_state(state: torch.Tensor, device: torch.device, generator: Any = None) -> torch.Tensor:
    """Set the state of the generator. Return the previous state."""
    before = state_of_generator(device, generator)
    set_generator(state, device, generator)
    return before  # type: ignore[no-any-return]


@kernel
def barrier(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the arguments, as the same tensors. This keeps operations in order."""
    return values
