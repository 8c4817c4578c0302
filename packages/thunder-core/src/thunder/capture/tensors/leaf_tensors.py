# SPDX-License-Identifier: Apache-2.0
"""Leaf tensors that a program creates with requires_grad, e.g. by `x.detach().requires_grad_()`,
`torch.zeros(…, requires_grad=True)` or `nn.Parameter(…)`.

Inside the program, `torch.autograd.grad` differentiates with respect to a leaf like any other value. A leaf that
outlives the call is different: torch's autograd would set its `.grad`, and values computed from it require grad even if
no input does. A compiled program cannot provide this, so a program that returns such a leaf runs partly eager
(`frontend/per_module.py`).

A program may also change `requires_grad` of a leaf that it was given. The real tensor changes while the program is
traced, and each call of the compiled program changes it, too (`SwitchedInputs`).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from thunder.capture.base.fallback import fall_back, torch_error
from thunder.capture.base.user_lines import user_line
from thunder.capture.tensors import aliasing
from thunder.capture.tensors.handle import Handle, HandleOwner, Lifted
from thunder.core import prims
from thunder.core.proxies import TensorProxy
from thunder.core.state import SourceLine
from thunder.core.symbol import BoundSymbol
from thunder.torch.private import DisableTorchFunction

__all__ = ["Leaves", "SwitchedInputs", "set_requires_grad"]


def set_requires_grad(handle: Handle, value: bool) -> None:
    """Set `requires_grad` of a handle."""
    if handle._needs_grad is not value:
        handle._needs_grad = value
        handle._storage.needs_grad |= value
        _set_flag(handle, value)


def _set_flag(tensor: torch.Tensor, value: bool) -> None:
    with DisableTorchFunction():  # the tracing mode may be active here
        tensor.requires_grad_(value)


class SwitchedInputs:
    """The inputs whose `requires_grad` one run of a program changes.

    While the flag is off, the program gets the detached value of the input. If the program sets the flag at any time,
    the compiled program has it set from its start, so that the input is a leaf of autograd's graph.
    """

    def __init__(self) -> None:
        self._flags: dict[str, tuple[Lifted, bool, bool]] = {}  # by name: the input, and the flag before and after

    def __contains__(self, lifted: Lifted) -> bool:
        return lifted.proxy.name in self._flags

    def positions(self, inputs: Sequence[Lifted]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the positions of the inputs whose flag is set before the program runs, and unset at its end."""
        flags = [(i, *self._flags[x.proxy.name][1:]) for i, x in enumerate(inputs) if x in self]
        return tuple([i for i, before, _ in flags if not before]), tuple([i for i, _, after in flags if not after])

    def switch(self, tracer: HandleOwner, lifted: Lifted, value: bool) -> None:
        """Change the flag of an input."""
        handle, proxy, storage = lifted.handle, lifted.proxy, lifted.handle._storage
        if tracer.parts or tracer.undo_later is None or storage.written or handle._value is not storage.value:
            fall_back("the program changes requires_grad of a tensor that it did not create")
        if not value and not tracer.is_leaf(lifted.tensor):
            raise not_a_leaf()
        before = self._flags[proxy.name][1] if lifted in self else not value
        if value and lifted not in self and any(proxy.name in op.arg_names for s in tracer.trace.scopes for op in s):
            fall_back("the program makes a tensor that it has already used require grad, and did not create it")
        tracer.undo_later(_set_flag, lifted.tensor, not value)
        _set_flag(lifted.tensor, value)
        self._flags[proxy.name] = lifted, before, value
        set_requires_grad(handle, value)
        proxy.requires_grad = True
        if value:
            handle._value = storage.value = proxy
        else:
            with tracer.recording():
                handle._value = storage.value = prims.detach(proxy)

    def finish(self) -> None:
        """Make the inputs refer to the caller's tensors again, because the program may return them."""
        for lifted, _, _ in self._flags.values():
            storage = lifted.handle._storage
            if not storage.written:
                lifted.handle._value = storage.value = lifted.proxy

    def release(self) -> None:
        """Release the inputs."""
        self._flags.clear()


