# SPDX-License-Identifier: Apache-2.0
"""One row of a table of models: how to build it, what to call it with, what is checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Entry"]

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """A model and what is checked of it: outputs and gradients always, the rest as it says."""

    name: str
    family: str
    build: Callable[[], torch.nn.Module]
    # The keyword arguments of a call, of a dtype, for a seed; with `other` of another shape or mask.
    inputs: Callable[[torch.dtype, int, bool], Inputs]
    # Kernels that know no float64 are compared in float32, less tightly.
    dtype: torch.dtype = torch.float64
    # How `generate` is asked: "dynamic", "static", "sampled", "uncached".
    generate: tuple[str, ...] = ()
    # Whether another shape is another program; None where there is no other shape.
    retraces: bool | None = True
    # Further programs that the first calls need, while a model sets itself up.
    settling: int = 0
    settling_in_eval: int = 0  # more of them in eval mode
    # False for what is no training step: the model has no parameters, or eager's own backward fails.
    gradients: bool = True
    # What is special about it, for the page of models; of one that thunder refuses, why.
    note: str = ""

    def __str__(self) -> str:
        return self.name

    @property
    def tolerance(self) -> tuple[float, float]:
        """Of outputs and of gradients."""
        return (1e-10, 1e-9) if self.dtype is torch.float64 else (2e-5, 2e-4)

    def module(self) -> torch.nn.Module:
        """The model, the same at each call."""
        torch.manual_seed(0)
        return self.build().to(self.dtype)
