# SPDX-License-Identifier: Apache-2.0
"""Draws of random numbers as arithmetic on a seed, so that they become part of fusions.

One operation, `nvfuser_seeds`, takes a seed and an offset for each draw of the program from torch's generator of the
device, and moves the generator on, as torch's own draws do: nothing is launched and nothing waited for. What was a draw
is then `nvfuser_uniform(seed, shape, device)`, nvFuser's Philox, and arithmetic on it (`thunder.passes.rng_fusion`),
unless the option `nvfuser_random` is False. Seeds are tensors on the CPU: a CUDA graph would repeat them, and so
`CUDAGraphTransform` leaves what reads them out of its graphs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from thunder.extend import devices, to_torch_device
from thunder.toolkit.fusion import draw_from_seeds
from thunder_ex_nvfuser.definition import TOLD_SEED
from thunder_ex_nvfuser.op_table import uniform
from thunder_ex_nvfuser.probe import unusable_device
from thunder_ex_nvfuser.region import compiled

__all__ = ["drawn_seeds", "register"]

WORDS = 4  # of a generator's stream for a draw: nvFuser takes four words at a place of it, as torch does


def generator_of(device: torch.device) -> Any:
    """Return torch's generator of a GPU; there is none before CUDA is initialised, which seeds may be first to need."""
    torch.cuda.init()
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


def drawn_seeds(n: int, device: Any) -> tuple[torch.Tensor, ...]:
    """So many seeds of the generator of a device, which is moved past what they make: a seed and an offset each.

    They are places in the stream that torch's own draws are taken of, so that nothing is drawn twice. nvFuser reads 32
    bits of a place, with a sign; what is above makes another seed.
    """
    generator = generator_of(to_torch_device(device))
    seed, offset = generator.initial_seed(), generator.get_offset()
    generator.set_offset(offset + WORDS * n)
    places = range(offset // WORDS, offset // WORDS + n)
    return torch.tensor([[_signed(seed + (place >> 31)), place & 0x7FFFFFFF] for place in places]).unbind()


def _signed(seed: int) -> int:
    """Compute 64 bits as a number of int64."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


@functools.cache
def _uniform_definition(ndim: int) -> str:
    """Return what nvFuser is told of a draw by itself; its sizes and its seed are told at the call."""
    lines = [f"    n{d} = fd.define_scalar(DataType.Int)" for d in range(ndim)]
    sizes = ", ".join(f"n{d}" for d in range(ndim))
    drawn = uniform(f"[{sizes}]", "seed")
    return "\n".join(["def define(fd):", *lines, f"    seed = {TOLD_SEED}", f"    fd.add_output({drawn})", ""])


def _uniform(seed: torch.Tensor, shape: Sequence[int], device: Any) -> torch.Tensor:
    where = to_torch_device(device)
    if type(seed) is not torch.Tensor or 0 in shape:  # who asks only for a layout has a tensor that holds nothing
        return torch.empty(tuple(shape), dtype=torch.float32, device=where)
    execute = compiled(_uniform_definition(len(shape))).execute
    return execute([*shape, *seed.tolist()], device=where.index)[0]


def register(registry: Any, executor: str) -> None:
    """Bring the operators `nvfuser_seeds` and `nvfuser_uniform`, the option and the pass."""
    draw_from_seeds(registry, executor, drawn_seeds, _uniform, unusable_device, seeds_on=devices.cpu)
