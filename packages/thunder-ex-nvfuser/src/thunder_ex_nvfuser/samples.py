# SPDX-License-Identifier: Apache-2.0
"""The samples with which the conformance suite tests the operators that draw random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["opinfos"]


def _draws(op: Any, device: Any, dtype: Any, requires_grad: bool, **kwargs: Any) -> Iterator[Any]:
    """Seed and offset, a shape, and where."""
    from thunder.core.devices import to_device
    from thunder.tests.opinfos import SampleInput

    for numbers in ((123456789012, 40), (-7, (1 << 31) - 1)):
        for shape in ((4, 5), (), (0, 3), (1030,), (2, 3, 4)):
            yield SampleInput(torch.tensor(numbers), shape, to_device(device))


def _counts(op: Any, device: Any, dtype: Any, requires_grad: bool, **kwargs: Any) -> Iterator[Any]:
    """How many, for draws on a device."""
    from thunder.core.devices import to_device
    from thunder.tests.opinfos import SampleInput

    for n in (1, 3):
        yield SampleInput(n, to_device(device))


def _uniform(seed: torch.Tensor, shape: tuple[int, ...], device: Any) -> torch.Tensor:
    """The numbers that nvFuser makes of a seed, one after the other."""
    from thunder.core.devices import to_torch_device
    from thunder.tests.philox import philox

    number, offset = seed.tolist()
    places = range(torch.Size(shape).numel())
    words = [philox(number, (offset, 0, place // 4, 0))[place % 4] for place in places]
    drawn = torch.tensor(words, dtype=torch.int64).to(torch.float32) * 2.3283064e-10
    return torch.where(drawn == 1, 0.0, drawn).reshape(shape).to(to_torch_device(device))


def opinfos() -> list[Any]:
    """One for each operator."""
    from thunder.extend import get_executor
    from thunder.tests.opinfos import OpInfo
    from thunder_ex_nvfuser.random import drawn_seeds

    operator = get_executor("nvfuser").opmap
    table = (("nvfuser_uniform", _uniform, _draws), ("nvfuser_seeds", drawn_seeds, _counts))
    return [
        OpInfo(
            operator[name], sample_input_generator=samples, torch_reference=of, family="random",
            dtypes=(torch.int64,), supports_grad=False,
        )
        for name, of, samples in table
    ]  # fmt: skip
