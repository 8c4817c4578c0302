# SPDX-License-Identifier: Apache-2.0
"""`Specialization`: a program for the calls that its prologue accepts, from its functions.

`pipeline.py` makes it of the functions that it has compiled. A program that was saved is loaded from texts: a prologue,
a computation or an `AutogradProgram` (`runtime/autograd/program.py`), and an epilogue. Neither this file nor
what it imports loads a language, the tracer or an executor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from thunder.core.events import Event
from thunder.core.groups import BUCKETS, KEPT
from thunder.core.state import registrations
from thunder.frontend.paths import Path
from thunder.runtime.autograd.program import AutogradProgram
from thunder.runtime.lock import runs
from thunder.runtime.replaced_gradients import replaced

if TYPE_CHECKING:
    from thunder.core.trace import Trace

__all__ = ["Guards", "Specialization"]


class Guards(Protocol):
    """The guards of a prologue, to find out which value changed after the prologue has rejected a call."""

    def is_about_numbers(self, failure: Exception) -> bool:
        """Check whether a guard failed because a number or a size has changed."""

    def learn(self, dynamic: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record in `dynamic` the numbers and sizes of a call that made guards fail."""


class Specialization:
    """A program with its prologue and epilogue.

    - `prologue(*args, **kwargs)` raises if a guard fails. It returns the inputs of `run` and, with an epilogue, also
      the targets of side effects. A program that serves one call only has no prologue.
    - `run(*inputs)` is the computation. If it is differentiated, `differentiable` is the program behind `run`.
    - `epilogue(values, targets)` returns the user's result.
    - `leaves` are the positions of the targets whose `.grad` the program certainly replaces once a CUDA graph has been
      launched.
    - The traces are for reports. A program from texts has none.
    """

    __slots__ = (
        "after",
        "differentiable",
        "epilogue",
        "epilogue_traces",
        "epoch",
        "event",
        "guarded",
        "hits",
        "leaves",
        "path",
        "prologue",
        "prologue_traces",
        "run",
        "traces",
    )  # fmt: skip

    def __init__(
        self,
        prologue: Callable[..., Any] | None,
        run: Callable[..., Any],
        epilogue: Callable[[Any, Any], Any] | None = None,
        *,
        differentiable: AutogradProgram | None = None,
        guarded: Guards | None = None,
        path: Path | None = None,
        leaves: Sequence[int] = (),
        traces: Sequence[Trace] = (),
        prologue_traces: Sequence[Trace] = (),
        epilogue_traces: Sequence[Trace] = (),
    ):
        self.hits = 0  # the number of calls that found it in the cache
        self.event: Event | None = None  # the event of its compilation
        self.after = self  # the specialization that ran in the call after the last call of this one
        self.guarded = guarded
        self.path = path
        self.prologue = prologue
        self.run = run if path is None else path.around(run)
        self.epilogue = epilogue
        self.traces = traces
        self.prologue_traces = prologue_traces
        self.differentiable = differentiable
        self.epilogue_traces = epilogue_traces
        self.leaves = leaves
        self.epoch = registrations[0]

    @property
    def backward_traces(self) -> Sequence[Trace]:
        """The traces of the backward program that ran last, if the program is differentiated."""
        return [] if self.differentiable is None else self.differentiable.backward_traces

    @property
    def reports(self) -> list[str]:
        """The kept parameters, the merged collectives, and how operations execute that choose it at run time."""
        kept = self.traces[0].info.get(KEPT) if self.traces else None
        programs = self.traces[-1:] if self.differentiable is None else self.differentiable.programs
        found = [(p.name, getattr(op.sym.fn, "report", None)) for p in programs for op in p.bound_symbols]
        lines = [f"{name}: {report}" for name, report in found if isinstance(report, str)]
        merged = [f"{p.name}: {line}" for p in programs if BUCKETS in p.info for line in p.info[BUCKETS].report()]
        return [*([] if kept is None else kept.report()), *merged, *lines]

    def call(self, accepted: Any) -> Any:
        """Run the program on its prologue's result: the inputs, and with an epilogue the targets of side effects."""
        if self.epilogue is None:
            return self.run(*accepted)
        inputs, targets = accepted
        if self.leaves:
            replaced.leaves, replaced.inputs = [targets[i] for i in self.leaves], inputs
            try:
                values = self.run(*inputs)
            finally:
                replaced.leaves = replaced.inputs = ()
        else:
            values = self.run(*inputs)
        with runs.lock:  # a program that another thread traces must not take these assignments for its own
            return self.epilogue(values, targets)
