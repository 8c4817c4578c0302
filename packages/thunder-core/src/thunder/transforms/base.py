# SPDX-License-Identifier: Apache-2.0
"""`Transform`: an object with a hook for each stage of compilation.

    class Doubled(thunder.Transform):
        '''Returns twice what the program returns.'''

        def transform_computation(self, trace, context):
            ...
            return new_trace

    thunder.jit(model, transforms=[Doubled()])

A hook that is not overridden does nothing. A hook that receives a trace returns a new one, or the same one if nothing
changes. Traces are immutable. At each stage, transforms run in the order of the list. Passes registered by plugins have
the same stages (`PHASES`), and run in the same loop.
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
    "after_execution": "each trace after claiming and fusion, before updates are changed to write in place",
    "final": "each trace as it runs, before the deletion of values that are no longer used",
    "prologue": "the prologue, which checks the arguments of a call and returns the inputs of the program",
    "epilogue": "the epilogue, which computes the user's result and repeats side effects",
}

_METHODS = {
    "before_grad": "transform_computation",
    "before_execution": "transform_execution",
    "after_execution": "transform_claimed",
    "final": "transform_final",
    "prologue": "transform_prologue",
    "epilogue": "transform_epilogue",
}


#: Traces a function into an existing trace (`capture/trace_into.py`).
TraceInto = Callable[..., "tuple[list[BoundSymbol], Any]"]


@dataclass(frozen=True)
class PassContext:
    """Information about the compilation for a pass. Later versions may add attributes, but will not remove any.

    options: the user's compile options, including those of plugins. executors: the executors, in order of priority.
    trace_into: `trace_into(trace, fn, arguments)` traces a user's function on values of `trace`. It returns the
    operations, which it does not add to the trace, and the result of the function.
    """

    phase: str
    options: Mapping[str, Any] = field(default_factory=dict)
    executors: tuple[Any, ...] = ()
    trace_into: TraceInto | None = None


class Transform:
    """Base class of all transforms. Override the hooks that you need; `__init__` receives the options."""

    #: Whether the results of the program depend on this transform. If False, the transform is skipped where it cannot
    #: be applied: in calls from another traced program (which inlines the function), and in calls that run eagerly.
    changes_results = True

    def __init_subclass__(cls, **options: Any) -> None:
        """Reject misspelled hooks when the class is defined, because they would never be called."""
        super().__init_subclass__(**options)
        for name in vars(cls):
            if name.startswith("transform_") and not hasattr(Transform, name):
                hooks = [hook for hook in vars(Transform) if hook.startswith("transform_")]
                close = difflib.get_close_matches(name, hooks, n=1)
                hint = f". Did you mean {close[0]}?" if close else "."
                raise TypeError(f"{cls.__name__}.{name} is not a hook{hint} Hooks are {', '.join(hooks)}")

    @property
    def name(self) -> str:
        """The name of the transform in messages."""
        return type(self).__name__

    def transform_module(self, module: torch.nn.Module) -> torch.nn.Module | None:
        """Change a module once, when it is passed to `thunder.jit`: parameters, buffers, submodules.

        `module` is a copy of the user's module and shares its tensors. Change the copy freely, but replace tensors
        instead of writing to them. To use another module instead of the copy, return it.
        """
        return None

    def tracing(self) -> AbstractContextManager[Any]:
        """Return the context manager to enter while the user's function is traced."""
        return nullcontext()

    def transform_computation(self, trace: Trace, context: PassContext) -> Trace:
        """Change the program before it is differentiated."""
        return trace

    def transform_execution(self, trace: Trace, context: PassContext) -> Trace:
        """Change the forward program and the backward program (if there is one) before executors claim operations."""
        return trace

    def transform_claimed(self, trace: Trace, context: PassContext) -> Trace:
        """Change each program after claiming, before updates are changed to write in place."""
        return trace

    def transform_final(self, trace: Trace, context: PassContext) -> Trace:
        """Change each program as it runs, with updates in place, before values are deleted at their last use."""
        return trace

    def transform_prologue(self, trace: Trace, context: PassContext) -> Trace:
        """Change the prologue, which checks the arguments of a call and returns the inputs of the program."""
        return trace

    def transform_epilogue(self, trace: Trace, context: PassContext) -> Trace:
        """Change the epilogue (if there is one), which computes the user's result from the results of the program."""
        return trace

    def has(self, phase: str) -> bool:
        """Check whether the transform overrides the hook of `phase`."""
        method = _METHODS[phase]
        return getattr(type(self), method) is not getattr(Transform, method)

    def saved_key(self) -> str | None:
        """Return a text that describes the transform completely, so that programs with it can be saved.

        A later process reads a saved program if its transforms have the same texts. By default programs with a
        transform are not saved.
        """
        return None

    @property
    def is_needed(self) -> bool:
        """Whether a call that skips the trace hooks would have a different result."""
        return self.changes_results and any(map(self.has, PHASES))

    @property
    def changes_module(self) -> bool:
        """Whether the transform overrides `transform_module`, and so requires a module."""
        return type(self).transform_module is not Transform.transform_module

    def apply(self, trace: Trace, context: PassContext) -> Trace:
        """Run the hook for the stage of `context`. Add the transform's name to errors."""
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
        """Return `result` if it is a trace. Otherwise raise an error."""
        if not hasattr(result, "bound_symbols"):
            raise ThunderError(
                f"{self.name}.{_METHODS[context.phase]} returned {result!r:.80} instead of a trace: if nothing "
                "changes, return the trace that was passed in"
            )
        return result  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<{self.name}>"


class FunctionTransform(Transform):
    """A function `(trace, executors) -> trace` as a transform, which runs before differentiation."""

    def __init__(self, fn: Callable[[Trace, Sequence[Any]], Trace]):
        self.fn = fn

    @property
    def name(self) -> str:
        return getattr(self.fn, "__qualname__", type(self.fn).__name__)

    def transform_computation(self, trace: Trace, context: PassContext) -> Trace:
        return self.fn(trace, context.executors)


def check_option(transform: str, name: str, value: Any, good: bool, what: str) -> None:
    """Raise an error unless `good` is true. `what` describes valid values of the option."""
    if not good:
        raise ValueError(f"{transform}: {name} is {what}, not {value!r:.80}")


def check_names(transform: str, name: str, value: Any) -> None:
    """Raise an error unless `value` is a list of names or patterns of modules."""
    good = not isinstance(value, str) and hasattr(value, "__iter__") and all(isinstance(x, str) for x in value)
    check_option(transform, name, value, good, "a list of names or patterns of modules")


def as_transforms(transforms: Any) -> tuple[Transform, ...]:
    """Check the transforms of `thunder.jit(…, transforms=…)` and return them as a tuple."""
    if isinstance(transforms, (Transform, str)) or not hasattr(transforms, "__iter__"):
        hint = f": write [{transforms!r}]" if isinstance(transforms, (Transform, str)) else ""
        raise TypeError(f"thunder.jit(…, transforms=…) requires a list of transforms, not {transforms!r}{hint}")
    return tuple(_as_transform(t) for t in transforms)


def _as_transform(x: Any) -> Transform:
    if isinstance(x, Transform):
        return x
    if isinstance(x, type) and issubclass(x, Transform):
        raise TypeError(f"transforms are objects: write {x.__name__}(…) instead of {x.__name__}")
    if isinstance(x, str) or not callable(x):
        raise TypeError(
            f"{x!r} is not a transform: pass instances of subclasses of thunder.Transform (see thunder.transforms), or "
            "functions (trace, executors) -> trace"
        )
    return FunctionTransform(x)
