# SPDX-License-Identifier: Apache-2.0
"""`ProfileTransform`: show each line of the program as a named range in profilers.

Contract: each operation runs inside `torch.profiler.record_function`, and on request inside an NVTX range of the same
name. The name contains the operation, its results, and the line of user code. If an operation raises an error, its
range is closed. The results of the program stay the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from thunder.core.symbol import BoundSymbol, Symbol
from thunder.transforms.base import check_option
from thunder.transforms.debugging import runs
from thunder.transforms.rewrite import RewritePass

__all__ = ["ProfileTransform"]


class ProfileTransform(RewritePass):
    """Add ranges of `torch.profiler`, and NVTX ranges if `nvtx` is true. The default: NVTX if there is a GPU."""

    pass_name = "Profile"
    phases = ("after_execution",)
    changes_results = False
    drops_dead_code = False

    def __init__(self, *, nvtx: bool | None = None):
        check_option("ProfileTransform", "nvtx", nvtx, nvtx is None or type(nvtx) is bool, "True, False or None")
        self.nvtx = torch.cuda.is_available() if nvtx is None else nvtx

    def rewrite(self, op: BoundSymbol) -> Any:
        if not runs(op) or op.sym.fn is None:
            return None
        return self.record(self._ranged(op))

    def _ranged(self, bsym: BoundSymbol) -> BoundSymbol:
        sym = bsym.sym
        assert sym.fn is not None
        label = label_of(bsym)
        ranged = Symbol(
            f"profiled_{sym.name.strip('_')}",
            sym.meta,
            id=("profiled", label, sym.id),
            is_prim=True,
            executor=sym.executor,
            fn=_in_range(sym.fn, label, self.nvtx),
            tags=tuple(sym.tags),
        )
        ranged.is_fusion = sym.is_fusion
        return bsym.replace(sym=ranged, subsymbols=[bsym])


def label_of(bsym: BoundSymbol) -> str:
    """Return the label of an operation in a profile: its name, its results and the line of user code."""
    makes = f" -> {', '.join(bsym.out_names)}" if bsym.out_names else ""
    where = f" at {os.path.basename(bsym.source.filename)}:{bsym.source.line}" if bsym.source else ""
    return f"{bsym.sym.name}{makes}{where}"


def _in_range(fn: Callable[..., Any], label: str, nvtx: bool) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.profiler.record_function(label):
            if not nvtx:
                return fn(*args, **kwargs)
            with torch.cuda.nvtx.range(label):
                return fn(*args, **kwargs)

    return run
