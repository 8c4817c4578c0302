# SPDX-License-Identifier: Apache-2.0
"""The prologue: a program that takes the user's arguments, checks what the trace relies on, and returns its inputs."""

from __future__ import annotations

import enum
import types
from collections.abc import Sequence
from typing import Any

import torch

from thunder.core import prims, pytree
from thunder.core.proxies import AnyProxy, DictProxy, Proxy, TupleProxy
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import Trace
from thunder.frontend import guards
from thunder.frontend.environment import Environment
from thunder.frontend.tracer import Lifted

__all__ = ["Arguments", "build_prologue"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
          enum.Enum, slice, type(...), torch.Size, range)  # fmt: skip
_BY_IDENTITY = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type, types.ModuleType, torch.nn.Module)


class Arguments:
    """The arguments of a call, taken apart."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], names: Sequence[str]):
        self.leaves, self.structure = pytree.tree_flatten((args, kwargs))
        self.count = len(args)
        self.flat = not kwargs and all(a is b for a, b in zip(args, self.leaves)) and len(args) == len(self.leaves)
        self.names = _leaf_names(args, kwargs, names, len(self.leaves))

    def unguardable(self) -> str | None:
        """Why no guard can watch these arguments; None when guards can."""
        for leaf, name in zip(self.leaves, self.names):
            if not isinstance(leaf, (torch.Tensor, *_PLAIN, *_BY_IDENTITY)):
                return f"the argument {name} is a {type(leaf).__name__}, whose contents no guard watches"
        return None


def _leaf_names(args: tuple[Any, ...], kwargs: dict[str, Any], names: Sequence[str], count: int) -> list[str]:
    out: list[str] = []

    def walk(x: Any, name: str) -> None:
        leaves = pytree.tree_leaves(x)
        if len(leaves) == 1 and leaves[0] is x:
            out.append(name)
        elif isinstance(x, dict):
            for k, v in x.items():
                walk(v, f"{name}_{k}" if str(k).isidentifier() else f"{name}_{len(out)}")
        elif isinstance(x, (tuple, list)):
            for i, v in enumerate(x):
                walk(v, f"{name}_{i}")
        else:
            out.extend(f"{name}_{i}" for i in range(len(leaves)))

    for i, a in enumerate(args):
        walk(a, names[i] if i < len(names) else f"args_{i}")
    for k, v in kwargs.items():
        walk(v, k)
    return out if len(out) == count else [f"a{i}" for i in range(count)]


def build_prologue(
    arguments: Arguments, inputs: Sequence[Lifted], environment: Environment, written: Sequence[int]
) -> Trace:
    """The prologue of a trace with these arguments and inputs."""
    trace = Trace("prologue", signature="*args, **kwargs")
    trace.decorated = False
    call = TupleProxy((), name="args"), DictProxy({}, name="kwargs")
    trace.names |= {"args", "kwargs"}
    with tracectx(trace):
        guards.check_state(guards.global_state())
        leaves = _bind_leaves(trace, arguments, call)
        found: dict[int, Proxy] = {}
        for leaf, proxy in zip(arguments.leaves, leaves):
            if isinstance(leaf, torch.Tensor):
                found.setdefault(id(leaf), proxy)
            elif isinstance(leaf, _PLAIN):
                guards.check_value(proxy, leaf)
            else:
                guards.check_is(proxy, leaf)
        found |= environment.record_guards(trace, [x.tensor for x in inputs if id(x.tensor) not in found])
        tensors = [proxy for leaf, proxy in zip(arguments.leaves, leaves) if isinstance(leaf, torch.Tensor)]
        real = [leaf for leaf in arguments.leaves if isinstance(leaf, torch.Tensor)]
        for lifted in inputs:
            if not any(lifted.tensor is r for r in real):
                real.append(lifted.tensor)
                tensors.append(found[id(lifted.tensor)])
        if tensors:
            guards.check_tensors(guards.TensorCheck(real), tuple(tensors))
        values = tuple(found[id(x.tensor)] for x in inputs)
        if written and len(values) > 1:
            guards.check_distinct(values, tuple(written))
        trace.output = values
        prims.python_return(values)
    trace.args = [*call]
    return trace


def _bind_leaves(trace: Trace, arguments: Arguments, call: tuple[Proxy, Proxy]) -> list[Proxy]:
    source: Proxy
    if arguments.flat:
        guards.check_positional(*call, arguments.count)
        source = call[0]
    else:
        source = AnyProxy(name=trace.make_name("leaves"))
        trace.record(BoundSymbol(guards.flatten_call, (*call, arguments.structure), {}, source))
    leaves: list[Proxy] = [AnyProxy(name=trace.add_name(name)) for name in arguments.names]
    trace.record(BoundSymbol(guards.unpack, (source,), {}, tuple(leaves)))
    return leaves
