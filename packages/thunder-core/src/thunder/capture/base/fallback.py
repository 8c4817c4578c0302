# SPDX-License-Identifier: Apache-2.0
"""What ends a trace when eager PyTorch can do what the program asks for and no program of ours can.

The call then runs as it is written, and `thunder.explain` says why.
"""

from __future__ import annotations

from typing import NoReturn

import torch

from thunder.core.state import state

__all__ = ["RunsEagerly", "RunsInPieces", "leave_to_python", "refuse_kinds_of_memory"]


class RunsEagerly(Exception):
    """A call does something once that no program can do again, and runs as it is written."""


class RunsInPieces(RunsEagerly):
    """The program calls a function that stays Python, or needs it to (`disabled.py`)."""


def leave_to_python(why: str) -> NoReturn:
    """Ends the trace. A program that catches the exception does not go on to be compiled either."""
    reason = RunsInPieces(why)
    if hasattr(state.frontend, "in_pieces"):
        state.frontend.in_pieces = reason  # type: ignore[union-attr]
    raise reason


def refuse_kinds_of_memory(tensor: torch.Tensor) -> None:
    """Traces know numbers at strides: what works on sparse, nested and quantized tensors stays Python."""
    if tensor.layout is not torch.strided:
        leave_to_python(f"the program has a tensor of the layout {tensor.layout}")
    if tensor.is_quantized:
        leave_to_python(f"the program has a tensor of {tensor.dtype}")
