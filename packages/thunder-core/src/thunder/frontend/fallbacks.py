# SPDX-License-Identifier: Apache-2.0
"""Helpers of `JitFunction` for calls that run eagerly: transforms of torch.func, warnings, and whose error it is."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

from thunder.capture.reads.libraries import is_library
from thunder.core.locations import is_ours
from thunder.core.state import SourceLine

__all__ = [
    "TRANSFORMS_OF_TORCH",
    "at_line",
    "has_frames_of_extension",
    "is_transform",
    "stacklevel_of_user",
    "with_transforms_of_torch",
]

# By the programs that `thunder.grad` and others trace: the same transform of torch.func, for eager mode.
TRANSFORMS_OF_TORCH: dict[Callable[..., Any], Callable[..., Callable[..., Any]]] = {}


def is_transform(fn: Callable[..., Any]) -> bool:
    return isinstance(fn, functools.partial) and fn.func in TRANSFORMS_OF_TORCH


def with_transforms_of_torch(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that computes the same as `fn` in eager mode."""
    if not is_transform(fn):
        return fn
    transformed, *how = fn.args  # type: ignore[attr-defined]
    return TRANSFORMS_OF_TORCH[fn.func](with_transforms_of_torch(transformed), *how)  # type: ignore[attr-defined]


def at_line(where: SourceLine | None, reason: str = "") -> str:
    """Return the line that needs something, for a message, unless the reason already contains the line."""
    return "" if where is None or f"{where}" in reason else f" (at {where})"


def stacklevel_of_user() -> int:
    """Return the `stacklevel` of a warning at the line of user code that calls a jitted function."""
    frame: types.FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return level


def has_frames_of_extension(error: BaseException) -> bool:
    """Check whether code that belongs neither to thunder nor to a library raised an error in a pass."""
    entry = error.__traceback__
    while entry is not None:
        filename = entry.tb_frame.f_code.co_filename
        if not is_ours(filename) and not is_library(filename):
            return True
        entry = entry.tb_next
    return False
