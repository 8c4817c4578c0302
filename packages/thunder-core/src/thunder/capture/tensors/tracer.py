# SPDX-License-Identifier: Apache-2.0
"""The tracer: it runs the program natively once, and records the program's operations into a trace.

The tracer converts handles and real tensors to proxies, and results to handles. It stores the inputs of the program:
first the arguments, then other tensors that the program uses (lifted inputs). At the end it writes values that were
changed in place back to the inputs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

import thunder.torch as ltorch
from thunder.capture.base import modes
from thunder.capture.base.absent import ABSENT
from thunder.capture.base.ending import end_trace
from thunder.capture.base.fallback import ModuleFallback, fall_back, refuse_kinds_of_memory
from thunder.capture.base.phase import Reader, active, begin_reads, end_reads, pause_reads, resume_reads
from thunder.capture.base.predicates import is_mask
from thunder.capture.base.sources import Attr
from thunder.capture.base.subclasses import is_dtensor_class, is_plain_subclass, layout_of, why_not_plain
from thunder.capture.base.tracing_mode import TracingMode
from thunder.capture.base.user_lines import annotate, user_line
from thunder.capture.numbers.symbolic import Inputs
from thunder.capture.tensors import aliasing
from thunder.capture.tensors.autocast import call_with_autocast
from thunder.capture.tensors.communication import Communication
from thunder.capture.tensors.handle import Handle, Lifted, Storage, View, WriteObserver, needs_grad
from thunder.capture.tensors.layout import changes_strides, strides_of_inputs
from thunder.capture.tensors.leaf_tensors import Leaves
from thunder.core import prims
from thunder.core.devices import to_device
from thunder.core.dtypes import is_inexact_dtype, to_dtype
from thunder.core.errors import ThunderError, TracingError
from thunder.core.langctx import set_langctx
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.state import state
from thunder.core.symbol import BoundSymbol, Symbol, proxies_in
from thunder.core.symint.numbers import Constraint, SymbolicNumber
from thunder.core.trace import Trace
from thunder.extend import Executor
from thunder.passes.checkpoint import drop_unused_results
from thunder.runtime.torch_private import any_autocast
from thunder.torch.private import DisableTorchFunction

__all__ = ["Lifted", "Tracer", "needs_grad", "tensors_in"]


# After so many errors of thunder in one trace, the program is assumed to catch them in a loop.
MAX_ERRORS = 1000


class DerivedScalars(Protocol):
    """Computes numbers that derive from integer inputs, and builds the prologue's function that computes them."""

    def __contains__(self, name: str) -> bool: ...
    def program(self, leaves: Sequence[NumberProxy]) -> Any: ...

    def resolve(self, number: Any) -> None:
        """Set an unbacked number's value in this call, if the number derives from inputs."""


class Decisions(Protocol):
    """Answers conditions and numbers that Python needs, and records that the path depends on the answers."""

    made: list[Any]

    def condition(self, constraint: Constraint) -> bool:
        """Return whether a condition on numbers of the program is true, and record the decision."""

    def value(self, number: SymbolicNumber) -> Any:
        """Return the value of a number of the program, and record the decision that it has this value."""

    def answers(self, constraint: Constraint) -> bool:
        """Decide a condition that an operation needs, before the operation; return whether it was not known before."""


#: Calls a torch function for user code. Parameters: the tracer, the function, and the call's arguments.
Dispatch = Callable[["Tracer", Any, "tuple[Any, ...]", "dict[str, Any]"], Any]


