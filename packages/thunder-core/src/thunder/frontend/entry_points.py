# SPDX-License-Identifier: Apache-2.0
"""Functions of torch that no torch function override reaches, replaced while a program is traced.

A replacement asks whether the calling thread is the one that traces, and is torch's own function for all others.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from thunder.frontend.tracer import Tracer

__all__ = ["replaced_entry_points"]


class _CompilingHere:
    """Stands for `torch.compiler`'s flag: true on the thread that traces."""

    def __init__(self, before: Any):
        self.before = before
        self.thread = threading.get_ident()

    def __bool__(self) -> bool:
        return threading.get_ident() == self.thread or bool(self.before)


@contextmanager
def replaced_entry_points(tracer: Tracer) -> Iterator[None]:
    """Within it, programs on this thread see themselves as being compiled."""
    import torch.compiler

    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = _CompilingHere(before)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before

