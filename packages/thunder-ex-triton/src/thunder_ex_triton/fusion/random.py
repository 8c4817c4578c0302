# SPDX-License-Identifier: Apache-2.0
"""Draws of random numbers as arithmetic on a seed, so that they become part of fusions.

One operation, `triton_seeds`, draws a seed for each draw of the program from torch's generator: one small draw, which
advances the generator, repeats under `manual_seed` and can be captured in a CUDA graph. What was a draw is then
`triton_uniform(seed, shape)` and arithmetic on it (`thunder.transforms.seeded`), unless the option `triton_random` is
False.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from thunder.core import dtypes
from thunder.core.devices import to_torch_device
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import OpTags
from thunder.transforms.seeded import draw_of_seeds
from thunder_ex_triton.fusion.philox import uniform
from thunder_ex_triton.fusion.values import UNIFORM
from thunder_ex_triton.launch import blocks, kernel
from thunder_ex_triton.machine import unusable_device

__all__ = ["drawn_seeds", "register"]


# -- the operators -----------------------------------------------------------------------------------------------------
def _seeds_meta(n: int, device: Any) -> tuple[TensorProxy, ...]:
    """A seed and an offset for each of `n` draws."""
    return tuple([TensorProxy(shape=(2,), device=device, dtype=dtypes.int64) for _ in range(n)])


def drawn_seeds(n: int, device: Any) -> tuple[torch.Tensor, ...]:
    """So many seeds from the generator of a device."""
    drawn = torch.empty((n, 2), dtype=torch.int64, device=to_torch_device(device)).random_()
    return drawn.unbind()


def _uniform_meta(seed: TensorProxy, shape: Sequence[int]) -> TensorProxy:
    """Numbers from [0, 1), always the same of one seed."""
    return TensorProxy(shape=tuple(shape), device=seed.device, dtype=dtypes.float32)


@kernel
@triton.jit
def _uniform_kernel(state, out, n, XB: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * XB + tl.arange(0, XB)
    tl.store(out + place, uniform(state, place), mask=place < n)


def _uniform(seed: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    out = torch.empty(tuple(shape), dtype=torch.float32, device=seed.device)
    n = out.numel()
    if n:
        _uniform_kernel(blocks(n, 1024), (seed, out), (n, 1024), 4)
    return out


def register(registry: Any, executor: str) -> None:
    """Brings the operators, the option and the pass."""
    seeds = registry.register_operator(
        "triton_seeds", executor=executor, meta=_seeds_meta, fn=drawn_seeds,
        tags=(OpTags.RANDOM_OP, OpTags.NON_DIFFERENTIABLE),
    )  # fmt: skip
    drawn = registry.register_operator(
        UNIFORM.partition(".")[2], executor=executor, meta=_uniform_meta, fn=_uniform,
        tags=(OpTags.RECOMPUTED, OpTags.NON_DIFFERENTIABLE),
    )  # fmt: skip
    draw_of_seeds(registry, executor, seeds, lambda seed, shape, device: drawn(seed, shape), unusable_device)
