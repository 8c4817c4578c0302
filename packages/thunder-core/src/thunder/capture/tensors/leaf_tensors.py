# SPDX-License-Identifier: Apache-2.0
"""Leaves: tensors of a program's own making that require grad (`x.detach().requires_grad_()`, `torch.zeros(…,
requires_grad=True)`, `nn.Parameter(…)`).

Inside of the program `torch.autograd.grad` takes gradients by them as by any value. A leaf that outlives the call is
different: torch's autograd would fill in its `.grad`, and what is computed of it requires grad though no input does. A
compiled program has no such tensors, so one that returns them runs partly eager (`frontend/per_module.py`), as does one
that changes whether a tensor of the caller's requires grad.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from thunder.capture.base.fallback import fall_back
from thunder.capture.base.user_lines import user_line
from thunder.capture.tensors import aliasing
from thunder.capture.tensors.handle import Handle, HandleOwner
from thunder.core.proxies import TensorProxy
from thunder.core.state import SourceLine
from thunder.core.symbol import BoundSymbol
from thunder.torch.private import DisableTorchFunction

__all__ = ["Leaves", "set_requires_grad"]


def set_requires_grad(handle: Handle, value: bool) -> None:
    """Make a handle require grad, or not."""
    if handle._needs_grad is not value:
        handle._needs_grad = value
        handle._storage.needs_grad |= value
        with DisableTorchFunction():
            handle.requires_grad_(value)


class Leaves:
    """The leaves that one run of a program makes."""

    def __init__(self) -> None:
        self._made: list[weakref.ref[Handle]] = []
        self._values: set[str] = set()
        self._line: SourceLine | None = None  # where the first was made

    def __contains__(self, handle: Handle) -> bool:
        return any(made() is handle for made in self._made)

    def seen_through(self, handle: Handle) -> bool:
        """Check whether a handle is a leaf or a view of one, so that autograd sees what is written to it."""
        for made in self._made:
            leaf = made()
            if leaf is not None and leaf._needs_grad and leaf._storage is handle._storage:
                steps = len(leaf._views)
                same = len(handle._views) >= steps and all(a is b for a, b in zip(leaf._views, handle._views))
                if same and not any(view.hides_writes for view in handle._views[steps:]):
                    return True
        return False

    def switch(self, tracer: HandleOwner, handle: Handle, value: bool) -> None:
        """Apply `handle.requires_grad_(value)`."""
        if handle._needs_grad is value:
            return
        if any(lifted.handle is handle for lifted in tracer.inputs):
            fall_back("the program changes whether a tensor that it does not make requires grad")
        if not value and handle not in self:
            raise RuntimeError(
                "you can only change requires_grad flags of leaf variables. If you want to use a computed variable in "
                "a subgraph that doesn't require differentiation use var_no_grad = var.detach()."
            )
        set_requires_grad(handle, value)
        if not value or handle in self:
            return
        with tracer.recording():
            value_made = aliasing.read(handle)
        self._made.append(weakref.ref(handle))
        if not tracer.parts:  # a function that is transformed gives none away
            self._values.add(value_made.name)
            self._line = self._line or user_line()

    def stay_inside(self, tracer: HandleOwner, results: Sequence[torch.Tensor], hook: Any) -> None:
        """Leave a program to Python whose results are leaves or require grad by them alone.

        So does one with hooks (operations `hook`) that gradients on their way to leaves go through, and nowhere else.
        """
        if not self._values:
            return
        given = {x.proxy.name for x in tracer.inputs if x.tensor.requires_grad}
        operations = tracer.trace.bound_symbols
        by_inputs, by_leaves = _flows(operations, given, self._values), _flows(operations, self._values, set())
        by_them_alone = by_leaves - by_inputs
        hooked = any(op.sym is hook and not by_them_alone.isdisjoint(op.arg_names) for op in operations)
        if hooked or any(type(x) is Handle and x._needs_grad and x._value.name not in by_inputs for x in results):
            fall_back(
                "the program returns or keeps a tensor that requires grad by itself (requires_grad_(), "
                f"requires_grad=True or nn.Parameter, in {self._line}), or what is computed of it"
            )


def _flows(operations: Sequence[BoundSymbol], sources: set[str], stops: set[str]) -> set[str]:
    """Return the values that gradients flow from to `sources`, and not by way of `stops`."""
    found = set(sources)
    for op in operations:
        if op.sym.differentiable:
            args: Any = op.arg_names[:1] if op.sym.name == "assign_value" else op.arg_names
            if not found.isdisjoint(args):
                found.update(p.name for p in op.flat_outs if isinstance(p, TensorProxy) and p.name not in stops)
    return found
