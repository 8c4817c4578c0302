# SPDX-License-Identifier: Apache-2.0
"""The functions of torch as they were when thunder was loaded.

Compiled programs call these, so a function of torch that the user replaces later (`torch.sin = torch.cos`) does not
change them. `replaced` finds the functions that the user has replaced, and `places` the attributes to which a program
that calls a function refers.
"""

from __future__ import annotations

import functools
import operator
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.fft
import torch.linalg
import torch.nn.functional
import torch.special

__all__ = ["namespaces", "original_torch", "places", "replaced"]

_FOLDER = os.path.join(os.path.dirname(torch.__file__), "")
_C_FUNCTIONS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
_FUNCTIONS = (*_C_FUNCTIONS, types.FunctionType, types.GetSetDescriptorType, property)
# Programs print with the methods of the call, and queries of overrides are thunder's own while it traces.
_IGNORED = frozenset({
    "__repr__", "__format__", "__dict__", "__weakref__", "handle_torch_function",
    "has_torch_function", "has_torch_function_unary", "has_torch_function_variadic",
})  # fmt: skip

# The namespaces in which torch publishes its functions, by name.
_LIVE: dict[str, Any] = {
    "torch": torch,
    "torch.nn.functional": torch.nn.functional,
    "torch.Tensor": torch.Tensor,
    "torch.special": torch.special,
    "torch.linalg": torch.linalg,
    "torch.fft": torch.fft,
    "torch._C._nn": torch._C._nn,
}
# The methods of Python's operators and conversions.
_OPERATORS = {f"__{p}{name.strip('_')}__" for name in dir(operator) if name.startswith("__") for p in ("", "r")}
_OPERATORS |= {f"__{name}__" for name in ("bool", "float", "int", "complex", "len", "iter", "div", "rdiv", "idiv")}
_PREFIXES = ("special", "linalg", "fft")
# The modules whose decorators torch's functions may have.
_OF_DECORATORS = frozenset({*sys.stdlib_module_names, "typing_extensions"})


def _members(owner: Any) -> dict[str, Any]:
    """Return the attributes of a module, or of a class and its bases except `object`."""
    if not isinstance(owner, type):
        return dict(vars(owner))
    return {key: value for cls in owner.__mro__[-2::-1] for key, value in vars(cls).items()}


# The modules of torch's functions on tensors that are written in Python. Others, e.g. `torch.manual_seed`, are no
# operations: a program that calls them is guarded like one that calls functions of other libraries.
_OF_TENSORS = frozenset({"torch.functional", "torch.nn.functional", "torch._tensor", "torch._jit_internal"})


def _is_operation(key: str, value: Any) -> bool:
    if isinstance(value, types.FunctionType) and key not in _IGNORED:
        return value.__module__ in _OF_TENSORS or _is_foreign_function(value)
    return isinstance(value, _FUNCTIONS) and key not in _IGNORED


def _is_foreign_function(function: types.FunctionType) -> bool:
    module = str(function.__globals__.get("__name__")).partition(".")[0]
    return module != "torch" and module not in _OF_DECORATORS


# The functions of each namespace, as they were.
_BEFORE: dict[str, dict[str, Any]] = {
    name: {key: x for key, x in _members(owner).items() if _is_operation(key, x)} for name, owner in _LIVE.items()
}


# For each namespace: a function that reads the functions in its own `__dict__`, what this function returned, and the
# names of the functions that it inherits.
_OWN = {
    name: {key: x for key, x in functions.items() if key in vars(_LIVE[name])} for name, functions in _BEFORE.items()
}
_READ = {
    name: (operator.itemgetter(*own), tuple(own.values()), _BEFORE[name].keys() - own.keys())
    for name, own in _OWN.items()
}


def _copied(name: str, live: Any, members: dict[str, Any]) -> types.ModuleType:
    """Return a module with these members. Attributes that torch adds later are read from the live object."""
    copy = types.ModuleType(name)
    copy.__dict__.update(members)
    copy.__dict__["__getattr__"] = functools.partial(getattr, live)
    return copy


def _copies() -> dict[str, types.ModuleType]:
    made: dict[str, types.ModuleType] = {}
    for name, owner in _LIVE.items():
        members = _members(owner)
        if isinstance(owner, type):
            members = {key: getattr(owner, key) for key in members}
        made[name] = _copied(name, owner, members)
    whole = made["torch"]
    nn = _copied("torch.nn", torch.nn, dict(vars(torch.nn)))
    for name in ("special", "linalg", "fft"):
        setattr(whole, name, made[f"torch.{name}"])
    nn.functional, whole.nn = made["torch.nn.functional"], nn  # type: ignore[attr-defined]
    return made


