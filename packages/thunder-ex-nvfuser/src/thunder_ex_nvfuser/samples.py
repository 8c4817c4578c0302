# SPDX-License-Identifier: Apache-2.0
"""Samples for the conformance tests of the operators that draw random numbers."""

from __future__ import annotations

from typing import Any

import torch

from thunder.extend import to_torch_device
from thunder.toolkit.conformance import philox_words, seeded_opinfos
from thunder_ex_nvfuser.random import drawn_seeds

__all__ = ["opinfos"]


def _uniform(seed: torch.Tensor, shape: tuple[int, ...], device: Any) -> torch.Tensor:
    """Return the numbers that nvFuser draws from a seed, in row-major order."""
    words = philox_words(seed, shape, lambda block, offset: (offset, 0, block, 0))
    drawn = words.to(torch.float32) * 2.3283064e-10
    return torch.where(drawn == 1, 0.0, drawn).to(to_torch_device(device))


def opinfos() -> list[Any]:
    """Return an OpInfo for each operator."""
    examples = ((123456789012, 40), (-7, (1 << 31) - 1))
    return seeded_opinfos("nvfuser", _uniform, drawn_seeds, examples, seeds_on="cpu")
