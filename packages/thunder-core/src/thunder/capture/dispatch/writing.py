# SPDX-License-Identifier: Apache-2.0
"""Writes to tensors: in-place operations, `out=` arguments, and custom operations that mutate their arguments."""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.capture.base.fallback import fall_back, torch_error
from thunder.capture.base.phase import TracerPhase
from thunder.capture.dispatch.opaque_operations import opaque_symbol
from thunder.capture.dispatch.registry import gives, handles
from thunder.capture.dispatch.torch_errors import check_write
from thunder.capture.tensors import aliasing
from thunder.capture.tensors.handle import Handle, Storage
from thunder.capture.tensors.leaf_tensors import set_requires_grad
from thunder.capture.tensors.tracer import Tracer, tensors_in
from thunder.core.proxies import OPERATORS, TensorProxy
from thunder.core.symbol import map_proxies
from thunder.core.symint.numbers import SymbolicNumber
from thunder.executors.torchex.fused_updates import FUSED_UPDATES, fused_update
from thunder.torch.private import DisableTorchFunction, OpOverload, OpOverloadPacket

__all__ = ["assign", "assign_out", "call_mutating", "copy_", "mutating_overload", "writes_in_place", "writes_to_target"]

_IN_PLACE_OPERATORS = frozenset({"__setitem__", "__idiv__", *[f"__i{name.strip('_')}__" for name in OPERATORS]})


def writes_in_place(name: str) -> bool:
    """Check whether `name` follows torch's convention for in-place functions, e.g. `add_`."""
    return name.endswith("_") and not name.endswith("__")


def writes_to_target(name: str) -> bool:
    """Check whether the function or the operator of Python (`x[0] = y`, `x += y`) of this name is in place."""
    return writes_in_place(name) or name in _IN_PLACE_OPERATORS


def assign(tracer: Tracer, target: torch.Tensor, result: Any, name: str, *, ordered: bool = False) -> torch.Tensor:
    """Write `result` into `target`, as the in-place operation `name` does, and return `target`.

    `ordered` says that the elements of `result` are known to be in the order of the target's memory.
    """
    handle = tracer.handle_of(target)
    _check_leaf(tracer, handle, name)
    detaches = name == "detach_" and not handle._views  # torch does not detach views in place
    if not detaches:
        result = _keeping_gradients(tracer, handle, result, name)
    value = aliasing.read(result) if isinstance(result, Handle) else result
    if isinstance(result, Handle) and result._needs_grad:
        # A write that autograd does not see must not hand the gradient on.
        handle._storage.needs_grad = True
        handle._storage.hides_gradient |= any(view.hides_writes for view in handle._views)
    with tracer.recording():
        aliasing.write(handle, value, name, ordered=ordered)
    if detaches or (isinstance(result, Handle) and result._needs_grad):
        set_requires_grad(handle, not detaches)
    return target


def _check_leaf(tracer: Tracer, handle: Handle, name: str) -> None:
    if not torch.is_grad_enabled() or not _is_of_leaf(tracer, handle):
        return
    if handle._views:
        aliasing.split_off_copy(handle)  # e.g. `leaf.contiguous()`, if the leaf is not contiguous
        if not _is_of_leaf(tracer, handle):
            return
    view = handle._views and handle not in tracer.leaves
    what = "a view of a leaf Variable that requires grad" if view else "a leaf Variable that requires grad"
    raise torch_error(f"{what} is being used in an in-place operation. (in {name}; use torch.no_grad())")


def _is_of_leaf(tracer: Tracer, handle: Handle) -> bool:
    """Check whether autograd sees writes to a handle as writes to a leaf that requires grad."""
    if tracer.leaves.seen_through(handle):
        return True
    owner = None if any(view.hides_writes for view in handle._views) else tracer.owner_of(handle)
    return owner is not None and owner.tensor.requires_grad and tracer.is_leaf(owner.tensor)


def assign_out(tracer: Tracer, out: Any, result: Any, call: tuple[Any, Any, Any]) -> Any:
    """Write `result`, a tensor or a sequence of tensors, into the `out=` argument, and return that argument.

    `call` is the function with its arguments but `out`: torch decides whether a result may be converted for `out`.
    """
    func, args, kwargs = call
    outs, results = [list(x) if isinstance(x, (tuple, list)) else [x] for x in (out, result)]
    given = {id(x) for x in tensors_in(args, kwargs)}
    if any(r.dtype is not o.dtype or id(o) in given for o, r in zip(outs, results)):
        check_write(func, args, kwargs, out)
    return _assign_out(tracer, out, result, getattr(func, "__name__", "out="))


def _assign_out(tracer: Tracer, out: Any, result: Any, name: str) -> Any:
    if isinstance(out, (tuple, list)):
        return type(result)(_assign_out(tracer, o, r, name) for o, r in zip(out, result))
    handle = tracer.handle_of(out)
    resized = isinstance(result, Handle) and tuple(handle.shape) != tuple(result.shape)
    if resized:
        _resize(tracer, handle, result, name)
    assign(tracer, out, result, name, ordered=resized)
    if resized:
        handle._storage.origin = handle._storage.value  # a resized tensor gets the strides of the result
    return out