class Tracer:
    """Records one run of a program into `trace`."""

    def __init__(self, name: str, dispatch: Dispatch, executors: Sequence[Executor] = (), *, lift: bool = True):
        self.trace = Trace(name)
        self._dispatch = dispatch
        self.executors = executors
        self.handles: weakref.WeakSet[Handle] = weakref.WeakSet()
        self.inputs: list[Lifted] = []
        self.meta_tensors: dict[str, torch.Tensor] = {}
        self.unknown_layouts: set[str] = set()  # values in `meta_tensors` whose strides torch could not compute
        self._producers: dict[str, BoundSymbol] = {}
        self._indexed: list[tuple[list[BoundSymbol], int]] = []  # each scope, and how much of it `_producers` covers
        self.leaves = Leaves()
        self.freed: set[str] = set()  # results of the operations whose graph a `backward()` of the program has freed
        self.derived_scalars: DerivedScalars | None = None  # set if numbers that derive from inputs are computed
        self.decisions: Decisions | None = None  # set if values that Python needs are decided (`guards/decisions.py`)
        self.scope_of_user_code: list[BoundSymbol] = self.trace.scopes[0]
        self.scopes_of_parts: list[list[BoundSymbol]] = []  # scopes that become a part of the program in each call
        self.backwards: list[type] = []  # the custom functions whose backward is being traced
        # The outermost custom backward that is being traced and needed: its forward's operations, and its scope.
        self.custom_backward: tuple[list[BoundSymbol], list[BoundSymbol]] | None = None
        self.unknown: dict[Any, Any] = {}  # results of earlier queries of values (`dispatch/scalars.py`)
        self.communication = Communication()
        self.has_regions = False  # whether backward recomputes a part of the program
        self.functions: dict[Any, int] = {}  # functions of torch, and how many of their calls were not traced through
        self.replaced: frozenset[tuple[str, str]] = frozenset()  # functions of torch that are not torch's own
        self.kernels_around = modes.settled_attention_kernels()
        self.attention_kernels: tuple[Any, ...] | None = None  # the enabled kernels, if the program has attention
        self.uncacheable: str | None = None  # why this trace cannot be cached
        self.refusal: Exception | None = None  # an error that thunder raised and the program may have caught
        self._errors = 0
        self.partly_eager: Exception | None = None  # set if the program calls a function that runs as Python
        self.symbolic: Inputs | None = None  # set if sizes or numbers of inputs are symbolic
        # Arrays that the program made and used as tensors: the array, its bytes at that time, and the tensor's memory.
        self.constant_arrays: list[tuple[Any, bytes, Storage]] = []
        # Results that are copies in the trace and views in NumPy: the bases' memory with its version, and the copies'.
        self.copied_views: list[tuple[list[tuple[Storage, int]], list[Storage]]] = []
        self.uses_arrays = False  # whether the program uses NumPy arrays of tensors
        self.generators: list[torch.Generator] = []  # generators passed to operations of the program
        self.detaching = True  # whether gradients stop at operations under no_grad
        self.parts: list[WriteObserver] = []  # the subtraces that are being traced, for transforms
        self.stand_ins: dict[str, tuple[TensorProxy, int | None]] = {}  # subtrace inputs: outer value, batch dimension
        self.module_names: dict[int, str] = {}  # the names of modules that have run, by their ids (`user_lines.py`)
        self._known: dict[int | str, Lifted] = {}  # by the ids of tensors and handles, and by the names of values
        self._lift = lift
        self.subclasses: set[type] = set()  # the plain subclasses of torch.Tensor that the program uses
        self.read_class: Callable[[type], None] = lambda cls: None
        self.reader: Reader | None = None  # records the program's reads
        self.recorder: Any = None  # of the reads (`reads/read_recorder.py`, a higher layer)
        self.read_attribute: Callable[[torch.Tensor, str], Any] = lambda tensor, name: ABSENT
        self.guarded_of: Callable[..., Any] = lambda tensor, step, *operands: False
        self.names_of: Callable[[torch.Tensor], str | None] = lambda tensor: None  # names the tensors of `handle_of`
        self.undo_later: Callable[..., None] | None = None  # registers a step that undoes a change after the run

    def release(self) -> None:
        """Release the tensors of the call. They would otherwise live until a garbage collection finds the tracer."""
        self.leaves.inputs.release()
        for tensors in (self.inputs, self._known, self.meta_tensors, self.generators, self.constant_arrays):
            tensors.clear()

    # -- inputs -------------------------------------------------------------------------------------------------------
    def add_input(self, tensor: torch.Tensor, name: str | None, *, independent: bool = False) -> Handle:
        """Make a real tensor an input of the program.

        A tensor that is added several times is one input, unless `independent` is set for a separate variable.
        """
        known = self._known.get(id(tensor))
        if known is not None and not independent:
            return known.handle
        _check_kind(tensor)
        self.class_used(type(tensor))
        trace = self.trace
        name = trace.add_name(name) if name else trace.make_name("t_")
        proxy = TensorProxy(
            name,
            shape=tuple(tensor.shape) if self.symbolic is None else self.symbolic.shape(name, tensor),
            device=to_device(tensor.device),
            dtype=to_dtype(tensor.dtype),
            requires_grad=tensor.requires_grad,
            dtensor_layout=layout_of(tensor),
        )
        handle = Handle.make(self, proxy, requires_grad=tensor.requires_grad, storage=Storage(proxy, proxy))
        if type(tensor) is not torch.Tensor and proxy.dtensor_layout is None:
            handle._class = type(tensor)
        for mark, kind in (("_is_param", torch.nn.Parameter), ("_is_buffer", torch.nn.Buffer)):
            if isinstance(tensor, kind):
                handle.__dict__[mark] = True  # used by isinstance()
        with DisableTorchFunction():  # the tracing mode may be active here
            meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
            if tensor.is_neg():
                meta = torch._neg_view(meta)
            self.meta_tensors[proxy.name] = meta.conj() if tensor.is_conj() else meta
        trace.args.append(proxy)
        lifted = Lifted(tensor, proxy, handle)
        self.inputs.append(lifted)
        self._known[id(tensor)] = self._known[id(handle)] = self._known[proxy.name] = lifted
        return handle

    def class_used(self, cls: type) -> None:
        """Record that the program has tensors of a class. The attributes of a user class are guarded."""
        if is_plain_subclass(cls) and cls not in self.subclasses:
            self.subclasses.add(cls)
            self.read_class(cls)

    def producer(self, value: TensorProxy) -> BoundSymbol | None:
        """Return the operation that computed a value, or None for an input."""
        if value.name not in self._producers:
            for i, scope in enumerate(self.trace.scopes):
                if i == len(self._indexed) or self._indexed[i][0] is not scope:
                    self._indexed[i:] = [(scope, 0)]
                for bsym in scope[self._indexed[i][1] :]:
                    for name in bsym.out_names:
                        self._producers.setdefault(name, bsym)
                self._indexed[i] = scope, len(scope)
        return self._producers.get(value.name)

    def forget_producers(self) -> None:
        """Clear the index of producers, because recorded operations have been replaced."""
        self._indexed, self._producers = [], {}

    def sizes_are_symbolic(self, x: Any) -> bool:
        """Check whether a tensor that user code queries has a symbolic size."""
        if type(x) is Handle:
            return any(type(n) is not int for n in x._value.shape)
        if is_mask(x):
            return any(isinstance(n, SymbolicNumber) for n in self.shape_of(x))
        return self.symbolic is not None and isinstance(x, torch.Tensor) and bool(self.symbolic.dims_of(x))

    def shape_of(self, x: Any) -> tuple[Any, ...]:
        """Return the shape of a tensor that user code queries."""
        if is_mask(x):
            return int(x.variant), x.seq_len_q, x.seq_len_kv
        return self.handle_of(x)._value.shape

    def input_with(self, handle: Handle) -> Lifted | None:
        """Return the input of which a handle is the handle, or None."""
        return self._known.get(id(handle))

    def attribute_of(self, handle: Handle, name: str) -> Any:
        """Return an attribute that the user has set on an input, or `ABSENT`."""
        lifted = self.input_with(handle)
        return ABSENT if lifted is None else self.read_attribute(lifted.tensor, name)

    def is_leaf(self, tensor: torch.Tensor) -> bool:
        """Return whether a real tensor is a leaf of autograd's graph, and guard the result."""
        return bool(self.guarded_of(tensor, Attr, "is_leaf"))

    def input_of(self, value: TensorProxy) -> Lifted | None:
        """Return the input whose original value is `value`, or None."""
        return self._known.get(value.name)

    def owner_of(self, handle: Handle) -> Lifted | None:
        """Return the input whose memory a tensor is in, or None for memory that the program allocated."""
        source = handle._storage.source
        return None if source is None else self._known.get(source.name)

    def handle_of(self, tensor: torch.Tensor) -> Handle:
        """Return the handle of a tensor that user code passed to an operation."""
        if isinstance(tensor, Handle):
            if tensor._tracer is not self:
                raise TracingError(
                    f"a tensor of another trace was used ({tensor!r}). It was stored in an earlier call of a traced "
                    "function, or in a function under vmap. Return it from that function instead of storing it"
                )
            return tensor
        if not self._lift:
            raise TracingError(
                "a tensor that is not an argument was used, but this function may use only its arguments. Pass the "
                "tensor as an argument"
            )
        return self.add_input(tensor, self.names_of(tensor))

    def note_refusal(self, error: Exception) -> None:
        """Record an error of thunder, in case the program catches it."""
        self.refusal = error
        self.count_errors()

    def count_errors(self) -> None:
        """End a program that catches thunder's errors in a loop."""
        self._errors += 1
        if self._errors > MAX_ERRORS:
            end_trace()

    # -- values -------------------------------------------------------------------------------------------------------
    def unwrap(self, x: Any) -> Any:
        """Return arguments in which each tensor is replaced by the proxy of its current value."""
        if isinstance(x, torch.Tensor):
            return aliasing.read(self.handle_of(x))
        kind = type(x)
        if kind is int or kind is float or x is None:
            return x
        if kind is tuple or kind is torch.Size:
            return tuple([self.unwrap(i) for i in x])
        if kind is list:
            return [self.unwrap(i) for i in x]
        if kind is dict:
            return {k: self.unwrap(v) for k, v in x.items()}
        if kind is slice:
            return slice(self.unwrap(x.start), self.unwrap(x.stop), self.unwrap(x.step))
        if isinstance(x, tuple) and hasattr(x, "_fields"):
            return kind(*[self.unwrap(i) for i in x])
        if isinstance(x, tuple):  # one of torch.return_types
            return kind([self.unwrap(i) for i in x])
        if kind is torch.Generator:
            self.generators.append(x)
            return x
        if kind.__module__ == "numpy" and hasattr(x, "item") and getattr(x, "ndim", None) == 0:
            return x.item()  # a NumPy number
        if kind is torch.SymInt or kind is torch.SymFloat:
            x = x.node  # C++ wraps symbolic numbers in these types
        if isinstance(x, SymbolicNumber) and x.symbols is not self.trace.info.get("symbols"):  # type: ignore[attr-defined]
            return x.hint  # a symbol that another program left behind: use its value there
        return x

    def wrap(self, x: Any, *, requires_grad: bool = False) -> Any:
        """Return results in which each proxy is replaced by a new handle."""
        if isinstance(x, TensorProxy):
            return Handle.make(self, x, requires_grad=requires_grad and is_inexact_dtype(x.dtype))
        if isinstance(x, NumberProxy) and x.symbol is not None:
            return x.symbol
        kind = type(x)
        if kind is tuple:
            return tuple([self.wrap(i, requires_grad=requires_grad) for i in x])
        if kind is list:
            return [self.wrap(i, requires_grad=requires_grad) for i in x]
        if kind is dict:
            return {k: self.wrap(v, requires_grad=requires_grad) for k, v in x.items()}
        if isinstance(x, tuple) and hasattr(x, "_fields"):
            return kind(*[self.wrap(i, requires_grad=requires_grad) for i in x])
        if isinstance(x, tuple):  # one of torch.return_types
            return kind([self.wrap(i, requires_grad=requires_grad) for i in x])
        return x

    # -- operations ---------------------------------------------------------------------------------------------------
    @contextmanager
    def recording(self) -> Iterator[None]:
        """Return a context in which operations on proxies are recorded and no user code runs."""
        before = state.frontend, state.source
        if before[0] is self:
            self.scope_of_user_code = self.trace.scopes[-1]
        state.frontend = None
        paused = pause_reads()
        state.source = user_line(self.module_names)
        try:
            yield
        except Exception as error:
            annotate(error, state.source)
            if isinstance(error, ThunderError) and before[0] is self:
                self.note_refusal(error)
            raise
        finally:
            state.frontend, state.source = before
            resume_reads(paused)

    @contextmanager
    def scope_of_part(self) -> Iterator[list[BoundSymbol]]:
        """Return a context that records into a new scope, which runs once in each call of the program."""
        with self.trace.scope() as operations:
            self.scopes_of_parts.append(operations)
            try:
                yield operations
            finally:
                self.scopes_of_parts.pop()

    @contextmanager
    def scope_of_backward(self, forward: list[BoundSymbol], *, needed: bool) -> Iterator[list[BoundSymbol]]:
        """Return a context that records the backward of a custom function into a new scope.

        It is `needed` if the program is differentiated.
        """
        before = self.custom_backward
        with self.trace.scope() as operations:
            self.custom_backward = before or ((forward, operations) if needed else None)
            try:
                yield operations
            finally:
                self.custom_backward = before

    @contextmanager
    def proxies(self) -> Iterator[None]:
        """Return a context in which proxies can be created for this trace."""
        before = state.trace, state.frontend
        state.trace, state.frontend = self.trace, None
        try:
            yield
        finally:
            state.trace, state.frontend = before

    @contextmanager
    def without_gradients(self) -> Iterator[None]:
        """Return a context for user code whose gradients are defined elsewhere: no_grad, but without detaching."""
        before, self.detaching = self.detaching, False
        try:
            with torch.no_grad():
                yield
        finally:
            self.detaching = before

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a torch function for user code."""
        return self._dispatch(self, func, args, kwargs)

    def call_symbol(self, sym: Symbol, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an operation for user code."""
        with self.recording():
            given = args[0] if args and isinstance(args[0], torch.Tensor) else None
            tensors = tensors_in(args, kwargs)
            args, kwargs = self.unwrap(args), self.unwrap(kwargs)
            base = self.handle_of(given) if given is not None and sym.gives_view(args, kwargs) else None
            if base is None or sym.facts.view == "maybe":
                self.communication.check_reads(map(self.handle_of, tensors))
            out = call_with_autocast(sym, args, kwargs, self.parts) if any_autocast() else sym(*args, **kwargs)
            grad = any(needs_grad(t) for t in tensors)
            detached = grad and self.detaching and not torch.is_grad_enabled() and sym.differentiable
            out = self.detached(out, args, kwargs) if detached else out
            grad = grad and torch.is_grad_enabled() and sym.differentiable
            if base is None:
                return self._results(out, tensors, grad)
            result = self._views(sym, base, sym.bind(args, kwargs), out, grad, detached)
            return given if result is base else result

    def detached(self, out: Any, args: Any, kwargs: Any) -> Any:
        """Return the results of an operation under no_grad, detached so that no gradient flows through them."""
        if any(part.forward_mode for part in self.parts):  # tangents would still flow through them
            self.partly_eager = ModuleFallback("a function that forward mode differentiates uses torch.no_grad inside")
            raise self.partly_eager
        given = {p.name for p in proxies_in((args, kwargs))}
        if isinstance(out, (tuple, list)):
            return type(out)(self.detached(o, args, kwargs) for o in out)
        return (
            ltorch.detach(out)
            if isinstance(out, TensorProxy) and out.name not in given and is_inexact_dtype(out.dtype)
            else out
        )

    def _results(self, out: Any, tensors: list[torch.Tensor], grad: bool) -> Any:
        if isinstance(out, TensorProxy):
            # Like torch, return the same tensor to user code if an operation returns its input.
            for t in reversed(tensors):  # the first argument first
                if self.handle_of(t)._value is out:
                    return t
        return self.wrap(out, requires_grad=grad)

    def _views(self, sym: Symbol, base: Handle, call: tuple[Any, Any], out: Any, grad: bool, detached: bool) -> Any:
        args, kwargs = call[0][1:], call[1]
        certain = sym.facts.view != "maybe"

        def one(value: Any, index: int | None) -> Any:
            if not isinstance(value, TensorProxy):
                return value
            same = value is base._value
            if same and sym.facts.returns_input:
                return base
            view = View(sym, args, kwargs, index, certain, detached)
            if same and base._parent is None:  # otherwise, it is a view of a copy if `base` is a copy
                if changes_strides(base, view):
                    value = prims.view(value, value.shape)
                elif not detached:
                    return aliasing.twin(base)
            value = prims.detach(value) if same and detached else value
            out = aliasing.view_of(base, value, view, grad and is_inexact_dtype(value.dtype))
            out._is_new |= same and not detached
            if not certain:
                aliasing.order_copy(out)
            return out

        if isinstance(out, (tuple, list)):
            return type(out)([one(value, i) for i, value in enumerate(out)])
        return one(out, None)

    # -- running user code --------------------------------------------------------------------------------------------
    @contextmanager
    def user_code(self) -> Iterator[None]:
        """Return a context in which user code runs and this tracer records its operations into the trace."""
        before = state.trace, state.frontend, state.source
        recorded = self.reader is not None and self.reader is active.reader
        phase = begin_reads() if recorded else None
        state.trace, state.frontend = self.trace, self
        try:
            with set_langctx("torch"), TracingMode():
                yield
        finally:
            state.trace, state.frontend, state.source = before
            if recorded:
                end_reads(phase)

    # -- the end ------------------------------------------------------------------------------------------------------
    def _write_back(self, lifted: Lifted, storage: Storage) -> None:
        value = storage.value
        if value is not storage.unordered and not any(value.name in op.arg_names for op in self.trace.bound_symbols):
            value = storage.unordered  # nothing needs the order of the memory
        if storage.needs_grad and not storage.visible:
            written = prims.copy_(prims.detach(value), lifted.proxy)
            storage.value = prims.assign_value(value, written)
        else:
            storage.value = prims.copy_(value, lifted.proxy)
        storage.version += 1
        # A program that returns this input must return the caller's tensor, which the proxy refers to.
        lifted.handle._value, lifted.handle._version_seen = lifted.proxy, storage.version

    def finish(self, output: Any) -> Any:
        """Write inputs that were changed in place back to their memory, and return the output in proxies.

        Views of a changed input are recomputed from its memory, so that results share memory as in torch.
        """
        before = state.trace, state.frontend
        state.trace, state.frontend = self.trace, None
        try:
            with set_langctx("torch"):
                self.leaves.inputs.finish()
                for lifted in self.inputs:
                    storage = lifted.handle._storage
                    if storage.written and storage.value is not lifted.proxy:
                        self._write_back(lifted, storage)
                results = tensors_in(output)
                _share_memory(results)
                self._keep_apart(results)
                self.trace.info["requires_grad"] = any(map(needs_grad, results))
                self.trace.info["strides"] = strides_of_inputs(self.inputs, self.meta_tensors)
                prims.python_return(_values_of_numbers(self.unwrap(output), {}))
        finally:
            state.trace, state.frontend = before
        if self.has_regions:
            drop_unused_results(self.trace)
        args = self.trace.args
        args.sort(key=lambda p: not isinstance(p, TensorProxy))  # numbers come last
        self.trace.bound_symbols[:0] = [*_unpacks(args), *self._sizes()]
        return output

    def _keep_apart(self, tensors: list[torch.Tensor]) -> None:
        """Make each result a separate tensor, even if a view has the same value as its base or input."""
        inputs = [(x.proxy, x.handle._storage.value, x.handle) for x in self.inputs]
        seen: dict[str, torch.Tensor] = {p.name: handle for *values, handle in inputs for p in values}
        for t in {id(t): t for t in tensors if isinstance(t, Handle)}.values():
            value = aliasing.read(t)
            same = seen.setdefault(value.name, t) is not t
            if t._views and t._is_new:  # torch returns the input itself from an operation such as `contiguous`
                made_by = self.producer(value)
                same |= made_by is None or made_by.sym.facts.returns_input
            if same:
                t._value = prims.alias(value)

    def _sizes(self) -> list[BoundSymbol]:
        """Return the operations that read the symbolic sizes from the inputs."""
        if self.symbolic is None:
            return []
        inputs = {p.name: p for p in self.trace.args}
        return [BoundSymbol(prims.size, (inputs[size.tensor], size.dim), {}, size.leaf) for size in self.symbolic.sizes]


