# SPDX-License-Identifier: Apache-2.0
"""What a program reads that is not an argument: its module's tree, closure cells and globals.

Each is found by a path from the function or module that was jitted, so that a prologue can look again: tensors become
inputs, plain values and the identities of objects become guards. What cannot be watched makes a trace good for one call.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import torch

from thunder.core.proxies import Proxy
from thunder.core.trace import Trace
from thunder.frontend import guards

__all__ = ["Environment"]

_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)
_LIBRARIES = ("torch", "thunder", "builtins", "numpy", "math", "functools", "itertools", "typing", "collections", "operator")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Place:
    """A path from a root object: `root` and the text that follows it in Python."""

    __slots__ = ("path", "root")

    def __init__(self, root: Any, path: str = ""):
        self.root = root
        self.path = path

    def __add__(self, step: str) -> Place:
        return Place(self.root, self.path + step)


class Environment:
    """The surroundings of a callable, walked once, before it is traced."""

    def __init__(self, fn: Any):
        self.fn = fn
        self.tensors: dict[int, list[tuple[Place, str]]] = {}
        self.values: list[tuple[Place, Any]] = []
        self.objects: list[tuple[Place, Any]] = []
        self.modules: list[tuple[Place, torch.nn.Module, dict[str, Any]]] = []
        self.unguardable: list[str] = []
        self._seen: set[int] = set()
        self._alive: list[Any] = []
        self._visit_root(fn)

    # -- walking ------------------------------------------------------------------------------------------------------
    def _visit_root(self, fn: Any) -> None:
        if isinstance(fn, torch.nn.Module):
            self._module(Place(fn), fn, "t")
        else:
            self._function(Place(fn), fn)

    def _module(self, place: Place, module: torch.nn.Module, name: str) -> None:
        if id(module) in self._seen:
            return
        self._seen.add(id(module))
        plain = {k: v for k, v in module.__dict__.items() if isinstance(v, _PLAIN)}
        self.modules.append((place, module, plain))
        for kind in ("_parameters", "_buffers"):
            for key, tensor in getattr(module, kind).items():
                if tensor is not None:
                    self._tensor(place + f".{kind}[{key!r}]", tensor, f"{name}_{key}")
        for key, value in module.__dict__.items():
            if key.startswith("_") and key in _MODULE_INTERNALS:
                continue
            if isinstance(value, (torch.Tensor, types.FunctionType, types.MethodType, list, tuple, dict)):
                self._value(place + f".__dict__[{key!r}]", value, f"{name}_{key}")
        for key, child in module._modules.items():
            if child is not None:
                self._module(place + f"._modules[{key!r}]", child, f"{name}_{key}")
        forward = type(module).forward
        if isinstance(forward, types.FunctionType):
            self._function(Place(forward), forward)

    def _function(self, place: Place, fn: Any) -> None:
        if isinstance(fn, types.MethodType):
            self._value(place + ".__self__", fn.__self__, "self")
            fn, place = fn.__func__, place + ".__func__"
        if not isinstance(fn, types.FunctionType) or id(fn) in self._seen or _is_library(fn):
            return
        self._seen.add(id(fn))
        for i, (name, cell) in enumerate(zip(fn.__code__.co_freevars, fn.__closure__ or ())):
            try:
                value = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            self._value(place + f".__closure__[{i}].cell_contents", value, name)
        for name in _names(fn.__code__):
            if name in fn.__globals__:
                self._value(place + f".__globals__[{name!r}]", fn.__globals__[name], name)

    def _value(self, place: Place, value: Any, name: str) -> None:
        if isinstance(value, torch.Tensor):
            self._tensor(place, value, name)
        elif isinstance(value, _PLAIN):
            self.values.append((place, value))
        elif isinstance(value, torch.nn.Module):
            self.objects.append((place, value))
            self._module(place, value, f"t_{name}")
        elif isinstance(value, (types.FunctionType, types.MethodType)):
            if not isinstance(value, types.MethodType):
                self.objects.append((place, value))
            self._function(place, value)
        elif type(value) in (list, tuple, dict) and len(value) <= 64 and id(value) not in self._seen:
            self._seen.add(id(value))
            self._alive.append(value)
            self._container(place, value, name)

    def _container(self, place: Place, value: Any, name: str) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        self.values.append((place + ".__len__()", len(value)))
        for key, item in items:
            if isinstance(key, (str, int)):
                self._value(place + f"[{key!r}]", item, f"{name}_{key}" if str(key).isidentifier() else name)

    def _tensor(self, place: Place, tensor: torch.Tensor, name: str) -> None:
        self.tensors.setdefault(id(tensor), []).append((place, "".join(c if c.isalnum() else "_" for c in name)))
        self._alive.append(tensor)

    # -- asking -------------------------------------------------------------------------------------------------------
    def name_of(self, tensor: torch.Tensor) -> str | None:
        """What an input made of that tensor is called."""
        found = self.tensors.get(id(tensor))
        return found[0][1] if found else None

    def unreachable(self, tensors: Iterator[torch.Tensor]) -> str | None:
        """Why a trace that uses these tensors is good for one call only; None when all can be found again."""
        for tensor in tensors:
            if id(tensor) not in self.tensors:
                return (
                    f"a tensor of shape {tuple(tensor.shape)} was used that is neither an argument nor found in the function's "
                    "module, closure or globals"
                )
        return None

    def record_guards(self, trace: Trace, tensors: list[torch.Tensor]) -> dict[int, Proxy]:
        """Records the lines of a prologue that watch what was read; returns the values that fetch `tensors`, by id."""
        found: dict[str, Proxy] = {}

        def value_of(place: Place, prefix: str) -> Proxy | Any:
            if not place.path:
                return place.root
            key = f"{id(place.root)}{place.path}"
            if key not in found:
                line, found[key] = guards.fetched(place.root, place.path, trace.make_name(prefix))
                trace.record(line)
            return found[key]

        for place, value in self.objects:
            guards.check_is(value_of(place, "o"), value)
        for place, value in self.values:
            guards.check_value(value_of(place, "v"), value)
        for place, module, plain in self.modules:
            if place.path:
                guards.check_is(value_of(place, "m"), module)
            guards.check_attributes(module, plain)
            guards.check_module(module, guards.module_shape(module))
        out: dict[int, Proxy] = {}
        for tensor in tensors:
            places = self.tensors[id(tensor)]
            line, proxy = guards.fetched(places[0][0].root, places[0][0].path, trace.add_name(places[0][1]))
            trace.record(line)
            out[id(tensor)] = proxy
            for other, _ in places[1:]:
                guards.check_is(value_of(other, "same"), proxy)
        return out


_MODULE_INTERNALS = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", *_HOOKS}


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _names(const)


def _is_library(fn: types.FunctionType) -> bool:
    return (fn.__module__ or "").split(".")[0] in _LIBRARIES