# The namespaces as they were. The one of `torch.Tensor` has the methods as attributes, and is not a class.
namespaces = _copies()
original_torch: Any = namespaces["torch"]


def _is_foreign(key: str, value: Any) -> bool:
    """Check whether a function is not the one that torch publishes under the name `key`.

    It is either written outside of torch, or a C function that torch publishes under its own, other name.
    """
    if key.startswith("_"):
        return False
    if isinstance(value, types.FunctionType):
        return _is_foreign_function(value)
    if not isinstance(value, _C_FUNCTIONS):
        return False
    own, wanted = _bare(value.__name__), _bare(key)
    return own != wanted and any(functions.get(value.__name__) is value for functions in _BEFORE.values())


def _bare(name: str) -> str:
    name = name.replace("_", "")
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


# The functions that had been replaced before thunder was loaded.
_REPLACED_BEFORE = [
    f"{name}.{key}"
    for name, functions in _BEFORE.items()
    for key, value in functions.items()
    if _is_foreign(key, value)
]


def replaced() -> str | None:
    """Return the name of a function of torch that is not torch's own, or None.

    Nobody may be tracing: thunder replaces functions itself meanwhile.
    """
    if _REPLACED_BEFORE:
        return _REPLACED_BEFORE[0]
    for name, (read, before, inherited) in _READ.items():
        owner = _LIVE[name]
        try:
            same = read(vars(owner)) == before  # compares identities first, and takes a few microseconds
        except KeyError:
            same = False
        if not same or not vars(owner).keys().isdisjoint(inherited):
            for key, function in _BEFORE[name].items():
                if getattr(owner, key, None) is not function:
                    return f"{name}.{key}"
    return None


@functools.cache
def _index() -> tuple[dict[int, list[tuple[str, str]]], dict[str, list[tuple[str, str]]]]:
    """Return the places of functions, by the ids of the functions and by their names."""
    probe = torch.Tensor._make_subclass(_Probe, torch.empty(1, device="cpu"))
    by_id: dict[int, list[tuple[str, str]]] = {}
    by_name: dict[str, list[tuple[str, str]]] = {}
    for owner, functions in _BEFORE.items():
        for key, value in functions.items():
            by_id.setdefault(id(value), []).append((owner, key))
            by_name.setdefault(key, []).append((owner, key))
            reported = _reported(value, probe) if key in _OPERATORS and owner == "torch.Tensor" else None
            if reported is not None and reported is not value:
                by_id.setdefault(id(reported), []).append((owner, key))
    return by_id, by_name


class _Reported(Exception):
    """Carries the function that torch passes to overrides."""


class _Probe(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _Reported(function)


def _reported(method: Any, probe: torch.Tensor) -> Any:
    """Return the function that torch passes to overrides when an operator calls `method`: `mul` for `__mul__`."""
    for args in (probe,), (probe, probe):
        try:
            method(*args)
        except _Reported as reported:
            return reported.args[0]
        except Exception:  # another number of arguments
            continue
    return None


def places(function: Any, *, inside: bool) -> list[tuple[str, Any, str, Any]]:
    """Return the attributes that decide what a call of a torch function does: title and owner, name and value.

    These are the attributes that are the function, and with `inside` also those to which its Python code refers.
    """
    if id(function) not in _index()[0]:
        return []  # not published by torch, e.g. a function of the user with overrides, which must not be kept alive
    return [(owner, _LIVE[owner], key, _BEFORE[owner][key]) for owner, key in _places(function, inside)]


@functools.cache
def _places(function: Any, inside: bool) -> tuple[tuple[str, str], ...]:
    by_id, by_name = _index()
    found = dict.fromkeys(by_id[id(function)])
    seen: set[Any] = set()
    pending = [function] if inside and isinstance(function, types.FunctionType) else []
    while pending:
        called = pending.pop()
        if called in seen or not called.__code__.co_filename.startswith(_FOLDER):
            continue
        seen.add(called)
        for name in _names(called.__code__):
            found.update(dict.fromkeys(by_name.get(name, ())))
            helper = called.__globals__.get(name)
            if isinstance(helper, types.FunctionType):
                pending.append(helper)
    return tuple(found)


def _names(code: types.CodeType) -> Iterator[str]:
    """Return the names of globals and attributes in a function's code and in functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
