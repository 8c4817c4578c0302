# SPDX-License-Identifier: Apache-2.0
"""Values that no other kind matches, and the exceptions that are trusted without guards on their state.

The default is to refuse: if a program uses a value that no kind can guard, its trace is used for one call and is not
cached. A mention of the value's name alone does not count as a use. A library's values are not trusted merely because a
library defines them: each trusted class has an entry in `TRUSTED` with the reason.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from typing import Any

from thunder.capture.base.predicates import module_of
from thunder.capture.base.snapshots import variables
from thunder.capture.base.sources import Source
from thunder.capture.reads.guard_kinds import IsAlive, IsObject
from thunder.capture.reads.hooks import can_hook
from thunder.capture.reads.kinds.base import Holder, Kind, Rebuilder, Recorder
from thunder.capture.reads.libraries import is_library, is_library_class

__all__ = ["TRUSTED", "Trusted", "Unguardable", "is_pure_python"]

# Library classes, modules or packages whose instances are trusted, each with the reason. A guard checks only that an
# instance is the same object. Delete an entry when its classes are guarded in another way.
TRUSTED: dict[str, str] = {
    # Immutable.
    "uuid.UUID": "an identifier does not change",
    "torch.distributed.tensor.placement_types": "a placement does not change",
    "torch.utils._pytree": "the structure of a container does not change",
    "torch.utils._cxx_pytree": "the structure of a container does not change",
    # Objects whose state does not affect results.
    "contextlib.nullcontext": "it has no state at all",
    "functools": "wrappers that dispatch calls; the functions in them are read",
    "torch._ops": "an operator: the tracer sees its calls",
    "torch._library": "a user-defined operator: the tracer sees its calls",
    "torch.library": "a user-defined operator: the tracer sees its calls",
    "torch._higher_order_ops": "a higher-order operator: the tracer sees its calls",
    "torch.distributions.constraints": "a condition on values, whose operations the tracer sees",
    "torch.distributions.transforms": "a function of values, whose operations the tracer sees",
    # Settings of torch, whose effects the tracer sees.
    "torch.amp.autocast_mode": "a context: the tracer sees the mode that it sets",
    "torch.autograd.grad_mode": "a context: the tracer sees the mode that it sets",
    "torch.autograd.profiler": "a context: it does not change results",
    "torch.cuda.amp.autocast_mode": "a context: the tracer sees the mode that it sets",
    "torch.utils._device": "a context: the tracer sees the mode that it sets",
    "torch.backends": "settings: each attribute that the program reads is guarded",
    # Set up once, when a module is built.
    "torch.nn.utils": "hooks that compute weights: their options are set when they are attached",
    "torch.nn.modules.module._WrappedHook": "a hook of user code, whose function is read",
    "torch.nn.attention.flex_attention": "a mask whose function is read, and whose tensors become inputs",
    # A program that calls one of these falls back to Python.
    "torch._dynamo": "a function wrapped by torch.compile, which runs its own Python while it is traced",
    "torch.distributed": "objects that shard parameters: a program that runs them falls back to Python",
    "torch.jit": "compiled by TorchScript: a program that calls it falls back to Python",
    # Accepted, although the program reads state that no guard checks.
    "logging": "models log while they run; a cached program does not, and levels and handlers are not guarded",
    "thunder": "thunder's own objects (e.g. dtypes and devices); objects with state have other kinds",
}


def is_pure_python(cls: type) -> bool:
    """Check whether a class's instances have no state except attributes, i.e. no base is written in C."""
    return all(c is object or (can_hook(c) and module_of(c) not in sys.builtin_module_names) for c in cls.__mro__)


class Trusted(Kind):
    """Instances of the classes in `TRUSTED`. They are only guarded to be the same object."""

    is_shared = False
    is_leaf = True

    def match(self, cls: type) -> bool:
        """Match a library class if it, its module or a package of it is listed."""
        if not (can_hook(cls) and is_library_class(cls)):
            return False
        parts = f"{module_of(cls)}.{cls.__qualname__}".split(".")
        return any(".".join(parts[:n]) in TRUSTED for n in range(1, len(parts) + 1))

    def record(
        self, source: Source, value: Any, recorder: Recorder, *, root: bool = False, holder: Holder | None = None
    ) -> None:
        """Guard that the value is the same object, and read user functions that it stores."""
        try:
            recorder.add(IsAlive(source, weakref.ref(value)))
        except TypeError:
            recorder.add(IsObject(source, value))
        for name, item in (variables(value) or {}).items():
            dispatches = isinstance(value, functools.singledispatchmethod)
            if isinstance(item, types.FunctionType) and (dispatches or not is_library(item.__code__.co_filename)):
                recorder.value(source.variable(name), item)

    def rebuild(self, value: Any, epilogue: Rebuilder) -> Any:
        """Build a new object with the same attributes."""
        return epilogue.new_object(value) if variables(value) is not None else epilogue.not_rebuilt(value)


class Unguardable(Kind):
    """Values that no other kind matches."""

    is_shared = False

    def match(self, cls: type) -> bool:
        """Match every class."""
        return True

    def record(
        self, source: Source, value: Any, recorder: Recorder, *, root: bool = False, holder: Holder | None = None
    ) -> None:
        """Let the recorder check whether the program uses the value."""
        recorder.unguardable_found(source, value)

    def rebuild(self, value: Any, epilogue: Rebuilder) -> Any:
        """Build a new object with the same attributes, if it has no other state."""
        rebuilt = is_pure_python(type(value)) and variables(value) is not None
        return epilogue.new_object(value) if rebuilt else epilogue.not_rebuilt(value)
