# SPDX-License-Identifier: Apache-2.0
"""The end of a trace that cannot be finished: the call runs eagerly, and `thunder.explain` reports the reason.

Every exception ends a trace in the same way. The trace is undone, and `RunsEagerly` describes the reason: a one-time
effect that a trace cannot repeat, an error of thunder that eager mode does not raise, or an error of the program. Eager
mode is the specification: if the eager run raises an error too, this is the error that the user gets.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

import torch

from thunder.capture.base.user_lines import user_line
from thunder.core.errors import (
    PluginLoadError,
    RankMismatchError,
    ResultVerificationError,
    ThunderError,
    TraceVerificationError,
    is_of_extension,
)
from thunder.core.state import SourceLine, state

__all__ = [
    "CompiledLater",
    "ModuleFallback",
    "RunsEagerly",
    "compile_later",
    "fall_back",
    "is_torchs",
    "reason_to_run_eagerly",
    "refuse_kinds_of_memory",
    "stays_an_error",
    "torch_error",
]


class RunsEagerly(Exception):
    """The end of a trace, and its reason. The call then runs eagerly."""

    where: SourceLine | None = None  # the line of user code that needs it
    error: BaseException | None = None  # the error that ended the trace
    # Whether the error may be one of the program. Then eager mode raises it too, or it is a defect of thunder.
    is_programs = False


class ModuleFallback(RunsEagerly):
    """Raised at a module or function that has to run as Python (`frontend/per_module.py`).

    `asked`: whether the user asked for it, so that no warning is needed.
    """

    def __init__(self, why: str, *, asked: bool = False) -> None:
        super().__init__(why)
        self.asked = asked


class CompiledLater(RunsEagerly):
    """Raised if this call has to run eagerly, and the next one may be compiled.

    After `most` such calls in a row, the function is not traced any more.
    """

    def __init__(self, why: str, most: float = math.inf) -> None:
        super().__init__(why)
        self.most = most


def fall_back(why: str, *, asked: bool = False) -> NoReturn:
    """End the trace. If user code catches the exception, the program still falls back and is not compiled."""
    _end(ModuleFallback(why, asked=asked))


def compile_later(tracer: Any, why: str, most: float = math.inf) -> NoReturn:
    """End the trace. This call runs eagerly, without a warning, and the next one is traced again.

    A function that a transform changes falls back instead. So does one after `most` such calls in a row.
    """
    _end(CompiledLater(why, most) if tracer.communication.may_wait else ModuleFallback(why))


def _end(reason: RunsEagerly) -> NoReturn:
    reason.where = user_line()
    tracer: Any = state.frontend
    if hasattr(tracer, "partly_eager"):
        tracer.partly_eager = reason
        tracer.count_errors()
    raise reason


def reason_to_run_eagerly(error: BaseException) -> RunsEagerly:
    """Return the reason to run a call eagerly whose trace an error has ended."""
    if isinstance(error, RunsEagerly):
        return error
    is_ours = isinstance(error, (ThunderError, NotImplementedError))
    reason = RunsEagerly(f"{error}" if is_ours else f"the program raised {type(error).__name__}: {error}")
    reason.error, reason.is_programs = error, not is_ours
    return reason


def stays_an_error(error: BaseException) -> bool:
    """Check whether an error must be raised instead of running eagerly: it reports a defect outside of the program.

    The defect is one of a plugin, of an executor or of a transform, or a check found it that the user has asked for.
    """
    return is_of_extension(error) or isinstance(
        error, (PluginLoadError, RankMismatchError, ResultVerificationError, TraceVerificationError)
    )


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
