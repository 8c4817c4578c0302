# SPDX-License-Identifier: Apache-2.0
"""The samples with which the conformance suite tests the operators that draw random numbers."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["opinfos"]


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
    from thunder.tests import seeded
    from thunder_ex_nvfuser.random import drawn_seeds

    examples = ((123456789012, 40), (-7, (1 << 31) - 1))
    return seeded.opinfos("nvfuser", _uniform, drawn_seeds, examples, seeds_on="cpu")
