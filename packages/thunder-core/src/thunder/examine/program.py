# SPDX-License-Identifier: Apache-2.0
"""The compiled program of a call, which reports examine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thunder.capture.base.fallback import RunsEagerly
from thunder.capture.capture import Captured
from thunder.core import prims
from thunder.core.errors import ThunderError
from thunder.core.trace import Trace
from thunder.extend import Executor, compiling
from thunder.frontend.differentiable import DifferentiableProgram
from thunder.frontend.jit import JitFunction
from thunder.frontend.specialization import Specialization
from thunder.reproduce.variants import compile_once, jit_function, variant
from thunder.runtime.lock import tracing_lock
from thunder.transforms.cuda_graphs import CUDAGraphTransform

__all__ = ["CompiledCall", "compile_call", "executable"]


class CompiledCall:
    """A call that was compiled but not run: the jitted function, what was captured, and the compiled program."""

    def __init__(self, jitted: JitFunction[..., Any], captured: Captured, specialization: Specialization):
        self.jitted = jitted
        self.captured = captured
        self.specialization = specialization

    @property
    def inputs(self) -> list[Any]:
        """The inputs of the program: the caller's tensors, and the numbers that are inputs."""
        return [*self.captured.inputs, *[number.value for number in self.captured.numbers]]

    @property
    def differentiable(self) -> DifferentiableProgram | None:
        """The program behind the forward and the backward program, if the call is differentiated."""
        found = self.specialization.differentiable
        return found if isinstance(found, DifferentiableProgram) else None

    @property
    def programs(self) -> list[tuple[str, Trace]]:
        """The final trace of the forward program and, if the call is differentiated, that of the backward program.

        The backward program computes the gradients of all results, and returns them together.
        """
        forward = executable(self.specialization.traces)
        if self.differentiable is None:
            return [("forward", forward)]
        return [("forward", forward), ("backward", executable(self.differentiable.unrecorded_traces))]


def executable(traces: Sequence[Trace]) -> Trace:
    """Return the last of the traces that returns all its results at its end."""
    return next(t for t in reversed(traces) if not any(op.sym is prims.hand_over for op in t.bound_symbols))


def compile_call(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    executors: Sequence[Executor | str] | None = None,
) -> CompiledCall:
    """Compile a call without CUDA graphs, and do not run it. An error says why thunder runs it eagerly, if it does."""
    given = jit_function(fn)
    transforms = [t for t in given._transforms if not isinstance(t, CUDAGraphTransform)]
    jitted = variant(given, executors=executors, transforms=transforms, cuda_graphs="never")
    try:
        with tracing_lock, jitted._stats.compiling(), compiling(jitted.compilation):
            captured, specialization = compile_once(jitted, args, kwargs)
    except RunsEagerly as reason:
        raise ThunderError(
            f"thunder runs this call eagerly, so that there is no program to examine: {reason}. "
            "Examine a function or module that this call runs"
        ) from None
    return CompiledCall(jitted, captured, specialization)
