# SPDX-License-Identifier: Apache-2.0
"""Dispatch: turn each call of torch in traced user code into operations of the trace.

Dispatch tries these in order, and the first match runs the call:

1. a handler (`registry.py`), or for a property its metadata, which torch reads from the handle;
2. an executor's replacement of the function (`lookaside`);
3. the function's symbol in the torch language;
4. a metadata method such as `size`, which torch answers from the handle;
5. for an in-place function or operator, the functional form, whose result is assigned;
6. for a method or a torch function written in Python, its source, which is traced;
7. an opaque operation, which torch runs.
"""

from __future__ import annotations

import types
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.capture.base.fallback import RunsEagerly, fall_back
from thunder.capture.base.modes import attempt
from thunder.capture.base.phase import pause_reads, resume_reads
from thunder.capture.base.user_lines import annotate, user_line
from thunder.capture.dispatch.collectives import call_collective
from thunder.capture.dispatch.dtensor_lists import call_on_lists, takes_lists
from thunder.capture.dispatch.dtensors import call_on_dtensors, has_dtensors
from thunder.capture.dispatch.initializers import draw_in_order_of_memory
from thunder.capture.dispatch.metadata import (
    METADATA_METHODS,
    METADATA_PROPERTIES,
    OF_SIZES,
    SIZE_METHODS,
    SIZE_PROPERTIES,
    layout_of,
)
from thunder.capture.dispatch.opaque import call_opaque, call_python_source
from thunder.capture.dispatch.opaque_operations import is_collective
from thunder.capture.dispatch.registry import handler_of, property_handler
from thunder.capture.dispatch.scalars import call_with_numbers
from thunder.capture.dispatch.subclasses import with_subclass
from thunder.capture.dispatch.torch_errors import Answer, check_write, reads_numbers, torchs_answer
from thunder.capture.dispatch.writing import assign, assign_out, writes_in_place, writes_to_target
from thunder.capture.tensors.handle import Handle
from thunder.capture.tensors.tracer import Tracer, needs_grad, tensors_in
from thunder.core.errors import DataDependentError, TracingError, UnsupportedError
from thunder.core.proxies import OPERATORS
from thunder.core.symbol import OpTags, Symbol
from thunder.runtime.torch_originals import replaced_inside
from thunder.torch.base import language, torch_function_map
from thunder.torch.private import DisableTorchFunction, DisableTorchFunctionSubclass

__all__ = ["call_torch_function"]

# Maps Python's operator methods to torch's method, and to whether the operands are swapped (`__radd__`).
_DUNDER: dict[str, tuple[str, bool]] = {dunder: (method, False) for dunder, method in OPERATORS.items()}
_DUNDER.update(
    {
        f"__r{d.strip('_')}__": (m, True)
        for d, m in OPERATORS.items()
        if d.strip("_") not in {"neg", "pos", "abs", "invert"}
    }
)
# Types of arguments that run no user code, whatever is done with them.
_PLAIN = frozenset({
    Handle, torch.Tensor, torch.nn.Parameter, int, float, bool, complex, str, type(None), torch.dtype, torch.device,
})  # fmt: skip
# Options of torch functions that are not those of operations.
_OPTIONS = frozenset({"out", "pin_memory", "layout", "requires_grad"})
_INPLACE_DUNDER = {f"__i{d.strip('_')}__": m for d, m in OPERATORS.items()}
_DUNDER["__div__"] = ("true_divide", False)
del _DUNDER["__rtruediv__"]
_RECIPROCAL = frozenset({"__rdiv__", "__rtruediv__"})  # torch multiplies with the reciprocal, which rounds twice


