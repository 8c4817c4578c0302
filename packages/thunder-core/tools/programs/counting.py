# SPDX-License-Identifier: Apache-2.0
"""Counts the operators of torch that a call runs, inside and outside of compiled programs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import thunder

__all__ = ["Counter", "compilations"]

_TORCH = str(Path(torch.__file__).parent) + os.sep
_THUNDER = Path(thunder.__file__).parent
_AROUND = (str(_THUNDER / "runtime") + os.sep, str(_THUNDER / "frontend" / "differentiable.py"))


class Counter(TorchDispatchMode):
    """Counts the operators that torch dispatches. Those below a frame of a program of thunder are inside of it.

    The code of thunder's programs has the file name `<thunder.NAME NUMBER>`. Operators that thunder's runtime or torch
    itself runs around a program (e.g. `detach` of the outputs of a node of autograd) belong to no call of the user, and
    are not counted. torch's guards on tensors distinguish calls under a dispatch mode: the first call under a counter
    may be traced.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inside = self.outside = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        match _origin(sys._getframe(1)):
            case "program":
                self.inside += 1
            case "user":
                self.outside += 1
        return func(*args, **(kwargs or {}))

    @property
    def share(self) -> float | None:
        """The share of operators inside of programs. None if the call ran none."""
        total = self.inside + self.outside
        return self.inside / total if total else None


def _origin(frame: Any) -> str:
    """Return whose call an operator belongs to: a program's, that of thunder around it, or the user's."""
    nearest = None
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith("<thunder."):
            return "program"
        if nearest is None and not name.startswith((_TORCH, "<")):  # a name in brackets: generated code
            nearest = name
        frame = frame.f_back
    return "thunder" if nearest is not None and nearest.startswith(_AROUND) else "user"


def compilations(jitted: Any) -> int:
    """Return how often a jitted function was traced. If it runs in pieces, the traces of its modules count, too."""
    stats = thunder.compile_stats(jitted)
    parts = [] if stats.per_module is None else stats.per_module.programs
    return int(stats.cache_misses) + sum(map(compilations, parts))
