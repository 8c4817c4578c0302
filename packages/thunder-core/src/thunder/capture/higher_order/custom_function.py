# SPDX-License-Identifier: Apache-2.0
"""`torch.autograd.Function` inside a traced program.

The forward becomes one composite operation. The backward is traced immediately afterwards, with proxies for the
incoming gradients, and becomes the gradient rule of this operation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

import thunder.torch as ltorch
from thunder.capture.base.fallback import fall_back
from thunder.capture.base.modes import attempt
from thunder.capture.tensors import aliasing
from thunder.capture.tensors.handle import Handle
from thunder.capture.tensors.leaf_tensors import set_requires_grad
from thunder.capture.tensors.tracer import Tracer
from thunder.core import prims, pytree
from thunder.core.dtypes import is_complex_dtype, is_inexact_dtype
from thunder.core.errors import TracingError
from thunder.core.prims import get_grad, put_grad
from thunder.core.prims.autodiff import zeros_of
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.state import state
from thunder.core.symbol import BoundSymbol, Symbol, map_proxies, proxies_in
from thunder.core.symint.numbers import SymbolicNumber
from thunder.core.trace import Trace
from thunder.core.tracebacks import release_frames
from thunder.passes.checkpoint import copy_operations
from thunder.torch.elementwise_base import sum_to

__all__ = ["CustomPrograms", "apply_traced", "loaded_function"]


# The code of a backward that `once_differentiable` has wrapped: torch treats the gradients it returns as constants.
_ONCE = torch.autograd.function.once_differentiable(lambda ctx: None).__code__


# A backward that calls its own function is traced for so many derivatives. Each is traced inside of the one before.
MAX_ORDER = 3

_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device)


class TracedContext:
    """The `ctx` argument of a traced `torch.autograd.Function`."""

    def __init__(self, needs_input_grad: tuple[bool, ...]):
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()
        self._non_differentiable: tuple[Any, ...] = ()
        self._dirty: tuple[Any, ...] = ()
        self._materializes = True  # whether missing incoming gradients are zeros, else None

    def save_for_backward(self, *tensors: Any) -> None:
        """Save tensors for backward."""
        self.saved_tensors = tensors

    save_for_forward = save_for_backward

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Mark outputs that receive no gradient."""
        self._non_differentiable = tensors

    def mark_dirty(self, *tensors: Any) -> None:
        """Mark inputs that the forward writes to. The writes themselves are recorded as they happen."""
        self._dirty = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Pass missing incoming gradients to backward as None if `value` is false, else as zeros."""
        self._materializes = value

    @property
    def saved_variables(self) -> tuple[Any, ...]:
        """The old name of `saved_tensors`."""
        return self.saved_tensors


def _needs(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and (x._needs_grad if isinstance(x, Handle) else x.requires_grad)


def apply_traced(tracer: Tracer, cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `cls.apply(*args)` in a traced program."""
    if _has_setup_context(cls):  # torch then binds the arguments to the parameters of forward
        bound = inspect.signature(cls.forward).bind(*args, **kwargs)
        bound.apply_defaults()
        args, kwargs = bound.args, bound.kwargs
    if kwargs:
        raise TypeError(f"{cls.__name__}.apply() takes no keyword arguments")
    trace = tracer.trace
    handles = tuple(tracer.handle_of(a) if isinstance(a, torch.Tensor) else a for a in args)
    inputs = tracer.unwrap(handles)
    ctx = TracedContext(tuple(_needs(a) for a in handles))
    # In a forward, inputs are not views. An input that it returns unchanged is a new tensor.
    with tracer.scope_of_part() as forward, tracer.without_gradients():
        out = _forward(cls, ctx, handles)
        with tracer.recording():
            output = _anew(tracer.unwrap(out), {p.name for p in proxies_in(inputs)})
    stopped = _stopped(ctx, out, output)
    if not ctx._materializes and any(ctx.needs_input_grad) and len(_differentiable(output, stopped)) > 1:
        fall_back(f"{cls.__name__} calls set_materialize_grads(False), and has several differentiable outputs")
    backward = _trace_backward(tracer, cls, ctx, output, stopped, forward)
    kept, captured = _beside(inputs, output, forward, backward)
    ruled = bool(tracer.parts)  # a surrounding transform may need its tangents or its batching rule
    whole = not (kept and ruled)
    # Objects of the program are no operands. They may refer to handles, which must not outlive the run.
    arguments = (*(inputs if ruled else pytree.tree_map(_operand, inputs)), *captured)
    results = (output, tuple(kept)) if whole and kept else output
    sym = _symbol(cls, arguments, output, results, forward, backward, whole)
    if ruled:
        _give_rules(tracer, sym, cls, ctx, inputs, forward)
    trace.record(BoundSymbol(sym, arguments, {}, results, forward, state.source))
    grad = any(ctx.needs_input_grad) and torch.is_grad_enabled()
    if tracer.detaching and not grad and (captured or not torch.is_grad_enabled()):
        with tracer.recording():
            output = tracer.detached(output, (), {})
    if grad and stopped:
        with tracer.recording():
            output = map_proxies(output, lambda p: prims.detach(p) if p.name in stopped else p)
    dirty = {id(t) for t in ctx._dirty if any(t is h for h in handles)}
    constant = {id(t) for t in ctx._non_differentiable}
    vars(ctx).clear()  # a cycle of garbage may keep it alive, and handles that it saved would seem to share memory
    around = list(tracer.handles)
    wrapped = _wrapped(tracer, out, output, grad, stopped=constant, dirty=dirty)
    _link_memory(tracer, around, wrapped, forward)
    return wrapped


