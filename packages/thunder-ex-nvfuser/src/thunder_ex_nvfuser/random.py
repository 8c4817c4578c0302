# SPDX-License-Identifier: Apache-2.0
"""Random numbers as arithmetic on a seed, so that they can be fused.

One operation, `nvfuser_seeds`, draws a seed and an offset for each random operation of the program from torch's
generator of the device. It advances the generator as torch's operations do, without a launch or synchronization. Each
random operation then becomes `nvfuser_uniform(seed, shape, device)`, which is nvFuser's Philox, and arithmetic on its
result (`thunder.passes.rng_fusion`). The option `nvfuser_random=False` turns this off. Seeds are tensors on the CPU, so
a CUDA graph would always replay the same seeds. `CUDAGraphTransform` therefore leaves operations that read seeds out of
its graphs.
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

WORDS = 4  # The step by which a draw advances the generator's offset. nvFuser uses four words per offset, like torch.


def generator_of(device: torch.device) -> Any:
    """Return torch's generator of a GPU. It exists only after CUDA is initialized, and this call may be the first."""
    torch.cuda.init()
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


def drawn_seeds(n: int, device: Any) -> tuple[torch.Tensor, ...]:
    """Return `n` seeds (each a seed and an offset) from the generator of a device.

    Advance the generator past their numbers.

    The seeds are offsets in the stream that torch's operations also use, so no number is drawn twice. nvFuser supports
    signed 32-bit offsets. The higher bits are added to the seed.
    """
    generator = generator_of(to_torch_device(device))
    seed, offset = generator.initial_seed(), generator.get_offset()
    generator.set_offset(offset + WORDS * n)
    places = range(offset // WORDS, offset // WORDS + n)
    found = [[_signed(seed + (place >> 31)), place & 0x7FFFFFFF] for place in places]
    return torch.tensor(found, device="cpu").unbind()


def _signed(seed: int) -> int:
    """Wrap a number to int64."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


@functools.cache
def _uniform_definition(ndim: int) -> str:
    """Return the definition of a single draw. Its sizes and its seed are inputs."""
    lines = [f"    n{d} = fd.define_scalar(DataType.Int)" for d in range(ndim)]
    sizes = ", ".join(f"n{d}" for d in range(ndim))
    drawn = uniform(f"[{sizes}]", "seed")
    return "\n".join(["def define(fd):", *lines, f"    seed = {TOLD_SEED}", f"    fd.add_output({drawn})", ""])


def _uniform(seed: torch.Tensor, shape: Sequence[int], device: Any) -> torch.Tensor:
    where = to_torch_device(device)
    if type(seed) is not torch.Tensor or 0 in shape:  # a fake tensor needs only the metadata
        return torch.empty(tuple(shape), dtype=torch.float32, device=where)
    execute = compiled(_uniform_definition(len(shape))).execute
    return execute([*shape, *seed.tolist()], device=where.index)[0]


def register(registry: Any, executor: str) -> None:
    """Register the operators `nvfuser_seeds` and `nvfuser_uniform`, the option and the pass."""
    draw_from_seeds(registry, executor, drawn_seeds, _uniform, unusable_device, seeds_on=devices.cpu)
