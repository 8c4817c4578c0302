# SPDX-License-Identifier: Apache-2.0
"""Torch functions that have no symbol in thunder.

If the function is written in Python, its source runs on handles and is traced. Any other function becomes an opaque
operation (`opaque_operations.py`), which torch runs.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.overrides

import thunder.torch as ltorch
from thunder.capture.base.fallback import fall_back
from thunder.capture.base.phase import TracerPhase
from thunder.capture.base.tracing_mode import TracingMode
from thunder.capture.dispatch.opaque_operations import opaque_call
from thunder.capture.dispatch.writing import (
    assign,
    assign_out,
    call_mutating,
    mutating_overload,
    writes_in_place,
    writes_to_target,
)
from thunder.capture.tensors.handle import Handle
from thunder.capture.tensors.tracer import Tracer
from thunder.core.pytree import flat_items
from thunder.runtime.torch_private import SCRIPTED
from thunder.torch.private import FakeTensorMode, HigherOrderOperator

__all__ = ["call_opaque", "call_python_source", "leave_loop"]


# -- through Python source --------------------------------------------------------------------------------------------
def _never(*args: Any, **kwargs: Any) -> bool:
    return False


_OVERRIDE_CHECKS = {
    "has_torch_function": _never,
    "has_torch_function_unary": _never,
    "has_torch_function_variadic": _never,
}


# Modules may import these functions under other names.
_BY_IDENTITY = {id(getattr(torch.overrides, name, None)): answer for name, answer in _OVERRIDE_CHECKS.items()}


class _Seen:
    """A view of a module in which some attributes are replaced. The module itself stays unchanged."""

    def __init__(self, module: types.ModuleType, **replaced: Any):
        self.__dict__.update(replaced, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


_OVERRIDES = _Seen(torch.overrides, **_OVERRIDE_CHECKS)
_TORCH = _Seen(torch, overrides=_OVERRIDES)


_unchecked: dict[types.FunctionType, types.FunctionType] = {}


def _without_override_check(func: types.FunctionType) -> Callable[..., Any]:
    """Return a copy of `func` in which `has_torch_function` returns False, so that its body runs on handles.

    Functions of torch in its closure are copied in the same way, e.g. the two that `boolean_dispatch` chooses between.
    """
    known = _unchecked.get(func)
    if known is not None:
        return known
    scope = {**func.__globals__, **_OVERRIDE_CHECKS}
    scope.update((name, _BY_IDENTITY[id(x)]) for name, x in func.__globals__.items() if id(x) in _BY_IDENTITY)
    for name, module, seen in (("torch", torch, _TORCH), ("overrides", torch.overrides, _OVERRIDES)):
        if scope.get(name) is module:
            scope[name] = seen
    cells = func.__closure__ and tuple(types.CellType() for _ in func.__closure__)
    out = types.FunctionType(func.__code__, scope, func.__name__, func.__defaults__, cells)
    out.__kwdefaults__ = func.__kwdefaults__
    _unchecked[func] = out  # a function may close over itself
    for cell, original in zip(cells or (), func.__closure__ or ()):
        with contextlib.suppress(ValueError):  # the cell is empty
            cell.cell_contents = _unchecked_value(original.cell_contents)
    return out


def _unchecked_value(value: Any) -> Any:
    if isinstance(value, types.FunctionType) and (value.__module__ or "").partition(".")[0] == "torch":
        return _without_override_check(value)
    return value


def call_python_source(tracer: Tracer, func: types.FunctionType, args: Any, kwargs: Any) -> Any:
    """Run a torch function that is written in Python, so that the torch functions it calls are traced."""
    with TracingMode():
        result = _without_override_check(func)(*args, **kwargs)
    tracer.functions[func] -= 1  # the functions that it called have been dispatched themselves
    return result


def leave_loop(name: str) -> NoReturn:
    """Fall back because the program calls `while_loop` or a similar function: the loop runs eagerly."""
    fall_back(f"the program calls {name}, whose number of steps depends on values")


# -- opaque operations ------------------------------------------------------------------------------------------------
# These functions return quantized tensors, but torch's fake tensors do not report the quantization.
_QUANTIZING = [f for name in dir(torch) if name.startswith("quantize_per") and callable(f := getattr(torch, name))]


def call_opaque(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a torch function as an opaque operation, or fall back if no trace can express it."""
    if isinstance(func, SCRIPTED):
        fall_back("the program calls a function compiled by torch.jit, which thunder cannot trace")
    if isinstance(func, HigherOrderOperator) and any(map(callable, args)):  # called directly, or torch is before 2.13
        leave_loop(func.__name__)
    if func in _QUANTIZING:
        fall_back(f"the program calls torch.{func.__name__}")
    name = getattr(func, "__name__", "")
    if writes_in_place(name) and (functional := _functional_form(func, name)) is not None:
        return _write_by_functional_form(tracer, functional, name, args, kwargs)
    operation = mutating_overload(func, args, kwargs)
    if operation is not None:
        return _without_gradients(tracer, call_mutating(tracer, operation, args, kwargs))
    if writes_to_target(name):
        return fall_back(f"{name} writes to its arguments, and thunder does not know to which")
    out = kwargs.pop("out", None)
    if _without_tensors(args) and _without_tensors(kwargs) and not _makes_tensor(func, args, kwargs):
        return func(*args, **kwargs if out is None else {**kwargs, "out": out})
    result = _without_gradients(tracer, tracer.call_symbol(opaque_call(func), args, kwargs))
    if out is not None:
        written = assign_out(tracer, out, result, (func, args, kwargs))
        return None if func in _SILENT else written
    return result


