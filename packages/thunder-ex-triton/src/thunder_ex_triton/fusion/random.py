# SPDX-License-Identifier: Apache-2.0
"""Random numbers as arithmetic on a seed, so that they can be fused.

One operation, `triton_seeds`, draws from torch's generator one seed for each random operation of the program. This
small draw advances the generator, gives the same seeds after the same `manual_seed`, and can be captured in a CUDA
graph. Each random operation becomes `triton_uniform(seed, shape, device)` and arithmetic on its result
(`thunder.passes.rng_fusion`). The option `triton_random=False` turns this off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from thunder.extend import to_torch_device
from thunder.toolkit.fusion import draw_from_seeds
from thunder_ex_triton.fusion.philox import uniform
from thunder_ex_triton.launch import blocks, kernel
from thunder_ex_triton.probe import unusable_device

__all__ = ["drawn_seeds", "register"]


def drawn_seeds(n: int, device: Any) -> tuple[torch.Tensor, ...]:
    """Draw `n` seeds from the generator of a device."""
    drawn = torch.empty((n, 2), dtype=torch.int64, device=to_torch_device(device)).random_()
    return drawn.unbind()


@kernel
@triton.jit
def _uniform_kernel(state, out, n, XB: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * XB + tl.arange(0, XB)
    tl.store(out + place, uniform(state, place), mask=place < n)


def _uniform(seed: torch.Tensor, shape: Sequence[int], device: Any) -> torch.Tensor:
    out = torch.empty(tuple(shape), dtype=torch.float32, device=to_torch_device(device))
    n = out.numel()
    if n:
        _uniform_kernel(blocks(n, 1024), (seed, out), (n, 1024), 4)
    return out


def register(registry: Any, executor: str) -> None:
    """Register the operators `triton_seeds` and `triton_uniform`, the option and the pass."""
    draw_from_seeds(registry, executor, drawn_seeds, _uniform, unusable_device)