def _link_memory(tracer: Tracer, around: list[Handle], results: Any, forward: list[BoundSymbol]) -> None:
    """Record which results of the forward are views of tensors that existed before, or of each other."""
    made = {name: op for op in forward for name in op.out_names}

    def producer(value: TensorProxy) -> BoundSymbol | None:
        return made.get(value.name) or tracer.producer(value)

    storages = aliasing.storages_by_memory(around, producer)
    for x in results if isinstance(results, tuple) else (results,):
        if isinstance(x, Handle) and not any(x is h for h in around):
            known = storages.setdefault(aliasing.memory_of(x._value, producer), [])
            for storage in known:
                aliasing.link(x._storage, storage)
            known.append(x._storage)


def _operand(x: Any) -> Any:
    return x if isinstance(x, (Proxy, SymbolicNumber, *_PLAIN)) else None


def _stopped(ctx: TracedContext, out: Any, output: Any) -> set[str]:
    """Return the names of the outputs that the forward marked as not differentiable."""
    marked = {id(t) for t in ctx._non_differentiable}
    outs, values = (x if isinstance(x, (tuple, list)) else (x,) for x in (out, output))
    return {p.name for t, p in zip(outs, values) if id(t) in marked and isinstance(p, TensorProxy)}


def _differentiable(output: Any, stopped: set[str]) -> list[Proxy]:
    found = [p for p in proxies_in(output) if isinstance(p, TensorProxy) and is_inexact_dtype(p.dtype)]
    return [p for p in found if p.name not in stopped]


def _anew(output: Any, given: set[str]) -> Any:
    """Replace inputs in an output by new values, so that their gradients go through the custom backward.

    As in torch, a new value is another tensor that shares the input's memory.
    """
    return map_proxies(output, lambda p: prims.alias(p) if p.name in given else p)


def _has_setup_context(cls: Any) -> bool:
    return cls.setup_context is not torch.autograd.function._SingleLevelFunction.setup_context


def _forward(cls: Any, ctx: TracedContext, args: tuple[Any, ...]) -> Any:
    if _has_setup_context(cls):
        out = cls.forward(*args)
        cls.setup_context(ctx, args, out)
        return out
    return cls.forward(ctx, *args)


def _wrapped(tracer: Tracer, out: Any, output: Any, grad: bool, *, stopped: set[int], dirty: set[int]) -> Any:
    if isinstance(output, (tuple, list)):
        return tuple(_wrapped(tracer, a, b, grad, stopped=stopped, dirty=dirty) for a, b in zip(out, output))
    if id(out) in dirty:  # an input that was written to is returned itself
        with tracer.recording():
            aliasing.write(out, output, "mark_dirty")
        if grad and id(out) not in stopped:
            set_requires_grad(out, True)
        return out
    return tracer.wrap(output, requires_grad=grad and id(out) not in stopped)