# These functions return None if they are called with out=.
_SILENT = frozenset({torch.split_copy, torch.split_with_sizes_copy, torch.unbind_copy})


def _without_gradients(tracer: Tracer, result: Any) -> Any:
    """Detach the tensors in `result` that torch's autograd treats as constants."""
    if isinstance(result, Handle):
        if result._needs_grad and not result._value.requires_grad:
            return tracer.call_symbol(ltorch.detach, (result,), {})
        return result
    if isinstance(result, (tuple, list)) and any(isinstance(x, torch.Tensor) for x in result):
        items = [_without_gradients(tracer, x) for x in result]
        return type(result)(*items) if hasattr(result, "_fields") else type(result)(items)
    return result


def _functional_form(func: Any, name: str) -> Any:
    """Return the functional form of an in-place function (`add` for `add_`), or None."""
    for owner in (torch.Tensor, torch):
        functional = getattr(owner, name[:-1], None)
        if functional is not None and getattr(owner, name, None) is func:
            return functional
    return None


def _write_by_functional_form(tracer: Tracer, functional: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Call the functional form of an in-place function, and assign the result."""
    result = tracer.dispatch(functional, args, kwargs)
    if isinstance(args[0], (tuple, list)):  # e.g. torch._foreach_add_
        for target, value in zip(args[0], result):
            assign(tracer, target, value, name)
        return None
    return assign(tracer, args[0], result, name)


def _without_tensors(x: Any) -> bool:
    if isinstance(x, torch.Tensor):
        return False
    if isinstance(x, dict):
        x = list(x.values())
    return all(_without_tensors(i) for i in x) if isinstance(x, (tuple, list)) else True


def _makes_tensor(func: Any, args: Any, kwargs: Any) -> bool:
    """Check whether a function called without tensors returns a tensor. Other functions read or set state of torch."""
    if func is torch.device:
        return False
    name = getattr(func, "__name__", "")
    if (getattr(func, "__module__", None) or "torch").partition(".")[0] != "torch" or name.startswith(("_", "set_")):
        return False
    with TracerPhase(), FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        result = func(*args, **kwargs)
    return any(isinstance(x, torch.Tensor) for x in flat_items(result))
