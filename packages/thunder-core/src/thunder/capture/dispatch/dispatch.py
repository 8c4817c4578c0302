# SPDX-License-Identifier: Apache-2.0
"""From torch functions to operations: what happens when traced user code calls torch.

Each call goes to the first that knows it: metadata of a handle (answered by torch from the handle itself), what thunder
handles by hand (`special.py`), an executor's replacement, the torch language's symbol, the functional form of an
in-place method or of `out=`, the Python source of a torch function that thunder does not know (traced through), and
last an opaque operation that torch runs.
"""

from __future__ import annotations

import math
import types
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

import thunder.torch as ltorch
from thunder.capture.base.fallback import fall_back
from thunder.capture.dispatch.handlers import SPECIAL, SPECIAL_PROPERTIES, set_property
from thunder.capture.dispatch.opaque import call_opaque, call_python_source
from thunder.capture.dispatch.torch_errors import torchs_error
from thunder.capture.dispatch.writing import assign, assign_out, writes_in_place
from thunder.capture.tensors.tracer import Tracer, annotate, needs_grad, tensors_in, user_line
from thunder.core.errors import TracingError
from thunder.core.proxies import OPERATORS
from thunder.core.state import state
from thunder.core.symbol import OpTags, Symbol
from thunder.torch.base import language, torch_function_map
from thunder.torch.private import DisableTorchFunctionSubclass

__all__ = ["TracingMode", "call_torch_function"]

# Answered from the handle's own metadata, which is exact.
_METADATA_METHODS = {
    "size", "dim", "ndimension", "numel", "nelement", "is_floating_point", "is_complex", "is_signed", "element_size",
    "get_device", "is_inference", "__len__", "has_names", "is_shared", "is_conj", "is_neg", "__hash__", "is_same_size",
    "is_set_to", "__repr__", "__format__", "__dir__", "is_nonzero_", "_is_view", "__setstate__",
}  # fmt: skip
_METADATA_PROPERTIES = {
    "shape", "ndim", "dtype", "device", "layout", "is_cuda", "is_cpu", "is_meta", "is_sparse", "is_sparse_csr",
    "is_quantized", "is_mkldnn", "is_xpu", "is_mps", "is_ipu", "is_maia", "is_nested", "is_mtia", "is_vulkan", "is_xla",
    "names", "itemsize", "nbytes", "requires_grad", "is_leaf", "retains_grad", "output_nr", "name", "_base", "_version",
    "grad_fn", "__dict__", "__class__", "_cdata", "_backward_hooks", "_post_accumulate_grad_hooks", "is_hpu",
}  # fmt: skip

# Python's operators on tensors, by the name of torch's method.
_DUNDER: dict[str, tuple[str, bool]] = {dunder: (method, False) for dunder, method in OPERATORS.items()}
_DUNDER.update(
    {
        f"__r{d.strip('_')}__": (m, True)
        for d, m in OPERATORS.items()
        if d.strip("_") not in {"neg", "pos", "abs", "invert"}
    }
)
_INPLACE_DUNDER = {f"__i{d.strip('_')}__": m for d, m in OPERATORS.items()}
_DUNDER["__div__"], _DUNDER["__rdiv__"] = ("true_divide", False), ("true_divide", True)


def _size(shape: Any, dim: int | None = None) -> Any:
    if dim is None:
        return torch.Size(shape)
    if not -len(shape) <= dim < len(shape):
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-len(shape)}, {len(shape) - 1}], but got {dim})"
        )
    return shape[dim]


# What is asked of a tensor whose sizes are symbolic, as functions of its shape.
SIZE_PROPERTIES: dict[str, Any] = {"shape": torch.Size, "ndim": len}
SIZE_METHODS: dict[str, Any] = {
    "size": _size, "numel": math.prod, "nelement": math.prod, "dim": len, "ndimension": len,
    "__len__": lambda shape: int(shape[0]) if shape else _no_length(),
}  # fmt: skip

# What else depends on them: C++ asks a handle for each that it needs (`Handle.__torch_dispatch__`).
_OF_SIZES = frozenset({"nbytes", "is_same_size", "is_set_to"})


def _no_length() -> Any:
    raise TypeError("len() of a 0-d tensor")


class TracingMode(TorchFunctionMode):
    """Catches every torch function that user code calls while it is traced."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if state.frontend is None:
            # A symbol that user code called directly is being evaluated: what it asks torch (a device, a dtype) is no
            # operation of the program.
            return func(*args, **(kwargs or {}))
        if types:
            for owner in types:
                if owner.__torch_function__ is not _BY_DEFAULT and _is_of_the_users(owner):
                    with self:
                        result = owner.__torch_function__(func, types, args, kwargs or {})
                    if result is not NotImplemented:
                        return result
        return call_torch_function(func, args, kwargs or {})


_BY_DEFAULT = torch.Tensor.__torch_function__


def _is_of_the_users(cls: type) -> bool:
    """Whether a class that is no tensor's says by itself what torch functions do with its instances."""
    return not issubclass(cls, torch.Tensor)


def _active_tracer() -> Tracer:
    tracer = state.frontend
    if isinstance(tracer, Tracer):
        return tracer
    raise TracingError(
        "a tensor from inside a traced function was used outside it: it was stored somewhere while the function was "
        "traced and has no data. Return it from the function instead"
    )