class _Backward:
    """A traced backward: its incoming gradients, its operations, and the gradients it returns or its error."""

    def __init__(self) -> None:
        self.cotangents: list[TensorProxy | None] = []
        self.operations: list[BoundSymbol] = []
        self.gradients: tuple[Any, ...] = ()
        self.error: Exception | None = None


def _trace_backward(
    tracer: Tracer, cls: Any, ctx: TracedContext, output: Any, stopped: set[str], forward: list[BoundSymbol]
) -> _Backward:
    result = _Backward()
    needed = (any(ctx.needs_input_grad) and torch.is_grad_enabled()) or bool(tracer.parts)
    before = tracer.refusal
    tracer.backwards.append(cls)
    try:
        if tracer.backwards.count(cls) > MAX_ORDER:
            raise TracingError(
                f"the backward of {cls.__name__} calls {cls.__name__}, and thunder compiles the first {MAX_ORDER} "
                "derivatives of such a function"
            )
        outs = output if isinstance(output, tuple) else (output,)
        with attempt(), tracer.scope_of_backward(forward, needed=needed) as operations, tracer.without_gradients():
            with tracer.proxies():
                result.cotangents = [
                    TensorProxy(like=p)
                    if isinstance(p, TensorProxy) and is_inexact_dtype(p.dtype) and p.name not in stopped
                    else None
                    for p in outs
                ]
            grads = cls.backward(ctx, *[_incoming(tracer, ctx, p, g) for p, g in zip(outs, result.cotangents)])
            result.gradients = tracer.unwrap(grads if isinstance(grads, tuple) else (grads,))
        result.operations = operations
    except Exception as error:  # raised later, and only if the program is differentiated
        tracer.refusal = before
        release_frames(error)  # they would keep handles alive
        result.error = error
    finally:
        tracer.backwards.pop()
    return result


def _incoming(tracer: Tracer, ctx: TracedContext, output: Any, cotangent: TensorProxy | None) -> Any:
    """Return the gradient of an output that backward receives. An output without gradient has zeros or None."""
    if cotangent is not None:
        return tracer.wrap(cotangent)
    if not ctx._materializes or not isinstance(output, TensorProxy):
        return None
    return tracer.call_symbol(ltorch.zeros, (output.shape,), {"dtype": output.dtype, "device": output.device})


def _beside(
    inputs: Any, output: Any, forward: list[BoundSymbol], backward: _Backward
) -> tuple[list[Proxy], list[Proxy]]:
    """Return the intermediate values of the forward that the backward reads, and the values that both capture.

    Captured values come from the surrounding program. They become further arguments of the operation, which have no
    gradients.
    """
    known = {p.name for p in (*proxies_in(inputs), *proxies_in(output))}
    made = {name for op in forward for name in op.out_names}
    own = {p.name for p in backward.cotangents if p is not None} | {
        n for op in backward.operations for n in op.out_names
    }
    read = {p.name: p for op in backward.operations for p in op.flat_args}
    read.update((p.name, p) for p in proxies_in(backward.gradients))
    kept = [p for name, p in read.items() if name in made - known]
    read.update((p.name, p) for op in forward for p in op.flat_args)
    captured = [p for name, p in read.items() if name not in known | made | own]
    return kept, [p for p in captured if not (isinstance(p, NumberProxy) and p.symbol is not None)]


