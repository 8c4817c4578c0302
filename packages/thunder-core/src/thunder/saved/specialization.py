# SPDX-License-Identifier: Apache-2.0
"""A saved program as a specialization of the cache, like one that was just compiled (`frontend/pipeline.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from thunder.core.state import registrations
from thunder.runtime.autocast import no_autocast
from thunder.runtime.autograd.requires_grad import switching_requires_grad
from thunder.runtime.lock import runs
from thunder.saved.constants import Decoder
from thunder.saved.programs import SavedDifferentiable, SavedText, read_layout
from thunder.saved.verify import Refused

__all__ = ["SavedSpecialization"]


class SavedSpecialization:
    """A program, its prologue and its epilogue, read from an entry of the store. Its traces are texts."""

    leaves = ()
    guarded = None  # an entry does not contain the sources of guards
    path: Any = None

    def __init__(
        self,
        content: Mapping[str, Any],
        decode: Decoder,
        backward: Callable[[], Iterator[tuple[str, SavedText, Decoder]]],
        rebuild: Callable[[Mapping[str, Any], Decoder], Any],
    ):
        self.hits = 0
        self.event: Any = None
        self.after: Any = self
        self.epoch = registrations[0]
        self._content, self._decode = content, decode
        self._backward, self._rebuild = backward, rebuild
        programs = content["programs"]
        prologue = SavedText("prologue", programs["prologue"])
        self.prologue_traces: list[Any] = [prologue]
        self.prologue = prologue.function(decode, guards=True)
        self.differentiable: SavedDifferentiable | None = None
        self.epilogue: Callable[..., Any] | None = None
        self.traces: list[Any] = []
        self.epilogue_traces: list[Any] = []
        self.run: Callable[..., Any] = self._load

    def load(self) -> None:
        """Compile the program and its epilogue. This is done once the prologue has accepted a call."""
        content, decode, programs = self._content, self._decode, self._content["programs"]
        flags = content["flags"]
        text = SavedText(content["name"], programs["computation"])
        program = text.function(decode)
        if "epilogue" in programs:
            epilogue = SavedText("epilogue", programs["epilogue"])
            self.epilogue_traces = [epilogue]
            self.epilogue = epilogue.function(decode)
        if content["layout"] is not None:
            if flags["no_autocast"]:
                program = no_autocast(program)
            layout = read_layout(content["layout"], decode)
            self.differentiable = SavedDifferentiable(
                layout, program, self._backward, lambda: self._rebuild(content, decode)
            )
            run = self.differentiable.run
            if flags["enable_grad"]:
                run = torch.enable_grad()(run)
        else:
            run = torch.no_grad()(no_autocast(program)) if flags["no_grad"] else program
        on, off = flags["switched"]
        if on or off:
            run = switching_requires_grad(run, on, off)
        self.traces = [text]
        self.run = run

    def _load(self, *inputs: Any) -> Any:
        raise Refused("the program was not loaded")

    @property
    def backward_traces(self) -> list[Any]:
        """The text of the backward program that ran last, if the program is differentiated."""
        return [] if self.differentiable is None else list(self.differentiable.backward_traces)

    @property
    def reports(self) -> list[str]:
        """The reports of operations that choose at run time how they execute."""
        return []

    def call(self, accepted: Any) -> Any:
        """Run the program on its prologue's result: the inputs, and with an epilogue the targets of side effects."""
        if self.epilogue is None:
            return self.run(*accepted)
        inputs, targets = accepted
        values = self.run(*inputs)
        with runs.lock:  # a program that another thread traces must not take these assignments for its own
            return self.epilogue(values, targets)