def _values_of_numbers(x: Any, known: dict[str, NumberProxy]) -> Any:
    """Return a result in which each symbolic number is replaced by a value of the trace."""
    if isinstance(x, SymbolicNumber):
        text = x.text()
        if text not in known:
            leaf = x.leaves[0]
            whole = leaf.symbol.same(x) and leaf.python_type is x.__class__  # type: ignore[comparison-overlap]
            known[text] = leaf if whole else prims.number(x)
        return known[text]
    if type(x) in (tuple, list):
        return type(x)([_values_of_numbers(i, known) for i in x])
    if type(x) is dict:
        return {k: _values_of_numbers(v, known) for k, v in x.items()}
    if isinstance(x, tuple) and any(isinstance(i, SymbolicNumber) for i in x):
        items = [_values_of_numbers(i, known) for i in x]
        return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)
    return x


def _share_memory(tensors: list[torch.Tensor]) -> None:
    """Make results share memory as in torch, by recomputing views among the results from their bases.

    Without this, a view that was written to keeps the written value, and its base is computed from this value.
    """
    groups: dict[int, list[Handle]] = {}
    for t in tensors:
        if isinstance(t, Handle) and t._storage.written:
            groups.setdefault(id(t._storage), []).append(t)
    for handles in groups.values():
        if len({id(h) for h in handles}) > 1:
            for handle in handles:
                if handle._views and not aliasing.keeps_written_value(handle):
                    handle._version_seen = -1


def _unpacks(args: Sequence[Proxy]) -> list[Any]:
    return [BoundSymbol(prims.unpack_trivial, (p,), {}, p) for p in args]


def tensors_in(*containers: Any) -> list[torch.Tensor]:
    """Return all tensors in the arguments, including tensors in tuples, lists and dicts."""
    found: list[torch.Tensor] = []
    seen: set[int] = set()  # a list or dict may contain itself
    stack = list(containers)
    while stack:
        x = stack.pop()
        if isinstance(x, torch.Tensor):
            found.append(x)
        elif isinstance(x, tuple):
            stack.extend(x)
        elif isinstance(x, (list, dict)) and id(x) not in seen:
            seen.add(id(x))
            stack.extend(x.values() if isinstance(x, dict) else x)
    return found


def _check_kind(tensor: torch.Tensor) -> None:
    reason = None if is_dtensor_class(type(tensor)) else why_not_plain(type(tensor))
    if reason is not None:
        fall_back(f"the program gets a tensor of class {reason}")
    refuse_kinds_of_memory(tensor)