def _symbol(
    cls: Any, inputs: Any, output: Any, results: Any, forward: list[BoundSymbol], backward: _Backward, whole: bool
) -> Symbol:
    """Return the operation for a call. `results` contains its output and further values that its backward reads.

    With `whole`, differentiation keeps the operation. If it is recomputed or differentiated twice, the custom backward
    therefore still applies.
    """

    def meta(*args: Any) -> Any:
        names = {p.name: q for p, q in zip(proxies_in(inputs), proxies_in(args))}
        trace = state.trace
        assert trace is not None
        for op in forward:
            trace.record(op.substitute(names))
        return map_proxies(results, lambda p: names.get(p.name, p))

    sym = Symbol(cls.__name__, meta, id=("autograd.Function", cls), executor=None)
    once = getattr(cls.backward, "__code__", None) is _ONCE

    def differentiate(found: Any, *args: Any) -> None:
        if backward.error is not None:
            raise backward.error
        trace = state.trace
        assert trace is not None
        names: dict[str, Any] = {p.name: q for p, q in zip(proxies_in(inputs), proxies_in(args))}
        names.update((p.name, q) for p, q in zip(proxies_in(results), proxies_in(found)))
        outs = output if isinstance(output, tuple) else (output,)
        for p, cotangent in zip(outs, backward.cotangents):
            if cotangent is not None:
                names[cotangent.name] = get_grad(names[p.name])
        for op in copy_operations(backward.operations, names, trace, new_numbers=True):
            trace.record(op)
        for a, g in zip(args, backward.gradients):
            if isinstance(a, TensorProxy) and isinstance(g, TensorProxy) and is_inexact_dtype(a.dtype):
                gradient = _of_the_input(names.get(g.name, g), a)
                put_grad(a, prims.detach(gradient) if once else gradient)

    def rule(*args: Any) -> Any:
        if backward.error is not None:
            raise backward.error
        found = meta(*args)
        differentiate(found, *args)
        return found

    if whole:
        rule.backward = differentiate  # type: ignore[attr-defined]  # for callers that have already run the operation
    sym.grad(rule)
    sym.programs = CustomPrograms(  # type: ignore[attr-defined]
        cls.__name__, inputs, output, results, forward, backward, whole, once
    )
    return sym


class CustomPrograms(NamedTuple):
    """The programs of the operation of a custom function, from which `loaded_function` makes it again."""

    name: str
    inputs: Any
    output: Any
    results: Any
    forward: list[BoundSymbol]
    backward: _Backward
    whole: bool
    once: bool

    @property
    def arguments(self) -> dict[str, Proxy]:
        """The values that the forward reads, each once."""
        return {p.name: p for p in proxies_in(self.inputs)}

    def traces(self) -> tuple[Trace, Trace]:
        """Return the forward, and the backward as a program of the forward's inputs, its results, and gradients."""
        if self.backward.error is not None:
            raise self.backward.error
        given = self.arguments | {p.name: p for p in proxies_in(self.results)}
        arriving = [p for p in self.backward.cotangents if p is not None]
        gradients = tuple([g if isinstance(g, TensorProxy) else None for g in self.backward.gradients])
        return (
            _program("forward", [*self.arguments.values()], self.forward, self.results),
            _program("backward", [*given.values(), *arriving], self.backward.operations, gradients),
        )

    def settings(self) -> dict[str, Any]:
        """Return what `loaded_function` needs besides the programs, as data of JSON's types."""
        inputs, results = ([p.name for p in proxies_in(x)] for x in (self.inputs, self.results))
        outs = self.output if isinstance(self.output, tuple) else (self.output,)
        return {
            "name": self.name,
            "given": [inputs.index(name) for name in self.arguments],
            "arriving": [results.index(p.name) for p, g in zip(outs, self.backward.cotangents) if g is not None],
            "whole": self.whole,
            "once": self.once,
        }


def _program(name: str, args: Sequence[Proxy], operations: Sequence[BoundSymbol], output: Any) -> Trace:
    trace = Trace(name, args=list(args))
    trace.names.update(p.name for p in args)
    trace.names.update(n for op in operations for n in (*op.arg_names, *op.out_names))
    trace.bound_symbols += [*operations, BoundSymbol(prims.python_return, (output,), {}, None)]
    return trace


def loaded_function(forward: Callable[..., Any], backward: Callable[..., Any], settings: Mapping[str, Any]) -> Symbol:
    """Return the operation of a custom function from its saved programs and settings (`CustomPrograms`)."""
    name, given, arriving = settings["name"], settings["given"], settings["arriving"]

    def values(args: Any) -> list[Proxy]:
        read = proxies_in(args)
        return [read[i] for i in given]

    def meta(*args: Any) -> Any:
        return forward(*values(args))

    sym = Symbol(name, meta, id=("autograd.Function", name), executor=None)

    def differentiate(found: Any, *args: Any) -> None:
        results = {p.name: p for p in proxies_in(found)}
        cotangents = [get_grad(proxies_in(found)[i]) for i in arriving]  # type: ignore[arg-type]
        gradients = backward(*values(args), *results.values(), *cotangents)
        for a, g in zip(args, gradients):
            if isinstance(a, TensorProxy) and isinstance(g, TensorProxy) and is_inexact_dtype(a.dtype):
                gradient = _of_the_input(g, a)
                put_grad(a, prims.detach(gradient) if settings["once"] is True else gradient)

    def rule(*args: Any) -> Any:
        found = meta(*args)
        differentiate(found, *args)
        return found

    if settings["whole"] is True:
        rule.backward = differentiate  # type: ignore[attr-defined]
    sym.grad(rule)
    return sym


