# SPDX-License-Identifier: Apache-2.0
"""`Transform`: an object with a hook for each stage of compilation.

    class Doubled(thunder.Transform):
        '''Returns twice what the program returns.'''

        def transform_computation(self, trace, context):
            ...
            return new_trace

    thunder.jit(model, transforms=[Doubled()])

A hook that is not overridden does nothing. Those that take a trace return a new one, or the same one where nothing
changes; traces are immutable. Transforms run in the order of the list, at each stage. Passes registered by plugins
have the same stages (`PHASES`), and run in the same loop.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from thunder.core.errors import ThunderError

if TYPE_CHECKING:
    import torch

    from thunder.core.symbol import BoundSymbol
    from thunder.core.trace import Trace

__all__ = ["PHASES", "FunctionTransform", "PassContext", "Transform", "as_transforms", "check_names", "check_option"]

#: The stages of compilation at which a pass may run, with the input of the pass at each stage.
PHASES = {
    "before_grad": "the captured program, before it is differentiated",
    "before_execution": "the forward trace, and the backward trace if there is one, before executors claim operations",
    "after_execution": "each trace after claiming and fusion, before the deletion of values that are no longer used",
    "prologue": "the prologue, which checks the arguments of a call and returns the inputs of the program",
    "epilogue": "the epilogue, which computes the user's result and repeats side effects",
}

_METHODS = {
    "before_grad": "transform_computation",
    "before_execution": "transform_execution",
    "after_execution": "transform_claimed",
    "prologue": "transform_prologue",
    "epilogue": "transform_epilogue",
}


#: Traces a function into an existing trace (`capture/trace_into.py`).
TraceInto = Callable[..., "tuple[list[BoundSymbol], Any]"]


@dataclass(frozen=True)
class PassContext:
    """What a pass may know about the compilation. Later versions may add attributes; none will be removed.

    options: the user's compile options, of all plugins. executors: those of the compilation, in order.
    trace_into: `trace_into(trace, fn, arguments)` traces a user's function on values of a trace and returns the
    operations, without adding them to the trace, and the function's result.
    """

    phase: str
    options: Mapping[str, Any] = field(default_factory=dict)
    executors: tuple[Any, ...] = ()
    trace_into: TraceInto | None = None


class Transform:
    """Base class of all transforms. Override the hooks that are needed; `__init__` takes the options."""

    #: Whether the program's results depend on it. If False, it is skipped where it cannot be applied: in
    #: calls from another traced program, which inlines the function, and in calls that run eagerly.
    changes_results = True

    def __init_subclass__(cls, **options: Any) -> None:
        """Reject a misspelt hook, which would never be called, when its class is defined."""
        super().__init_subclass__(**options)
        for name in vars(cls):
            if name.startswith("transform_") and not hasattr(Transform, name):
                hooks = [hook for hook in vars(Transform) if hook.startswith("transform_")]
                close = difflib.get_close_matches(name, hooks, n=1)
                hint = f", did you mean {close[0]}?" if close else ";"
                raise TypeError(f"{cls.__name__}.{name} is no hook{hint} Hooks are {', '.join(hooks)}")

    @property
    def name(self) -> str:
        """Its name in messages."""
        return type(self).__name__

    def transform_module(self, module: torch.nn.Module) -> torch.nn.Module | None:
        """Change a module once, when it is passed to `thunder.jit`: parameters, buffers, submodules.

        `module` is a copy of the user's that shares its tensors: change it freely, but replace tensors instead of
        writing to them. A returned module replaces it.
        """
        return None

    def tracing(self) -> AbstractContextManager[Any]:
        """Return the context manager to enter while the user's function is traced."""
        return nullcontext()

    def transform_computation(self, trace: Trace, context: PassContext) -> Trace:
        """Change the program before it is differentiated."""
        return trace

    def transform_execution(self, trace: Trace, context: PassContext) -> Trace:
        """Change the forward program, then the backward program if there is one, before executors claim operations."""
        return trace

    def transform_claimed(self, trace: Trace, context: PassContext) -> Trace:
        """Change each program after claiming, before values are deleted at their last use."""
        return trace

    def transform_prologue(self, trace: Trace, context: PassContext) -> Trace:
        """Change the prologue, which checks the arguments of a call and returns the inputs of the program."""
        return trace

    def transform_epilogue(self, trace: Trace, context: PassContext) -> Trace:
        """Change the epilogue, which computes the user's result from the program's, if there is one."""
        return trace

    def has(self, phase: str) -> bool:
        """Check whether it overrides the hook of a stage."""
        method = _METHODS[phase]
        return getattr(type(self), method) is not getattr(Transform, method)

    @property
    def is_needed(self) -> bool:
        """Whether a call that bypasses its hooks for traces would have a different result."""
        return self.changes_results and any(map(self.has, PHASES))

    @property
    def changes_module(self) -> bool:
        """Whether it needs a module."""
        return type(self).transform_module is not Transform.transform_module

    def apply(self, trace: Trace, context: PassContext) -> Trace:
        """Run the hook for the stage of `context`. Errors are annotated with the transform's name."""
        try:
            result = getattr(self, _METHODS[context.phase])(trace, context)
        except ThunderError:
            raise
        except Exception as error:
            where = f"{self.name}.{_METHODS[context.phase]}"
            if hasattr(error, "add_note"):
                error.add_note(f"raised by the transform {where}")
            raise
        return self.checked(result, context)

    def checked(self, result: Any, context: PassContext) -> Trace:
        """Return `result` if it is a trace, else raise an error."""
        if not hasattr(result, "bound_symbols"):
            raise ThunderError(
                f"{self.name}.{_METHODS[context.phase]} returned {result!r:.80} instead of a trace: return the trace "
                "that it was given where there is nothing to change"
            )
        return result  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<{self.name}>"


