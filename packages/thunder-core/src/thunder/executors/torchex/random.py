# SPDX-License-Identifier: Apache-2.0
"""torch's implementations of the random primitives: each draws the same numbers as eager mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.core import prims
from thunder.executors.torchex.base import torch_impl


def _empty(shape: Sequence[int], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(tuple(shape), device=device, dtype=dtype)


@torch_impl(prims.uniform)
def uniform(
    shape: Sequence[int], low: float, high: float, *, device: torch.device, dtype: torch.dtype, generator: Any = None
) -> torch.Tensor:
    """Return uniformly distributed numbers."""
    return _empty(shape, device, dtype).uniform_(low, high, generator=generator)


@torch_impl(prims.normal)
def normal(
    shape: Sequence[int], mean: float, std: float, *, device: torch.device, dtype: torch.dtype, generator: Any = None
) -> torch.Tensor:
    """Return normally distributed numbers."""
    return _empty(shape, device, dtype).normal_(mean, std, generator=generator)


@torch_impl(ltorch.normal)
def normal_of(mean: Any, std: Any = 1.0, size: Any = None, **options: Any) -> torch.Tensor:
    """Return numbers of normal distributions; with a size, torch requires both parameters to be numbers."""
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


@torch_impl(prims.bernoulli)
def bernoulli(
    shape: Sequence[int], p: float, *, device: torch.device, dtype: torch.dtype, generator: Any = None
) -> torch.Tensor:
    """Return ones with the given probability, else zeros."""
    return _empty(shape, device, dtype).bernoulli_(p, generator=generator)


@torch_impl(prims.bernoulli_tensor)
def bernoulli_tensor(p: torch.Tensor, *, dtype: torch.dtype, generator: Any = None) -> torch.Tensor:
    """Return ones with a probability per element, else zeros."""
    return torch.empty_like(p, dtype=dtype).bernoulli_(p, generator=generator)


@torch_impl(prims.randperm)
def randperm(n: int, *, device: torch.device, dtype: torch.dtype = torch.int64, generator: Any = None) -> torch.Tensor:
    """Return a random permutation of `0..n-1`."""
    return torch.randperm(n, device=device, dtype=dtype, generator=generator)


@torch_impl(prims.multinomial)
def multinomial(weights: torch.Tensor, num_samples: int, replacement: bool, *, generator: Any = None) -> torch.Tensor:
    """Return indices sampled according to weights."""
    return torch.multinomial(weights, num_samples, replacement, generator=generator)


@torch_impl(prims.exponential)
def exponential(
    shape: Sequence[int], rate: float, *, device: torch.device, dtype: torch.dtype, generator: Any = None
) -> torch.Tensor:
    """Return exponentially distributed numbers."""
    return _empty(shape, device, dtype).exponential_(rate, generator=generator)


@torch_impl(prims.geometric)
def geometric(
    shape: Sequence[int], p: float, *, device: torch.device, dtype: torch.dtype, generator: Any = None
) -> torch.Tensor:
    """Return geometrically distributed numbers."""
    return _empty(shape, device, dtype).geometric_(p, generator=generator)


@torch_impl(prims.cauchy)
def cauchy(
    shape: Sequence[int],
    median: float,
    sigma: float,
    *,
    device: torch.device,
    dtype: torch.dtype,
    generator: Any = None,
) -> torch.Tensor:
    """Return Cauchy-distributed numbers."""
    return _empty(shape, device, dtype).cauchy_(median, sigma, generator=generator)


@torch_impl(prims.log_normal)
def log_normal(
    shape: Sequence[int], mean: float, std: float, *, device: torch.device, dtype: torch.dtype, generator: Any = None
) -> torch.Tensor:
    """Return log-normally distributed numbers."""
    return _empty(shape, device, dtype).log_normal_(mean, std, generator=generator)


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
    """Set the state of the generator, and return the previous one."""
    before = prims.state_of_generator(device, generator)
    if generator is not None:
        generator.set_state(state)
    elif device.type == "cpu":
        torch.set_rng_state(state)
    else:
        getattr(torch, device.type).set_rng_state(state, str(device))
    return before  # type: ignore[no-any-return]


@torch_impl(prims.barrier)
def barrier(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return its arguments; keeps operations in order."""
    return values