def _of_the_input(gradient: TensorProxy, a: TensorProxy) -> TensorProxy:
    """Return a gradient with the shape and dtype of its input, as torch's engine converts what a backward returns."""
    missing = gradient.ndim - a.ndim
    fits = missing >= 0 and all(m in (1, n) for m, n in zip(a.shape, gradient.shape[missing:]))
    if not fits or (is_complex_dtype(gradient.dtype) and not is_complex_dtype(a.dtype)):
        raise RuntimeError(f"returned an invalid gradient - got {gradient.shape} but expected {a.shape}")
    return sum_to(gradient, a)  # type: ignore[no-any-return]


# -- rules for tangents and batches -----------------------------------------------------------------------------------
def _give_rules(
    tracer: Tracer, sym: Symbol, cls: Any, ctx: TracedContext, inputs: tuple[Any, ...], forward: list[BoundSymbol]
) -> None:
    """Register the static methods `jvp` and `vmap` of `cls` as rules of its operation."""
    plain = torch.autograd.Function
    if cls.jvp is not plain.jvp:
        sym.jvp(_jvp_rule(tracer, cls, ctx, inputs, forward))
    if cls.vmap is not plain.vmap:
        sym.batch(_vmap_rule(tracer, cls, len(inputs)))


def _jvp_rule(tracer: Tracer, cls: Any, ctx: TracedContext, inputs: tuple[Any, ...], forward: list[BoundSymbol]) -> Any:
    trace = tracer.trace
    with trace.scope() as operations, tracer.without_gradients():
        with tracer.proxies():
            along = [
                TensorProxy(like=p) if isinstance(p, TensorProxy) and is_inexact_dtype(p.dtype) else None
                for p in inputs
            ]
        found = cls.jvp(ctx, *[None if t is None else tracer.wrap(t) for t in along])
        with tracer.recording():
            moved = tracer.unwrap(found)

    def rule(t: Any, out: Any, *args: Any) -> Any:
        names: dict[str, Any] = {p.name: q for p, q in zip(proxies_in(inputs), proxies_in(args))}
        for p, direction, tangent in zip(args, along, t):
            if direction is not None:
                names[direction.name] = zeros_of(p) if tangent is None else tangent
        # The rule computes saved values again: the call stays one operation, so its intermediate values are not known.
        for op in copy_operations([*forward, *operations], names, trace, new_numbers=True):
            trace.record(op)
        return map_proxies(moved, lambda p: names.get(p.name, p))

    return rule


class BatchInfo(NamedTuple):
    """The batch size and randomness that the `vmap` method of a custom function receives."""

    batch_size: int
    randomness: str


def _vmap_rule(tracer: Tracer, cls: Any, count: int) -> Any:
    def rule(b: Any, *args: Any) -> Any:
        if any(a in b for a in args[count:]):
            return NotImplemented  # a captured value is batched, which the static method does not see
        args = args[:count]
        in_dims = tuple([0 if a in b else None for a in args])
        handles = tracer.wrap(args)
        with tracer.user_code():
            found = cls.vmap(BatchInfo(b.size, b.randomness), in_dims, *handles)
        if not (isinstance(found, tuple) and len(found) == 2):
            raise RuntimeError(
                f"{cls.__name__}.vmap returned {type(found).__name__}, but must return the outputs and their batch "
                "dimensions: (outputs, out_dims)"
            )
        outputs, out_dims = found
        several = isinstance(outputs, tuple)
        values = tracer.unwrap(outputs if several else (outputs,))
        dims = out_dims if isinstance(out_dims, tuple) else (out_dims,) * len(values)
        placed = tuple([_first(b, x, d) for x, d in zip(values, dims)])
        return placed if several else placed[0]

    return rule


def _first(b: Any, x: Any, dim: int | None) -> Any:
    if not isinstance(x, TensorProxy):
        return x
    return b.expand(x) if dim is None else b.add(x.movedim(dim, 0) if dim else x)
