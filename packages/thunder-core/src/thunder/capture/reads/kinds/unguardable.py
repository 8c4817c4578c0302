# SPDX-License-Identifier: Apache-2.0
"""Values that no other kind claims, and those of them that are trusted all the same.

The rule is to deny: where a program uses a value of which no kind says how it is guarded, its trace serves one call and
is not cached. To name such a value is no use of it. Nothing is trusted because a library defines it: each trust is an
entry of `TRUSTED` with its reason.
"""

from __future__ import annotations

import sys
import types
import weakref
from typing import Any

from thunder.capture.base.predicates import module_of
from thunder.capture.base.snapshots import variables
from thunder.capture.base.sources import Source
from thunder.capture.reads.guard_kinds import IsAlive
from thunder.capture.reads.hooks import can_hook
from thunder.capture.reads.kinds.base import Holder, Kind, Rebuilder, Recorder
from thunder.capture.reads.libraries import is_library, is_library_class

__all__ = ["TRUSTED", "Trusted", "Unguardable", "is_pure_python"]

# Classes of libraries, or their modules or packages, whose instances are trusted, each with the reason. Nothing else
# is guarded of these but that it is the same object. An entry goes when its classes are guarded in another way.
TRUSTED: dict[str, str] = {
    # Immutable.
    "pathlib": "a path does not change",
    "uuid.UUID": "an identifier does not change",
    "torch.distributed.tensor.placement_types": "a placement does not change",
    "torch.utils._pytree": "the structure of a container does not change",
    "torch.utils._cxx_pytree": "the structure of a container does not change",
    # Without state that results depend on.
    "contextlib.nullcontext": "it has no state at all",
    "functools": "what dispatches calls; the functions that it has are read",
    "torch._ops": "an operator: the tracer sees its calls",
    "torch._library": "an operator of the user's: the tracer sees its calls",
    "torch.library": "an operator of the user's: the tracer sees its calls",
    "torch._higher_order_ops": "an operator with functions: the tracer sees its calls",
    "torch.distributions.constraints": "a condition on values, whose operations the tracer sees",
    "torch.distributions.transforms": "a function of values, whose operations the tracer sees",
    # Settings of torch, which are seen where they act.
    "torch.amp.autocast_mode": "a context: the tracer sees the mode that it sets",
    "torch.autograd.grad_mode": "a context: the tracer sees the mode that it sets",
    "torch.autograd.profiler": "a context: it changes no result",
    "torch.cuda.amp.autocast_mode": "a context: the tracer sees the mode that it sets",
    "torch.utils._device": "a context: the tracer sees the mode that it sets",
    "torch.backends": "settings, which are guarded one by one as attributes of it are read",
    # Set up once, when a module is built.
    "torch.nn.utils": "hooks that compute weights: their options are set when they are attached",
    "torch.nn.modules.module._WrappedHook": "a hook of the user's, which is read as a function of it",
    "torch.nn.attention.flex_attention": "a mask whose function is read, and whose tensors become inputs",
    # Programs that call these fall back to Python.
    "torch._dynamo": "torch.compile's wrapper of a function, which runs its own Python while it is traced",
    "torch.distributed": "what shards parameters: a program that runs it falls back to Python",
    "torch.jit": "compiled by TorchScript: a program that calls it falls back to Python",
    # Accepted, though state is read that no guard watches.
    "logging": "models log while they run; a cached program does not, and levels and handlers are not guarded",
    "weakref": "entries of weak dictionaries: what they refer to is read when the program takes it",
    "thunder": "its own objects, as dtypes and devices; those with state are other kinds",
}


def is_pure_python(cls: type) -> bool:
    """Check whether instances of a class have no state but attributes: no base is written in C."""
    return all(c is object or (can_hook(c) and module_of(c) not in sys.builtin_module_names) for c in cls.__mro__)


class Trusted(Kind):
    """Instances of the listed classes: that it is the same object is all that is guarded."""

    is_shared = False
    is_leaf = True

    def match(self, cls: type) -> bool:
        """Check whether a class of a library is listed, by itself or with its module or package."""
        if not (can_hook(cls) and is_library_class(cls)):
            return False
        parts = f"{module_of(cls)}.{cls.__qualname__}".split(".")
        return any(".".join(parts[:n]) in TRUSTED for n in range(1, len(parts) + 1))

    def record(
        self, source: Source, value: Any, recorder: Recorder, *, root: bool = False, holder: Holder | None = None
    ) -> None:
        """Guard that it is the same object, and read functions of the user's that it was given."""
        try:
            recorder.add(IsAlive(source, weakref.ref(value)))
        except TypeError:
            recorder.unguardable_found(source, value)
            return
        for name, item in (variables(value) or {}).items():
            if isinstance(item, types.FunctionType) and not is_library(item.__code__.co_filename):
                recorder.value(source.variable(name), item)

    def rebuild(self, value: Any, epilogue: Rebuilder) -> Any:
        """Make another one with the same attributes."""
        return epilogue.new_object(value) if variables(value) is not None else epilogue.not_rebuilt(value)


class Unguardable(Kind):
    """What no kind claims."""

    is_shared = False

    def match(self, cls: type) -> bool:
        """Match everything."""
        return True

    def record(
        self, source: Source, value: Any, recorder: Recorder, *, root: bool = False, holder: Holder | None = None
    ) -> None:
        """Let the recorder watch whether the program uses it."""
        recorder.unguardable_found(source, value)

    def rebuild(self, value: Any, epilogue: Rebuilder) -> Any:
        """Make another one with the same attributes, where it has no other state."""
        rebuilt = is_pure_python(type(value)) and variables(value) is not None
        return epilogue.new_object(value) if rebuilt else epilogue.not_rebuilt(value)