def call_torch_function(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the torch function `func` for user code."""
    if has_dtensors(args, kwargs):
        ours = call_on_lists if takes_lists(func) else call_on_dtensors
        result = ours(tracer, func, args, kwargs, call_torch_function)
        if result is not NotImplemented:
            return result
    before = tracer.refusal
    tracer.functions[func] = tracer.functions.get(func, 0) + 1
    if tracer.replaced and isinstance(func, types.FunctionType):
        inside = replaced_inside(func, tracer.replaced)
        if inside is not None:
            fall_back(f"{inside} has been replaced, and torch's own function {func.__name__} may call it")
    try:
        if kwargs.get("requires_grad"):  # e.g. of a factory
            made = _dispatch(tracer, func, args, {k: v for k, v in kwargs.items() if k != "requires_grad"})
            return made.requires_grad_()
        result = _dispatch(tracer, func, args, dict(kwargs))
        return with_subclass(tracer, func, args, kwargs, result) if tracer.subclasses else result
    except Exception as error:
        if any(executor.lookaside(func) is not None for executor in tracer.executors):
            annotate(error, user_line())
            raise  # a defect of a plugin's operation: torch must not hide it
        if not isinstance(error, DataDependentError) and reads_numbers(func, args, kwargs, error):
            tracer.refusal = before
            try:
                return _dispatch(tracer, func, *call_with_numbers(tracer, func, args, kwargs))
            except (RunsEagerly, DataDependentError):
                raise
            except Exception:  # torch's answer, on zeros, would depend on the number: eager mode decides
                return _by_torch(tracer, func, args, kwargs, error, opaque=False)
        answer = torchs_answer(func, args, kwargs, error)
        if isinstance(answer, Exception):
            annotate(answer, user_line())
            raise answer from None
        if answer in (Answer.ACCEPTS, Answer.ALIASES) or isinstance(error, UnsupportedError):
            tracer.refusal = before
            return _by_torch(tracer, func, args, kwargs, error, opaque=answer is Answer.ACCEPTS)
        if _is_decided(tracer, error):
            tracer.refusal = before
            return call_torch_function(tracer, func, args, kwargs)
        annotate(error, user_line())
        raise


def _is_decided(tracer: Tracer, error: Exception) -> bool:
    """Decide the condition that an operation needs. Return whether it was not known when the operation was called."""
    asked = getattr(error, "condition", None)
    return asked is not None and tracer.decisions is not None and tracer.decisions.answers(asked)


def _by_torch(
    tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], refused: Exception, *, opaque: bool
) -> Any:
    """Call a function that torch accepts and its operation in thunder rejected with `refused`.

    Trace through its Python source if it has one, else record an opaque operation. If neither is possible, fall back.
    """
    name = getattr(func, "__name__", str(func))
    ways = [call_opaque] if opaque else []
    if isinstance(func, types.FunctionType):
        ways.insert(0, call_python_source)
    if writes_to_target(name):
        ways = []  # an opaque operation would lose the write; eager mode also checks what the target is a view of
    before = tracer.refusal
    for way in ways:
        try:
            with attempt():
                return way(tracer, func, args, dict(kwargs))
        except RunsEagerly:
            raise
        except Exception:  # e.g. the Python source branches on values, or the result's shape depends on them
            tracer.refusal = before
    annotate(refused, user_line())
    return fall_back(f"the program calls {name}, which cannot be compiled here ({refused})")


def _dispatch(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = getattr(func, "__name__", "")
    if name == "__get__" or name == "__set__":
        prop = getattr(func.__self__, "__name__", "")
        if name == "__set__":
            return _set_property(tracer, prop, *args)
        handler = property_handler(prop)
        if handler is not None:
            return handler(tracer, args[0])
        if prop in METADATA_PROPERTIES:
            if tracer.sizes_are_symbolic(args[0]):
                if prop in SIZE_PROPERTIES:
                    return SIZE_PROPERTIES[prop](tracer.shape_of(args[0]))
                args = (tracer.handle_of(args[0]),) if prop in OF_SIZES else args
            return _natively(func, args, kwargs)
        found = language.properties.get(prop)
        if found is not None:
            return _call_language(tracer, found, args, kwargs)
        return call_opaque(tracer, func, args, kwargs)
    handler = handler_of(func)
    if handler is not None:
        result = handler(tracer, *args, **kwargs)
        if result is not NotImplemented:
            return result
    if _PLAIN.issuperset(map(type, args)) and (not kwargs or _PLAIN.issuperset(map(type, kwargs.values()))):
        paused = pause_reads()  # no user code can run, and reporting thunder's own calls would take long
        try:
            sym = _plain_symbol(tracer, func, name, args, kwargs)
            if sym is not None:
                return _as_tensor(tracer, sym, tracer.call_symbol(sym, args, kwargs))
        finally:
            resume_reads(paused)
    for executor in tracer.executors:
        replacement = executor.lookaside(func)
        if replacement is not None:
            return tracer.call_symbol(replacement, args, kwargs)
    sym = torch_function_map().get(func)
    if sym is not None:
        if writes_in_place(name) and OpTags.RANDOM_OP in sym.tags:
            drawn = draw_in_order_of_memory(tracer, func, args, kwargs)
            if drawn is not NotImplemented:
                return drawn
        result = _as_tensor(tracer, sym, call_functional(tracer, sym, args, kwargs))
        # Fills such as `uniform_` have no functional form: their symbol returns the values to write.
        return assign(tracer, args[0], result, name) if writes_in_place(name) else result
    if name in METADATA_METHODS:
        if any(map(tracer.sizes_are_symbolic, args)):
            if name in SIZE_METHODS:
                return SIZE_METHODS[name](tracer.shape_of(args[0]), *args[1:], **kwargs)
            if name in OF_SIZES:
                args = tuple([tracer.handle_of(x) if isinstance(x, torch.Tensor) else x for x in args])
        return _natively(func, args, kwargs)
    if name in _DUNDER or name in _INPLACE_DUNDER or name in _RECIPROCAL:
        return _operator(tracer, func, name, args)
    inplace = _functional_form(func, name)
    if inplace is not None:
        result = tracer.call_symbol(inplace, args, kwargs)
        if result.dtype is not args[0].dtype:
            check_write(func, args, kwargs)
        return assign(tracer, args[0], result, name)
    method = language.methods.get(name)
    if method is not None and getattr(torch.Tensor, name, None) is func:
        return _call_language(tracer, method, args, kwargs)
    if isinstance(func, types.FunctionType):
        return call_python_source(tracer, func, args, kwargs)
    if is_collective(func):
        return call_collective(tracer, func, args, kwargs)
    return call_opaque(tracer, func, args, kwargs)


def _plain_symbol(tracer: Tracer, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Symbol | None:
    """Return the operation that a call with plain arguments stands for; None if the call needs more than it."""
    if writes_in_place(name) or any(executor.lookaside(func) is not None for executor in tracer.executors):
        return None
    sym = torch_function_map().get(func)
    if sym is None or "inplace" in sym.bind.names or not _OPTIONS.isdisjoint(kwargs):
        return None
    return sym if sym.bind.accepts(args, kwargs) else None


def _as_tensor(tracer: Tracer, sym: Symbol, result: Any) -> Any:
    """Return the result of an operation. Torch returns a tensor even if all arguments are numbers."""
    if OpTags.ELEMENTWISE_OP in sym.tags and isinstance(result, (int, float, complex)):
        return tracer.call_symbol(ltorch.full, ((), result), {"device": "cpu"})
    return result


def _set_property(tracer: Tracer, name: str, target: Any, value: Any) -> None:
    handler = property_handler(name, assigned=True)
    if handler is None:
        raise TracingError(f"setting the attribute {name} of a tensor inside a traced function is not supported")
    handler(tracer, target, value)


def _natively(func: Any, args: Any, kwargs: Any) -> Any:
    with DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


def _operator(tracer: Tracer, func: Any, name: str, args: tuple[Any, ...]) -> Any:
    if not isinstance(args[0], torch.Tensor):
        return _natively(func, args, {})  # NotImplemented, or an error
    if name in _INPLACE_DUNDER:
        return assign(tracer, args[0], _call_language(tracer, language.methods[_INPLACE_DUNDER[name]], args, {}), name)
    if name in _RECIPROCAL:
        return _call_language(tracer, language.methods["mul"], (args[0].reciprocal(), args[1]), {})
    method, swapped = _DUNDER[name]
    return _call_language(tracer, language.methods[method], args[::-1] if swapped else args, {})


def _functional_form(func: Any, name: str) -> Symbol | None:
    """Return the operation whose result an in-place function (`add_`, `torch.relu_`) writes into its first argument."""
    if not writes_in_place(name):
        return None
    base = name[:-1]
    for owner in (torch.Tensor, torch, torch.nn.functional):
        if getattr(owner, name, None) is func:
            # The in-place name comes first: `x.bernoulli_()` does not write `x.bernoulli()` into `x`.
            found = (
                language.methods.get(name)
                or torch_function_map().get(getattr(owner, base, None))
                or language.methods.get(base)
            )
            if isinstance(found, Symbol):
                return found
    return None


def _call_language(tracer: Tracer, fn: Any, args: Any, kwargs: Any) -> Any:
    if isinstance(fn, Symbol):
        return tracer.call_symbol(fn, args, kwargs)
    tensors = tensors_in(args, kwargs)
    grad = any(needs_grad(t) for t in tensors)
    with tracer.recording():
        tracer.communication.check_reads(map(tracer.handle_of, tensors))
        args, kwargs = tracer.unwrap(args), tracer.unwrap(kwargs)
        out = fn(*args, **kwargs)
        if grad and tracer.detaching and not torch.is_grad_enabled():
            out = tracer.detached(out, args, kwargs)
        return tracer.wrap(out, requires_grad=grad and torch.is_grad_enabled())


def call_functional(tracer: Tracer, sym: Symbol, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the operation `sym`, and assign its result to a tensor if the call passes `out=` or `inplace=True`."""
    out = kwargs.pop("out", None) if "out" in kwargs and "out" not in sym.bind.known else None
    for option in ("pin_memory", "layout"):
        if option in kwargs and option not in sym.bind.known:
            value = kwargs.pop(option)
            if value not in (None, False, torch.strided):
                fall_back(f"the program calls {sym.name} with {option}={value}")
    if (
        not sym.bind.accepts(args, {k: v for k, v in kwargs.items() if k != "requires_grad"})
        and sym.reference is not None
    ):
        # The operation does not support an option of the torch function, e.g. a generator: torch runs the call.
        given = kwargs if out is None else {**kwargs, "out": out}
        return call_opaque(tracer, sym.reference, args, given)
    if "requires_grad" not in sym.bind.known:
        kwargs.pop("requires_grad", None)
    whole = args, kwargs
    inplace, args, kwargs = _without_inplace(sym, args, kwargs)
    if inplace and sym.module is None:
        _let_refuse(tracer, sym, *whole)
    if out is not None and OpTags.RANDOM_OP in sym.tags and not _is_contiguous(tracer, out):
        fall_back(f"the program calls {sym.name} with an out= that is not contiguous")
    result = tracer.call_symbol(sym, args, kwargs)
    if inplace:
        return assign(tracer, args[0] if args else kwargs["input"], result, sym.name)
    if out is not None:
        return assign_out(tracer, out, result, (sym.reference or sym, *whole))
    return result


def _is_contiguous(tracer: Tracer, x: Any) -> bool:
    laid_out = layout_of(tracer, x)
    with DisableTorchFunction():  # the tracing mode may be active here
        return laid_out.is_contiguous()


def _without_inplace(
    sym: Symbol, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[bool, tuple[Any, ...], dict[str, Any]]:
    """Return the value of `inplace` in a call, and the arguments without it. Recorded operations never write."""
    names = sym.bind.names
    if "inplace" not in names:
        return False, args, kwargs
    if "inplace" in kwargs:
        return bool(kwargs["inplace"]), args, {k: v for k, v in kwargs.items() if k != "inplace"}
    position = names.index("inplace")
    if len(args) <= position:
        return False, args, kwargs
    rest = dict(zip(names[position + 1 :], args[position + 1 :]))
    return bool(args[position]), args[:position], {**rest, **kwargs}


def _let_refuse(tracer: Tracer, sym: Symbol, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Call an operation declared outside of thunder with `inplace`, so that its meta function can raise an error."""
    with tracer.recording(), tracer.trace.scope():
        sym(*tracer.unwrap(args), **tracer.unwrap(kwargs))