def _keeping_gradients(tracer: Tracer, target: Handle, result: Any, name: str) -> Any:
    """Make `result` require grad if `target` does, because an in-place write keeps `requires_grad` in eager mode.

    The returned value is `where(False, target, result)`, so that the gradient that flows to the old value is zero.
    """
    if (
        not isinstance(result, Handle)
        or (result._needs_grad and not _overwrites(tracer, target, result, name))
        or not target._needs_grad
        or not torch.is_grad_enabled()
        or not tracer.detaching
        or not _fits(result, target)
    ):
        return result
    never = tracer.call_symbol(ltorch.zeros, ((),), {"dtype": torch.bool, "device": target.device})
    result = result if result.dtype is target.dtype else tracer.call_symbol(ltorch.to, (result, target.dtype), {})
    return tracer.call_symbol(ltorch.where, (never, target, result), {})


def _overwrites(tracer: Tracer, target: Handle, result: Handle, name: str) -> bool:
    """Check whether the result of an in-place operation does not depend on the old value."""
    made_by = tracer.producer(result._value) if name == "__setitem__" else None
    parts = () if made_by is None else made_by.subsymbols
    return name == "copy_" or (bool(parts) and all(target._value.name not in part.arg_names for part in parts))


def _fits(result: Handle, target: Handle) -> bool:
    have, want = tuple(result.shape), tuple(target.shape)
    return len(have) <= len(want) and all(n in (1, m) for n, m in zip(have[::-1], want[::-1]))


def _resize(tracer: Tracer, handle: Handle, result: Handle, name: str) -> None:
    """Resize the `out=` tensor `handle` to the shape of `result`, as torch does."""
    if handle._views or handle._parent is not None or handle._storage.source is not None:
        fall_back(
            f"{name} is called with out= of shape {tuple(handle.shape)} for a result of shape "
            f"{tuple(result.shape)}, which resizes an input or a tensor that shares its memory"
        )
    if handle.numel() != 0:
        warnings.warn(
            f"An output with one or more elements was resized since it had shape {list(handle.shape)}, which does not "
            f"match the required output shape {list(result.shape)}. This behavior is deprecated, and in a future "
            "PyTorch release outputs will not be resized unless they have zero elements.",
            stacklevel=2,
        )
    with tracer.recording():
        shape, before = aliasing.read(result).shape, handle._value
        value = ltorch.full(shape, 0, dtype=before.dtype, device=before.device)  # the old elements are lost
    handle._storage, handle._value, handle._version_seen = Storage(value), value, 0
    shaped = tracer.wrap(value)
    with DisableTorchFunction():
        handle.data = shaped


# -- whole tensors ----------------------------------------------------------------------------------------------------
@handles(torch.Tensor.copy_, traced=True)
def copy_(tracer: Tracer, target: Any, source: Any, non_blocking: bool = False) -> Any:
    if not isinstance(source, torch.Tensor):
        return _fill_(tracer, target, source)
    source = tracer.handle_of(source)
    value = source.to(device=target.device, dtype=target.dtype)
    if value is source and value.shape == target.shape:  # otherwise broadcasting allocates new memory
        value = tracer.call_symbol(ltorch.clone, (source,), {})
    return assign(tracer, target, value, "copy_")


@handles(torch.Tensor.zero_, torch.zero_, traced=True)
def _zero_(tracer: Tracer, target: Any) -> Any:
    return assign(tracer, target, torch.zeros_like(target), "zero_", ordered=True)