class FunctionTransform(Transform):
    """A function `(trace, executors) -> trace` as a transform of the program before it is differentiated."""

    def __init__(self, fn: Callable[[Trace, Sequence[Any]], Trace]):
        self.fn = fn

    @property
    def name(self) -> str:
        return getattr(self.fn, "__qualname__", type(self.fn).__name__)

    def transform_computation(self, trace: Trace, context: PassContext) -> Trace:
        return self.fn(trace, context.executors)


def check_option(transform: str, name: str, value: Any, good: bool, what: str) -> None:
    """Reject a value of a transform's option unless it is `good`; `what` describes valid values."""
    if not good:
        raise ValueError(f"{transform}: {name} is {what}, not {value!r:.80}")


def check_names(transform: str, name: str, value: Any) -> None:
    """Reject a value that is not a list of names or patterns of modules."""
    good = not isinstance(value, str) and hasattr(value, "__iter__") and all(isinstance(x, str) for x in value)
    check_option(transform, name, value, good, "a list of names or patterns of modules")


def as_transforms(transforms: Any) -> tuple[Transform, ...]:
    """Check the transforms of `thunder.jit(…, transforms=…)` and return them as a tuple."""
    if isinstance(transforms, (Transform, str)) or not hasattr(transforms, "__iter__"):
        hint = f": write [{transforms!r}]" if isinstance(transforms, (Transform, str)) else ""
        raise TypeError(f"thunder.jit(…, transforms=…) takes a list of transforms, not {transforms!r}{hint}")
    return tuple(_as_transform(t) for t in transforms)


def _as_transform(x: Any) -> Transform:
    if isinstance(x, Transform):
        return x
    if isinstance(x, type) and issubclass(x, Transform):
        raise TypeError(f"transforms are objects: write {x.__name__}(…) instead of {x.__name__}")
    if isinstance(x, str) or not callable(x):
        raise TypeError(
            f"{x!r} is no transform: give objects of subclasses of thunder.Transform (thunder.transforms has some), or "
            "functions (trace, executors) -> trace"
        )
    return FunctionTransform(x)
