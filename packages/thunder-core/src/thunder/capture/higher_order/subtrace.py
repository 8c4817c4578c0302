# SPDX-License-Identifier: Apache-2.0
"""Subtraces: the parts of a program that `grad`, `jvp`, `vmap` and other transforms change while it is traced.

The transformed function runs on stand-ins for its inputs, which are new values, and its operations are recorded in a
separate scope. The transform derives new operations from them and records these in the surrounding trace. Transforms
therefore nest like calls. Closed-over tensors and parameters are constants for the transform of the subtrace, but not
for surrounding transforms.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from thunder.capture.base.fallback import fall_back
from thunder.capture.base.phase import active
from thunder.capture.tensors import aliasing
from thunder.capture.tensors.handle import Handle
from thunder.capture.tensors.tracer import Tracer
from thunder.core import prims
from thunder.core.dtypes import is_inexact_dtype
from thunder.core.errors import TracingError
from thunder.core.proxies import TensorProxy
from thunder.core.state import state
from thunder.core.symbol import BoundSymbol, map_proxies
from thunder.core.trace import Trace
from thunder.passes.checkpoint import drop_unused_results

__all__ = ["Escaped", "Subtrace", "handle_here", "trace_separately", "tracer_here"]


class Escaped:
    """The tracer of a tensor that was created inside `vmap`, after the function of `vmap` has returned."""


def tracer_here(name: str) -> Tracer:
    """Return the active tracer, or raise for the transform `name` if no program is being traced."""
    tracer = state.frontend
    if not isinstance(tracer, Tracer):
        raise TracingError(f"{name} was called after the tracing of its program ended")
    return tracer


def handle_here(tracer: Tracer, tensor: torch.Tensor) -> Handle:
    """Return the handle of a tensor of user code."""
    with tracer.recording():
        return tracer.handle_of(tensor)


def trace_separately(tracer: Tracer, call: Callable[[], Any], name: str) -> tuple[list[BoundSymbol], Any]:
    """Trace a function that the user passed to the operation `name`. Return its operations and its result."""
    before = {id(h._storage): (h._storage, h._storage.version) for h in [*tracer.handles]}
    effects = active.effects
    with tracer.trace.scope() as operations:
        output = tracer.unwrap(call())
    if active.effects != effects:
        fall_back(f"a function that is passed to {name} prints, logs or warns")
    if any(storage.version != version for storage, version in before.values()):
        raise TracingError(
            f"a function passed to {name} writes to a tensor created outside of it. Return the new value instead"
        )
    return operations, output


class Subtrace:
    """A part of the program, while it is traced and transformed.

    With `constant`, the part may write only to its inputs and to tensors that it creates.
    """

    def __init__(self, tracer: Tracer, name: str, *, constant: bool, leaves: bool = False):
        self.tracer = tracer
        self.name = name
        self.constant = constant
        self.forward_mode = name in ("jvp", "jacfwd")
        self.leaves = leaves  # whether torch would treat its inputs as leaf tensors
        self.given: list[Handle] = []  # the inputs
        self.inputs: list[Handle] = []  # the stand-ins of the inputs
        self.values_given: list[TensorProxy] = []
        self.values: list[TensorProxy] = []
        self.others: dict[str, TensorProxy] = {}  # outer values by their temporary names in the part (see `apart`)
        self.operations: list[BoundSymbol] = []
        self.outside: dict[int, Any] = {id(h._storage): h._storage for h in tracer.handles}
        self._before = {id(h): weakref.ref(h) for h in tracer.handles}
        self._versions = {key: storage.version for key, storage in self.outside.items()}
        self._lifted = len(tracer.inputs)
        self._results_need_grad = False

    # -- inputs -------------------------------------------------------------------------------------------------------
    def stand_in(self, tensor: Any, *, requires_grad: bool | None = None, batch_dim: int | None = None) -> Handle:
        """Return the stand-in for a tensor: the same values, or one example of the batch along `batch_dim`."""
        with self.tracer.recording():
            handle = self.tracer.handle_of(tensor)
            outer = aliasing.read(handle)
            shape = outer.shape
            if batch_dim is not None:
                shape = (*shape[:batch_dim], *shape[batch_dim + 1 :])
            inner = TensorProxy(like=outer, shape=shape, requires_grad=outer.requires_grad)
        self.tracer.stand_ins[inner.name] = (outer, batch_dim)
        grad = handle._needs_grad if requires_grad is None else requires_grad
        self.given.append(handle)
        self.inputs.append(Handle.make(self.tracer, inner, requires_grad=grad))
        self.values_given.append(outer)
        self.values.append(inner)
        return self.inputs[-1]

    @property
    def is_transform(self) -> bool:
        """Whether a transform of `torch.func` runs this part in eager mode."""
        return self.constant or self.name == "vmap"

    # -- the run ------------------------------------------------------------------------------------------------------
    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call `fn` and store the operations that it records."""
        parts = self.tracer.parts
        parts.append(self)
        try:
            scope = self.tracer.trace.scope if self.name == "vmap" else self.tracer.scope_of_part
            with scope() as self.operations:
                return fn(*args, **kwargs)
        finally:
            parts.pop()
            self._results_need_grad = self._needs_grad()

    def check_write(self, handle: Handle, name: str) -> None:
        """Raise for an in-place operation that torch does not allow inside this transform."""
        storage = handle._storage
        if self.leaves and any(storage is h._storage for h in self.inputs):
            raise RuntimeError(
                "a leaf Variable that requires grad is being used in an in-place operation. (in "
                f"{name}, within {self.name}; clone it first)"
            )
        if self.constant and (id(storage) in self.outside or storage.source is not None):
            raise RuntimeError(
                f"During a grad (vjp, jvp, grad, etc) transform, the function provided attempted to call in-place "
                f"operation ({name}) that would mutate a captured Tensor. This is not supported; please rewrite the "
                "function being transformed to explicitly accept the mutated Tensor(s) as inputs."
            )

    def _needs_grad(self) -> bool:
        """Check whether the part reads a value that requires grad in the surrounding program."""
        made: set[str] = {p.name for p in self.values}
        read: set[str] = {p.name for p in self.values_given}
        for op in self.operations:
            read.update(name for name in op.arg_names if name not in made)
            made.update(op.out_names)
        around = [ref() for ref in self._before.values()] + [x.handle for x in self.tracer.inputs[self._lifted :]]
        return any(
            h is not None and h._needs_grad and (h._value.name in read or h._storage.value.name in read) for h in around
        )

    # -- values -------------------------------------------------------------------------------------------------------
    def read(self, tensors: Sequence[Any]) -> list[TensorProxy]:
        """Return the values of results. Reading a value may add operations to the part."""
        scopes = self.tracer.trace.scopes
        scopes.append(self.operations)
        try:
            with self.tracer.recording():
                return [aliasing.read(self.tracer.handle_of(t)) for t in tensors]
        finally:
            scopes.pop()

    def written(self) -> list[tuple[Handle, TensorProxy]]:
        """Return the inputs that were written to, each with its new value."""
        changed = [(h, x) for h, x in zip(self.given, self.inputs) if x._storage.version]
        return list(zip([h for h, _ in changed], self.read([x for _, x in changed])))

    def written_outside(self) -> list[Any]:
        """Return the storages, other than those of the inputs, that the part wrote to."""
        found = [s for key, s in self.outside.items() if s.version != self._versions[key]]
        return found + [x.handle._storage for x in self.tracer.inputs[self._lifted :] if x.handle._storage.written]

    def also_reads(self, handles: Sequence[Handle]) -> None:
        """Record that results of the transformed part also depend on `handles`."""
        self._results_need_grad |= any(h._needs_grad for h in handles)

    @property
    def needs_grad(self) -> bool:
        """True if the surrounding program may compute gradients through the part."""
        return self._results_need_grad

    def own_handles(self) -> list[Handle]:
        """Return the handles that were created in the part and still exist."""
        known = {id(x.handle) for x in self.tracer.inputs}
        known.update(key for key, ref in self._before.items() if ref() is not None)
        return [h for h in self.tracer.handles if id(h) not in known]

    def to_trace(self, results: Sequence[TensorProxy]) -> Trace:
        """Return the part as a program that returns `results`."""
        program = Trace(self.name)
        kept = [v for h in self.own_handles() for v in (h._value, h._storage.value)]
        program.bound_symbols[:] = [
            *self.operations, BoundSymbol(prims.python_return, ((*results, *kept),), {}, None)
        ]  # fmt: skip
        if self.tracer.has_regions:
            drop_unused_results(program)
        program.bound_symbols.pop()
        return program

    # -- the transform ------------------------------------------------------------------------------------------------
    @contextmanager
    def transforming(self) -> Iterator[list[BoundSymbol]]:
        """Record operations of a transform. On exit, they join the surrounding trace, with the real inputs."""
        trace = self.tracer.trace
        with self.tracer.recording():
            with trace.scope() as recorded:
                yield recorded
            names = self.names
            for op in recorded:
                trace.record(op.substitute(names))

    @property
    def names(self) -> dict[str, Any]:
        """The values of the inputs by the names of their stand-ins."""
        return {**{x.name: outer for x, outer in zip(self.values, self.values_given)}, **self.others}

    def apart(self, value: TensorProxy) -> TensorProxy:
        """Return an outer value under a temporary name for the transform.

        The temporary name distinguishes an input of the transform from direct uses of the same outer value in the part.
        """
        other = TensorProxy(like=value)
        self.others[other.name] = value
        return other

    def outer(self, x: Any) -> Any:
        """Replace the stand-ins in a structure of values by the values of the surrounding trace."""
        names = self.names
        return map_proxies(x, lambda p: names.get(p.name, p))

    def give(self, values: Any, *, gradients: bool = False, anew: bool = False) -> Any:
        """Wrap results of the transformed part for user code. Callable inside or after `transforming`.

        As in eager mode, a result that the part has not changed is the tensor from outside (with `anew`, another tensor
        with its memory), and views in the part are views of tensors from outside. torch does not specify which memory
        `gradients` share, so they are new tensors.
        """
        grad = self._results_need_grad
        detached = grad and self.tracer.detaching and not torch.is_grad_enabled()
        known = [] if gradients else self._handles_around()
        storages = aliasing.storages_by_memory(known, self.tracer.producer)

        def one(x: Any) -> Any:
            if not isinstance(x, TensorProxy):
                return x
            with self.tracer.recording():
                x = self.outer(x)
                same = next((h for h in known if h._value is x and h._version_seen == h._storage.version), None)
                if same is not None and same._parent is None:
                    return aliasing.twin(same) if anew else same
                memory = aliasing.memory_of(x, self.tracer.producer)
                x = prims.detach(x) if detached and is_inexact_dtype(x.dtype) else x
            out = self.tracer.wrap(x, requires_grad=grad and not detached)
            if not gradients:
                for storage in storages.setdefault(memory, []):
                    aliasing.link(out._storage, storage)
                storages[memory].append(out._storage)
                known.append(out)
            return out

        return [one(x) for x in values]

    def _handles_around(self) -> list[Handle]:
        """Return the handles of the surrounding program: from before the part, and inputs that the part has found."""
        before = [h for ref in self._before.values() if (h := ref()) is not None]
        return [*self.given, *before, *[x.handle for x in self.tracer.inputs[self._lifted :]]]