@handles(torch.Tensor.fill_, torch.fill_, traced=True)
def _fill_(tracer: Tracer, target: Any, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.dim() > 0:
            raise RuntimeError(
                f"fill_ only supports 0-dimension value tensor but got tensor with {value.dim()} dimensions."
            )
        return copy_(tracer, target, value)
    return assign(tracer, target, torch.full_like(target, value), "fill_", ordered=True)


# -- custom operations that write to their arguments ------------------------------------------------------------------
# Functions that write to arguments without saying so in their schema.
_UNDECLARED_WRITES = dict.fromkeys(
    ("aten::batch_norm", "aten::instance_norm", "aten::native_batch_norm"), ("running_mean", "running_var")
)


def mutating_overload(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the overload in `torch.ops` that a call of `func` stands for if it writes to its arguments, else None."""
    if isinstance(func, types.BuiltinFunctionType):
        with TracerPhase():  # torch looks overloads up by C functions
            func = _overload_of_builtin(func, args, kwargs)
    if isinstance(func, OpOverloadPacket):
        func = getattr(func, "default", None)
    schema = getattr(func, "_schema", None)
    return func if isinstance(func, OpOverload) and schema is not None and _written(schema) else None


def _written(schema: Any) -> list[str]:
    declared = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return declared or list(_UNDECLARED_WRITES.get(schema.name, ()))


# These change the metadata of their argument.
_RESIZES = frozenset({"_resize_output_", "resize_as_sparse_"})


def _overload_of_builtin(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the overload that a call of `torch.f` is of, where some overload writes to positional arguments."""
    name = func.__name__
    packet = getattr(torch.ops.aten, name, None)
    if name in _RESIZES or not isinstance(packet, OpOverloadPacket):
        return None
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
    if not any(_written(s) for s in schemas if not any(a.is_out for a in s.arguments)):
        return None
    args, kwargs = _without_symbols((args, kwargs))
    with DisableTorchFunction():
        return getattr(packet, torch._C._jit_resolve_packet(f"aten::{name}", *args, **kwargs))


def _without_symbols(x: Any) -> Any:
    """Return arguments with plain numbers of the same classes as symbolic ones, whose values torch would read."""
    if isinstance(x, SymbolicNumber):
        return x.__class__()
    if isinstance(x, dict):
        return {key: _without_symbols(item) for key, item in x.items()}
    return type(x)([_without_symbols(item) for item in x]) if type(x) in (tuple, list) else x


def call_mutating(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `func` on copies of the arguments that it writes to, then assign the copies to these arguments."""
    arguments = func._schema.arguments
    given = dict(zip((a.name for a in arguments if not a.kwarg_only), args)) | kwargs
    written = [name for name in _written(func._schema) if given.get(name) is not None]
    if func._schema.name.startswith("aten::_fused_"):
        # Gradients are only divided by a scale, and step counts are not written, although the schema says so.
        unchanged = {"state_steps"} if given.get("grad_scale") is not None else {"state_steps", "grads"}
        written = [name for name in written if name not in unchanged]
    tracked = torch.is_grad_enabled() and any(x.requires_grad for x in tensors_in((given,), {}))
    fused = func._schema.name in FUSED_UPDATES and not tracked and not tracer.parts
    sym = fused_update(func, tuple(written)) if fused else opaque_symbol(_on_copies(func, tuple(written)))
    with torch.set_grad_enabled(torch.is_grad_enabled() and func.namespace == "aten"):  # others may have no gradient
        results = tracer.call_symbol(sym, (given,), {})
    with torch.no_grad():
        for target, value in zip([given[name] for name in written], results):
            pairs = zip(target, value) if isinstance(target, (tuple, list)) else [(target, value)]
            for one, new in pairs:
                assign(tracer, one, new, func._schema.name, ordered=True)  # a copy of the target
    results = results[len(written) :]
    out = [_aliased(r, given, arguments, x) for r, x in zip_longest(func._schema.returns, results)]
    return None if not out else out[0] if len(out) == 1 else tuple(out)


def _aliased(returned: Any, given: dict[str, Any], arguments: Sequence[Any], result: Any) -> Any:
    """Return `result`, or the argument that this result aliases according to the schema."""
    if returned.alias_info is not None:
        for a in arguments:
            if a.alias_info is not None and a.alias_info.before_set & returned.alias_info.before_set:
                return given.get(a.name, result)
    return result


@functools.cache
def _on_copies(func: Any, written: tuple[str, ...]) -> Callable[[dict[str, Any]], list[Any]]:
    """Return a function that calls `func` on copies of the arguments named in `written`.

    The function returns the copies after the call, followed by the results of `func`.
    """
    positional = {a.name for a in func._schema.arguments if not a.kwarg_only}

    def run(given: dict[str, Any]) -> list[Any]:
        copies = {
            name: [t.clone() for t in given[name]] if isinstance(given[name], (tuple, list)) else given[name].clone()
            for name in written
        }
        call = {**given, **copies}
        out = func(
            *[call[name] for name in call if name in positional],
            **{name: x for name, x in call.items() if name not in positional},
        )
        results = [] if out is None else list(out) if isinstance(out, (tuple, list)) else [out]
        return [*copies.values(), *results]

    run.__name__ = f"{func._schema.name.rpartition(':')[2]}_on_copies"
    returns_written = func._schema.name in _WITHOUT_FAKE_KERNEL
    # Custom operations and optimizers' kernels without results are constants for autograd (`call_mutating`), and their
    # metadata is known. Numbers among their arguments, e.g. step counts, are then no constants of the program.
    no_result = not func._schema.returns and (func.namespace != "aten" or func._schema.name in FUSED_UPDATES)
    if returns_written or no_result:

        def new_like(p: Any) -> TensorProxy:
            return TensorProxy(like=p)

        def metadata(given: dict[str, Any]) -> list[Any]:
            copies = [map_proxies(given[name], new_like) for name in written]
            return [*copies, *copies] if returns_written else copies

        draws = torch.Tag.nondeterministic_seeded in func.tags
        gives(run, draws=lambda given: draws)(metadata)
    return run


_WITHOUT_FAKE_KERNEL = frozenset(
    {"aten::_sobol_engine_initialize_state_", "aten::_sobol_engine_scramble_", "aten::_sobol_engine_ff_"}
)
