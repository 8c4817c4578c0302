# SPDX-License-Identifier: Apache-2.0
"""What ends a trace when eager PyTorch can do what the program asks for and no program of ours can.

The call then runs as it is written, and `thunder.explain` says why.
"""

from __future__ import annotations

from typing import NoReturn

import torch

from thunder.core.state import state

__all__ = ["ModuleFallback", "RunsEagerly", "fall_back", "refuse_kinds_of_memory"]


class RunsEagerly(Exception):
    """A call does something once that no program can do again, and runs as it is written."""


class ModuleFallback(RunsEagerly):
    """The program calls a function that stays Python, or needs it to (`frontend/per_module.py`)."""


def fall_back(why: str) -> NoReturn:
    """End the trace. A program that catches the exception does not go on to be compiled either."""
    reason = ModuleFallback(why)
    if hasattr(state.frontend, "partly_eager"):
        state.frontend.partly_eager = reason  # type: ignore[union-attr]
    raise reason


def refuse_kinds_of_memory(tensor: torch.Tensor) -> None:
    """Trace know numbers at strides: what works on sparse, nested and quantized tensors stays Python."""
    if tensor.layout is not torch.strided:
        fall_back(f"the program has a tensor of the layout {tensor.layout}")
    if tensor.is_quantized:
        fall_back(f"the program has a tensor of {tensor.dtype}")
