# SPDX-License-Identifier: Apache-2.0
"""Guards: the checks that a specialization makes before it runs, as operators of the python executor.

A guard raises `GuardFailed` if the value that it checks differs from the value seen while tracing. Guards are
operations of the prologue trace, which prints like any other trace.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from thunder.capture.base.messages import Message
from thunder.capture.base.sources import Source
from thunder.core.printer import printable
from thunder.core.proxies import AnyProxy, Proxy
from thunder.core.symbol import BoundSymbol, OpTags, Symbol
from thunder.executors.pythonex import ex as python_executor
from thunder.runtime import guards as runtime
from thunder.runtime.guards import GuardFailed, TensorsDiffer
from thunder.runtime.messages import format_value
from thunder.runtime.torch_private import (
    any_autocast,
    autocast_devices,
    current_device,
    deterministic,
    function_modes,
    matmul_precision,
)

__all__ = ["Inline", "check_different", "check_distinct", "check_tensors", "fetched", "guard", "state_checks"]


_TAGS = (OpTags.CHECK_OP, OpTags.NON_DIFFERENTIABLE)


def _guard(fn: Callable[..., Any]) -> Symbol:
    """Declare an operator of the python executor that checks its arguments and returns nothing."""

    def meta(*args: Any) -> None:
        return None

    meta.__doc__ = fn.__doc__
    return python_executor.register_operator(fn.__name__, meta=meta, fn=fn, tags=_TAGS)


class StateCheck(NamedTuple):
    """A condition on torch's modes and defaults, with its operands, its message and the functions that it calls."""

    condition: str
    operands: tuple[Any, ...]
    message: Message
    helpers: Mapping[str, Callable[..., Any]] = MappingProxyType({})  # by their names in `condition`


def _state(now: str, differs: str, before: Any, name: str, *operands: Any, helper: Any = None) -> StateCheck:
    message = Message(f"{name} was {format_value(before)} and is", now)
    helpers = {} if helper is None else {now.removesuffix("()"): helper}
    return StateCheck(f"{now} {differs} {{0}}", (before, *operands), message, helpers)


def state_checks() -> list[StateCheck]:
    """Return conditions on the modes and defaults of torch that can change a program's results."""
    device, modes, precision = current_device(), function_modes(), matmul_precision()
    states = [
        _state("torch.is_grad_enabled()", "is not", torch.is_grad_enabled(), "grad mode"),
        _state("torch.is_inference_mode_enabled()", "is not", torch.is_inference_mode_enabled(), "inference mode"),
        _state("torch.get_default_dtype()", "is not", torch.get_default_dtype(), "the default dtype"),
        _state("current_device()", "!=", device, "the default device", helper=current_device),
        _state("function_modes()", "!=", modes, "the number of torch function modes", helper=function_modes),
        _state(
            "deterministic()", "is not", deterministic(), "the choice of deterministic algorithms", helper=deterministic
        ),
        _state("matmul_precision()", "!=", precision, "the precision of products", helper=matmul_precision),
    ]
    if not any_autocast():
        off = Message("autocast was off and is on")
        return [*states, StateCheck("any_autocast()", (), off, {"any_autocast": any_autocast})]
    for d in autocast_devices():
        enabled, dtype = torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)
        states.append(_state("torch.is_autocast_enabled({1})", "is not", enabled, f"autocast on {d}", d))
        states.append(_state("torch.get_autocast_dtype({1})", "is not", dtype, f"autocast's dtype on {d}", d))
    return states


def _no_meta(*args: Any) -> None:
    return None


def _print_guard(bsym: BoundSymbol, context: Any) -> list[str]:
    condition, operands, message, helpers = bsym.args
    context.objects.setdefault("GuardFailed", GuardFailed)
    names = [_operand(x, context) for x in operands]
    text = condition.format(*names)
    if "math." in text:
        context.imports.add("import math")
    for name, helper in helpers.items():
        context.objects.setdefault(name, helper)
    return [f"if {text}: raise GuardFailed({message.code(names)})"]


def _code_of(source: Source, context: Any, parent: Any, operands: Sequence[Any] = ()) -> str:
    """Return a Python expression for the source's step from the value `parent`."""
    for name, helper in source.helpers.items():
        context.objects.setdefault(name, helper)
    return source.code(_operand(parent, context), *[_operand(x, context) for x in operands])