def not_a_leaf() -> RuntimeError:
    """Return torch's error for a computed tensor whose `requires_grad` is set to False."""
    return torch_error(
        "you can only change requires_grad flags of leaf variables. If you want to use a computed variable in a "
        "subgraph that doesn't require differentiation use var_no_grad = var.detach()."
    )


class Leaves:
    """The leaf tensors that one run of a program creates."""

    def __init__(self) -> None:
        self._made: list[tuple[weakref.ref[Handle], TensorProxy]] = []  # with the values from before any write
        self._values: set[str] = set()
        self._line: SourceLine | None = None  # the user line that created the first leaf
        self.inputs = SwitchedInputs()

    def __contains__(self, handle: Handle) -> bool:
        return any(made is handle for made, _ in self.alive())

    def alive(self) -> Iterator[tuple[Handle, TensorProxy]]:
        """Yield the leaves that user code may still use, with the values that they had when they became leaves."""
        for made, value in self._made:
            leaf = made()
            if leaf is not None:
                yield leaf, value

    def seen_through(self, handle: Handle) -> bool:
        """Check whether autograd sees writes to a handle, because it is a leaf or a view of a leaf."""
        for leaf, _ in self.alive():
            if leaf._needs_grad and leaf._storage is handle._storage:
                steps = len(leaf._views)
                same = len(handle._views) >= steps and all(a is b for a, b in zip(leaf._views, handle._views))
                if same and not any(view.hides_writes for view in handle._views[steps:]):
                    return True
        return False

    def switch(self, tracer: HandleOwner, handle: Handle, value: bool) -> None:
        """Apply `handle.requires_grad_(value)`."""
        if handle._needs_grad is value:
            return
        lifted = tracer.input_with(handle)
        if lifted is not None:
            self.inputs.switch(tracer, lifted, value)
            return
        if not value and handle not in self:
            raise not_a_leaf()
        set_requires_grad(handle, value)
        if not value or handle in self:
            return
        with tracer.recording():
            value_made = aliasing.read(handle)
        self._made.append((weakref.ref(handle), value_made))
        if not tracer.parts:  # leaf tensors do not leave a transformed function
            self._values.add(value_made.name)
            self._line = self._line or user_line()

    def stay_inside(self, tracer: HandleOwner, results: Sequence[torch.Tensor], hook: Any) -> None:
        """Fall back if a result of the program is a leaf, or requires grad only because of a leaf.

        Also fall back if the program has gradient hooks (operations `hook`) on values that affect only such leaves.
        """
        if not self._values:
            return
        given = {x.proxy.name for x in tracer.inputs if x.proxy.requires_grad}
        operations = tracer.trace.bound_symbols
        by_inputs, by_leaves = _flows(operations, given, self._values), _flows(operations, self._values, set())
        by_them_alone = by_leaves - by_inputs
        hooked = any(op.sym is hook and not by_them_alone.isdisjoint(op.arg_names) for op in operations)
        if hooked or any(type(x) is Handle and x._needs_grad and x._value.name not in by_inputs for x in results):
            line = f", in {self._line}" if self._line is not None else ""
            fall_back(
                "the program returns or stores a tensor that requires grad and was created in the program "
                f"(requires_grad_(), requires_grad=True or nn.Parameter{line}), or a value computed from this tensor"
            )


def _flows(operations: Sequence[BoundSymbol], sources: set[str], stops: set[str]) -> set[str]:
    """Return the values from which gradients flow to `sources` without passing through `stops`."""
    found = set(sources)
    for op in operations:
        if op.sym.differentiable:
            args: Any = op.arg_names[:1] if op.sym.name == "assign_value" else op.arg_names
            if not found.isdisjoint(args):
                found.update(p.name for p in op.flat_outs if isinstance(p, TensorProxy) and p.name not in stops)
    return found
