# SPDX-License-Identifier: Apache-2.0
"""Updates of memory, for tests: what a program writes in place, and what it leaves in tensors that share memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

import thunder
from thunder.core.symbol import OpTags
from thunder.core.trace import Trace
from thunder.tests.running import share_memory, tensors_in


def lines(trace: Trace) -> list[str]:
    """Return the operations that write to memory that exists, as `name`, or as `name > target` if with `out=`."""
    found = []
    for op in trace.bound_symbols:
        if OpTags.IN_PLACE_OP in op.sym.tags:
            out = op.kwargs.get("out")
            found.append(op.sym.name if out is None else f"{op.sym.name} > {out.name}")
    return found


def copied(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copy tensors so that copies share memory like the tensors."""
    storages: dict[int, torch.Tensor] = {}
    found = []
    for x in inputs:
        whole = x.untyped_storage()
        if whole._cdata not in storages:
            storages[whole._cdata] = torch.empty(0, dtype=x.dtype).set_(whole).clone()
        memory = storages[whole._cdata].untyped_storage()
        found.append(torch.empty(0, dtype=x.dtype).set_(memory, x.storage_offset(), x.shape, x.stride()))
    return found


def outcome(fn: Callable[..., Any], inputs: list[torch.Tensor]) -> tuple[Any, ...]:
    """Return results or the error, the inputs afterwards, and which of all tensors share memory."""
    try:
        result: Any = tensors_in(fn(*inputs))
        error = ""
    except Exception as found:
        result, error = [], type(found).__name__
    tensors = [*result, *inputs]
    shared = [share_memory(x, y) for i, x in enumerate(tensors) for y in tensors[:i]]
    return error, [(x.shape, x.stride(), x.tolist()) for x in tensors], shared


def check(fn: Callable[..., Any], *inputs: torch.Tensor, calls: int = 3) -> Any:
    """Compare a jitted function with eager mode in several calls on the same tensors."""
    ours, theirs = copied([*inputs]), copied([*inputs])
    jitted = thunder.jit(fn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(calls):
            assert outcome(jitted, ours) == outcome(fn, theirs)
    return jitted


def matrix(seed: int = 0) -> torch.Tensor:
    return torch.rand(2, 3, generator=torch.Generator().manual_seed(seed)) + 0.1