def _operand(x: Any, context: Any) -> str:
    """Return Python code for an operand: literals print directly, objects by a name in the trace's namespace."""
    if isinstance(x, Inline):
        return _code_of(x.source, context, x.parent)
    if isinstance(x, (Proxy, str, int, float, complex, bytes, torch.dtype, type(None))) or any(
        x is t for t in (int, float, str, bool)
    ):
        return printable(x, context)
    name = getattr(x, "__name__", None) if isinstance(x, _NAMED) else None
    if isinstance(x, types.ModuleType):
        name = x.__name__.rpartition(".")[2]
    base = "".join(c if c.isalnum() and c.isascii() else "_" for c in name or type(x).__name__)
    return context.name_of(x, base.strip("_") or "x")  # type: ignore[no-any-return]


class Inline:
    """A value one step away from `parent` that is used only once, so it is printed inline, without a name."""

    __slots__ = ("parent", "source")

    def __init__(self, parent: Any, source: Source):
        self.parent = parent
        self.source = source


_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)


guard = Symbol("guard", _no_meta, id="python.guard", is_prim=True, printer=_print_guard, tags=_TAGS)


def _print_check_tensors(bsym: BoundSymbol, context: Any) -> list[str]:
    check, tensors = bsym.args
    context.objects.setdefault("TensorsDiffer", TensorsDiffer)
    name, given = context.name_of(check, "tensors"), bsym.output.name
    listed = ", ".join(_operand(t, context) for t in tensors)
    return [
        f"{given} = ({listed}{',' if len(tensors) == 1 else ''})",
        f"if not {name}.accepts(*{given}): raise TensorsDiffer({name}, {given})",
    ]


# Compares shapes, strides, dtypes, devices and requires_grad of tensors, and returns the tensors as a tuple.
check_tensors = Symbol(
    "check_tensors", _no_meta, id="python.check_tensors", is_prim=True, printer=_print_check_tensors, tags=_TAGS
)


def _print_derive(bsym: BoundSymbol, context: Any) -> list[str]:
    program, inputs = bsym.args
    listed = ", ".join(_operand(x, context) for x in inputs)
    return [f"{''.join(f'{p.name}, ' for p in bsym.output)}= {context.name_of(program, 'derived_scalars')}({listed})"]


# Computes the scalars that derive from inputs (`derived_scalars.py`).
derive = Symbol("derive", _no_meta, id="python.derive", is_prim=True, printer=_print_derive, tags=_TAGS)


check_different = _guard(runtime.check_different)
check_distinct = _guard(runtime.check_distinct)


# -- reading inputs ---------------------------------------------------------------------------------------------------
def _flatten_meta(*args: Any) -> Any:
    raise TypeError("flatten_call is bound by the prologue's builder")


flatten_call, flatten_call_in_order = (
    python_executor.register_operator(fn.__name__, meta=_flatten_meta, fn=fn, tags=(OpTags.UNPACK_OP,))
    for fn in (runtime.flatten_call, runtime.flatten_call_in_order)
)


def _print_unpack(bsym: BoundSymbol, context: Any) -> list[str]:
    names = ", ".join("_" if p is None else p.name for p in bsym.output)
    return [f"{names}, = {printable(bsym.args[0], context)}"] if bsym.output else []


unpack = Symbol(
    "unpack", _flatten_meta, id="python.unpack", is_prim=True, printer=_print_unpack, tags=(OpTags.UNPACK_OP,)
)


def _print_fetch(bsym: BoundSymbol, context: Any) -> list[str]:
    parent, source, *operands = bsym.args
    return [f"{bsym.output.name} = {_code_of(source, context, parent, operands)}"]


fetch = Symbol("fetch", _flatten_meta, id="python.fetch", is_prim=True, printer=_print_fetch, tags=(OpTags.UNPACK_OP,))


def fetched(parent: Any, source: Source, name: str, operands: Sequence[Any] = ()) -> tuple[BoundSymbol, Proxy]:
    """Return the prologue operation for the source's step from the value `parent`, and the proxy of its result."""
    out = AnyProxy(name=name)
    return BoundSymbol(fetch, (parent, source, *operands), {}, out), out
