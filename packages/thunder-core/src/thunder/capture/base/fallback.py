# SPDX-License-Identifier: Apache-2.0
"""Exceptions that end a trace because thunder cannot trace what the program does, but eager PyTorch can run it.

The call then runs eagerly, and `thunder.explain` reports the reason.
"""

from __future__ import annotations

from typing import NoReturn

import torch

from thunder.core.state import SourceLine, state

__all__ = [
    "ModuleFallback",
    "ProgramRaised",
    "RunsEagerly",
    "fall_back",
    "is_torchs",
    "refuse_kinds_of_memory",
    "torch_error",
]


class RunsEagerly(Exception):
    """Raised if the program has a one-time effect that a trace cannot repeat. The call then runs eagerly."""

    where: SourceLine | None = None  # the line of user code that needs it


class ProgramRaised(RunsEagerly):
    """Raised if the program raised an error after it had printed, logged or warned, which tracing does not do.

    The call then runs eagerly, so that the error and what the program did before it are as in eager mode.
    """


class ModuleFallback(RunsEagerly):
    """Raised at a module or function that has to run as Python (`frontend/per_module.py`).

    `warns`: whether to warn the user, because nothing in the program asks for it.
    """

    def __init__(self, why: str, *, warns: bool = False) -> None:
        super().__init__(why)
        self.warns = warns


def fall_back(why: str, *, warns: bool = False) -> NoReturn:
    """End the trace. If user code catches the exception, the program still falls back and is not compiled."""
    reason = ModuleFallback(why, warns=warns)
    if hasattr(state.frontend, "partly_eager"):
        state.frontend.partly_eager = reason  # type: ignore[union-attr]
    raise reason


def refuse_kinds_of_memory(tensor: torch.Tensor) -> None:
    """Fall back for sparse, nested and quantized tensors, because traces model only strided memory."""
    if tensor.layout is not torch.strided:
        fall_back(f"the program uses a tensor with layout {tensor.layout}")
    if tensor.is_quantized:
        fall_back(f"the program uses a quantized tensor ({tensor.dtype})")


def torch_error(message: str) -> RuntimeError:
    """Return an error about state that only the tracer knows, e.g. leaf tensors. torch raises it for the same call."""
    error = RuntimeError(message)
    error._thunder_as_in_torch = True  # type: ignore[attr-defined]
    return error


def is_torchs(error: BaseException | None) -> bool:
    """Check whether `torch_error` made an error."""
    return getattr(error, "_thunder_as_in_torch", False)
