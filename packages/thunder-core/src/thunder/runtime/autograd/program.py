# SPDX-License-Identifier: Apache-2.0
"""A program that torch's autograd can differentiate, from its functions: compiled, or loaded from texts.

The forward program runs as a node of torch's graph (`node.py`). Each combination of arriving and wanted gradients has a
separate backward program, which a subclass provides when these gradients first arrive: `frontend/differentiable.py`
compiles it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thunder.runtime.autocast import no_autocast
from thunder.runtime.autograd.layout import NodeLayout
from thunder.runtime.autograd.node import Key, autograd_function
from thunder.runtime.autograd.saved_tensor_retention import SavedTensorRetention
from thunder.runtime.autograd.staged_backward import StagedBackward
from thunder.runtime.lock import program_lock

__all__ = ["AutogradProgram"]

# The maximum number of backward programs of one forward program.
MAX_BACKWARD_PROGRAMS = 16


class AutogradProgram:
    """A forward program with its backward programs. `run(*inputs)` returns the user's output.

    The node of the forward program returns a flat tuple: each tensor of the output once, then saved values. Inputs in
    the output are not in this tuple, because the caller gets them back unchanged.
    """

    def __init__(self, layout: NodeLayout, program: Callable[..., Any]):
        self.layout = layout
        stages = layout.stages
        self.stages = None if stages is None else StagedBackward(stages, layout.wanted, layout.device)
        self.retention = (
            SavedTensorRetention(layout.returned, self.output_groups, layout.tensors) if layout.retains else None
        )
        self._lock = program_lock()
        self._backward: dict[Key, Callable[..., Any]] = {}
        self._native_backward: dict[Key, Callable[..., Any]] = {}
        self._recorded: dict[Key, AutogradProgram | Exception] = {}
        self._native: tuple[Callable[..., Any], Callable[..., Any]] | None = None
        self.ran: Key | AutogradProgram | None = None  # the backward program that ran last
        apply = autograd_function(self, program)
        self.run = apply if layout.plain else _then(apply, layout.builder())

    def __call__(self, *inputs: Any) -> Any:
        return self.run(*inputs)

    # -- what subclasses provide --------------------------------------------------------------------------------------
    def make_backward(self, key: Key) -> Callable[..., Any]:
        """Return the backward program of a key, `(saved, *gradients) -> gradients`. With stages, it is a generator."""
        raise NotImplementedError

    def make_native_backward(self, key: Key) -> Callable[..., Any]:
        """Return the backward program of a key by torch's own operations."""
        raise NotImplementedError

    def make_recorded(self, key: Key) -> AutogradProgram | Exception:
        """Return the backward program as one that autograd can differentiate, or the error if it cannot.

        Its arguments are the saved values, then the gradients.
        """
        raise NotImplementedError

    def make_native(self) -> Callable[..., Any]:
        """Return the forward program by torch's own operations, which returns the output without saved values."""
        raise NotImplementedError

    def output_groups(self) -> dict[int, set[int]]:
        """Return groups of outputs that are differentiated together, and the saved values that each group reads.

        A group is a number with one bit per output; a saved value is an index. Only layouts with `retains` need it.
        """
        raise NotImplementedError

    # -- traces, which only a compiled program has ---------------------------------------------------------------------
    @property
    def backward_traces(self) -> Sequence[Any]:
        """The traces of the backward program that ran last."""
        return []

    @property
    def programs(self) -> Sequence[Any]:
        """The final traces of all programs."""
        return []

    # -- backward -----------------------------------------------------------------------------------------------------
    @property
    def everything(self) -> Key:
        """The key of the backward program for gradients of all results, with respect to all inputs."""
        layout = self.layout
        hidden = len(layout.arriving) - layout.returned
        return (True,) * layout.returned + (False,) * hidden, (True,) * len(layout.wanted)

    def key(self, present: tuple[bool, ...], wanted: tuple[bool, ...]) -> Key:
        """Return the key of the backward program for the gradients that arrive and are wanted.

        The program may compute more gradients, which limits the number of programs if user code computes the gradients
        of many inputs one by one.
        """
        key = present, wanted
        known = key in self._backward or key in self._recorded
        few = known or len(self._backward) + len(self._recorded) < MAX_BACKWARD_PROGRAMS
        return key if few else (present, (True,) * len(wanted))

    def backward_program(self, key: Key) -> Callable[..., Any]:
        """Return the function `(saved, *gradients) -> gradients` of a key. With stages, the function is a generator."""
        found = self._backward.get(key)
        if found is not None:
            return found
        with self._lock:
            found = self._backward.get(key)
            if found is None:
                found = self._backward[key] = no_autocast(self.make_backward(key))
        return found

    def native_backward(self, key: Key) -> Callable[..., Any]:
        """Return the backward program of a key by torch's own operations."""
        with self._lock:
            found = self._native_backward.get(key)
            if found is None:
                found = self._native_backward[key] = no_autocast(self.make_native_backward(key))
        return found

    def recorded_backward(self, key: Key) -> AutogradProgram | Exception:
        """Return the backward program as a differentiable program, or the error if it cannot be differentiated."""
        with self._lock:
            found = self._recorded.get(key)
            if found is None:
                found = self._recorded[key] = self.make_recorded(key)
        return found

    def natively(self, *inputs: Any) -> Any:
        """Compute the node's outputs with torch's own operations, for torch.func's transforms and forward mode."""
        if self._native is None:
            self._native = self.make_native(), self.layout.flattener(natively=True)
        program, flatten = self._native
        output = program(*inputs)
        return output if self.layout.plain else flatten(output, _NothingSaved())


class _NothingSaved:
    """The saved values of a program that saves nothing. Each item is None."""

    def __getitem__(self, i: int) -> None:
        return None


def _then(apply: Callable[..., Any], build: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda *inputs: build(apply(*inputs), inputs)