def call_torch_function(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a call of the torch function `func` by user code gives."""
    tracer = _active_tracer()
    try:
        if kwargs.get("requires_grad"):  # of a factory, say
            made = _dispatch(tracer, func, args, {k: v for k, v in kwargs.items() if k != "requires_grad"})
            return made.requires_grad_()
        return _dispatch(tracer, func, args, kwargs)
    except Exception as error:
        theirs = torchs_error(func, args, kwargs, error)
        if theirs is not None:
            annotate(theirs, user_line())
            raise theirs from error
        annotate(error, user_line())
        raise


def _dispatch(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = getattr(func, "__name__", "")
    if name == "__get__" or name == "__set__":
        prop = getattr(func.__self__, "__name__", "")
        if name == "__set__":
            return set_property(tracer, prop, *args)
        if prop in SPECIAL_PROPERTIES:
            return SPECIAL_PROPERTIES[prop](tracer, args[0])
        if prop in _METADATA_PROPERTIES:
            if tracer.sizes_are_symbolic(args[0]):
                if prop in SIZE_PROPERTIES:
                    return SIZE_PROPERTIES[prop](tracer.shape_of(args[0]))
                args = (tracer.handle_of(args[0]),) if prop in _OF_SIZES else args
            return _natively(func, args, kwargs)
        found = language.properties.get(prop)
        if found is not None:
            return _call_language(tracer, found, args, kwargs)
        return call_opaque(tracer, func, args, kwargs)
    special = SPECIAL.get(func)
    if special is not None:
        result = special(tracer, *args, **kwargs)
        if result is not NotImplemented:
            return result
    for executor in tracer.executors:
        replacement = executor.lookaside(func)
        if replacement is not None:
            return tracer.call_symbol(replacement, args, kwargs)
    sym = torch_function_map().get(func)
    if sym is not None:
        result = call_functional(tracer, sym, args, kwargs)
        if OpTags.ELEMENTWISE_OP in sym.tags and isinstance(result, (int, float, complex)):
            result = tracer.call_symbol(ltorch.full, ((), result), {"device": "cpu"})  # of numbers alone, as torch does
        # Fills such as `uniform_` have no form that does not write: the symbol gives what is written.
        return assign(tracer, args[0], result, name) if writes_in_place(name) else result
    if name in _METADATA_METHODS:
        if any(map(tracer.sizes_are_symbolic, args)):
            if name in SIZE_METHODS:
                return SIZE_METHODS[name](tracer.shape_of(args[0]), *args[1:], **kwargs)
            if name in _OF_SIZES:
                args = tuple([tracer.handle_of(x) if isinstance(x, torch.Tensor) else x for x in args])
        return _natively(func, args, kwargs)
    if name in _DUNDER or name in _INPLACE_DUNDER:
        return _operator(tracer, name, args)
    inplace = _functional_form(func, name)
    if inplace is not None:
        return assign(tracer, args[0], tracer.call_symbol(inplace, args, kwargs), name)
    method = language.methods.get(name)
    if method is not None and getattr(torch.Tensor, name, None) is func:
        return _call_language(tracer, method, args, kwargs)
    if isinstance(func, types.FunctionType):
        return call_python_source(func, args, kwargs)
    return call_opaque(tracer, func, args, kwargs)


def _natively(func: Any, args: Any, kwargs: Any) -> Any:
    with DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


def _operator(tracer: Tracer, name: str, args: tuple[Any, ...]) -> Any:
    if name in _INPLACE_DUNDER:
        return assign(tracer, args[0], _call_language(tracer, language.methods[_INPLACE_DUNDER[name]], args, {}), name)
    method, swapped = _DUNDER[name]
    return _call_language(tracer, language.methods[method], args[::-1] if swapped else args, {})


def _functional_form(func: Any, name: str) -> Symbol | None:
    """The operation whose result an in-place function (`add_`, `torch.relu_`) writes into its first argument."""
    if not writes_in_place(name):
        return None
    base = name[:-1]
    for owner in (torch.Tensor, torch, torch.nn.functional):
        if getattr(owner, name, None) is func:
            # By the in-place name first: what `bernoulli_` puts into a tensor is not `bernoulli` of it.
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
    grad = any(needs_grad(t) for t in tensors_in(args, kwargs))
    with tracer.recording():
        args, kwargs = tracer.unwrap(args), tracer.unwrap(kwargs)
        out = fn(*args, **kwargs)
        if grad and tracer.detaching and not torch.is_grad_enabled():
            out = tracer.detached(out, args, kwargs)
        return tracer.wrap(out, requires_grad=grad and torch.is_grad_enabled())


def call_functional(tracer: Tracer, sym: Symbol, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls an operation that has no in-place form itself, for a call that may ask for it with `out=` or `inplace=`."""
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
        # An option of torch's that the operation does not know (a generator, say): torch runs the call as it is.
        given = kwargs if out is None else {**kwargs, "out": out}
        return call_opaque(tracer, sym.reference, args, given)
    if "requires_grad" not in sym.bind.known:
        kwargs.pop("requires_grad", None)
    whole = args, kwargs
    inplace, args, kwargs = _without_inplace(sym, args, kwargs)
    if inplace and sym.module is None:
        _let_refuse(tracer, sym, *whole)
    result = tracer.call_symbol(sym, args, kwargs)
    if inplace:
        return assign(tracer, args[0] if args else kwargs["input"], result, sym.name)
    if out is not None:
        return assign_out(tracer, out, result, sym.name)
    return result


def _without_inplace(
    sym: Symbol, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[bool, tuple[Any, ...], dict[str, Any]]:
    """Whether a call asks to be done in place, and the call that does not: what is recorded never writes."""
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
    """Shows an operation that was declared outside of thunder that `inplace` is asked for: it may not want that."""
    with tracer.recording(), tracer.trace.scope():
        sym(*tracer.unwrap(args), **tracer.unwrap(kwargs))
