# SPDX-License-Identifier: Apache-2.0
"""The functions of torch as they were when thunder was loaded.

Compiled programs call these, so a function of torch that a user or a library replaces (`torch.sin = torch.cos`) does
not change them. `replacements` finds the functions that have been replaced, `prevents_tracing` those among them that
tracing itself would call, and `places` the attributes to which a program that calls a function refers.
"""

from __future__ import annotations

import dis
import functools
import inspect
import operator
import os
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.fft
import torch.linalg
import torch.nn.functional
import torch.special

__all__ = [
    "live_function",
    "namespaces",
    "operations",
    "original_torch",
    "originals_restored",
    "places",
    "prevents_tracing",
    "replaced_inside",
    "replacements",
]

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


def _is_operation(owner: str, key: str, value: Any) -> bool:
    if isinstance(value, types.FunctionType) and key not in _IGNORED:
        return value.__module__ in _OF_TENSORS or (_is_foreign_function(value) and _may_replace_operation(owner, key))
    return isinstance(value, _FUNCTIONS) and key not in _IGNORED


def _may_replace_operation(owner: str, key: str) -> bool:
    """Check whether torch's function of this name may be one on tensors, unlike e.g. `torch.compile`."""
    if owner != "torch":
        return True
    return hasattr(torch._C._VariableFunctions, key) or hasattr(torch.functional, key)  # type: ignore[attr-defined]


def _is_foreign_function(function: types.FunctionType) -> bool:
    module = str(function.__globals__.get("__name__")).partition(".")[0]
    return module != "torch" and module not in _OF_DECORATORS


# The functions of each namespace, as they were.
_BEFORE: dict[str, dict[str, Any]] = {
    name: {key: x for key, x in _members(owner).items() if _is_operation(name, key, x)} for name, owner in _LIVE.items()
}
# If a library has replaced a function before thunder was loaded, the original may still be where torch took it from.
_BEFORE["torch"] |= {
    key: getattr(torch._C._VariableFunctions, key)  # type: ignore[attr-defined]
    for key, value in _BEFORE["torch"].items()
    if isinstance(value, types.FunctionType)
    and _is_foreign_function(value)
    and hasattr(torch._C._VariableFunctions, key)
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
        members = {**_members(owner), **_BEFORE[name]}
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


# Functions and methods of torch that do more than compute: they read files, change state, or run functions.
_UNSAFE = frozenset({
    "_clear_non_serializable_cached_data", "_cufft_set_plan_cache_max_size", "_reduce_ex_internal", "_typed_storage",
    "apply_", "backward", "from_file", "map2_", "map_", "module_load", "register_hook",
    "register_post_accumulate_grad_hook", "reinforce", "set_", "share_memory_", "storage", "storage_type",
})  # fmt: skip


@functools.cache
def operations(namespace: str) -> dict[str, Any]:
    """Return the functions on tensors of a namespace, e.g. "torch.nn.functional", as they were; {} for other names."""
    known = _BEFORE.get(namespace, {})
    return {name: function for name, function in known.items() if _only_computes(namespace, name, function)}


def _only_computes(namespace: str, name: str, function: Any) -> bool:
    if name in _UNSAFE or not callable(function):
        return False
    if name.startswith("__"):
        return name in _OPERATORS
    if namespace == "torch.nn.functional":
        return not name.startswith("_")  # helpers that are written in Python
    if namespace != "torch":
        return True
    return isinstance(function, types.FunctionType) or hasattr(torch._C._VariableFunctions, name)  # type: ignore[attr-defined]


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


# The functions that had been replaced before thunder was loaded, and whose originals are not known.
_REPLACED_BEFORE = [
    (name, key) for name, functions in _BEFORE.items() for key, value in functions.items() if _is_foreign(key, value)
]


def replacements() -> frozenset[tuple[str, str]]:
    """Return the owners and names of the functions of torch that are not torch's own.

    Nobody may be tracing: thunder replaces functions itself meanwhile.
    """
    found: set[tuple[str, str]] = set(_REPLACED_BEFORE)
    for name, (read, before, inherited) in _READ.items():
        owner = _LIVE[name]
        try:
            same = read(vars(owner)) == before  # compares identities first, and takes a few microseconds
        except KeyError:
            same = False
        if not same or not vars(owner).keys().isdisjoint(inherited):
            found.update((name, key) for key, x in _BEFORE[name].items() if getattr(owner, key, None) is not x)
    return frozenset(found)


@contextmanager
def originals_restored() -> Iterator[None]:
    """Return a context in which the functions of torch are the originals, e.g. to load modules that refer to them."""
    changed = [place for place in replacements() if place not in _REPLACED_BEFORE]
    missing = object()
    before = [(owner, key, vars(_LIVE[owner]).get(key, missing)) for owner, key in changed]
    for owner, key in changed:
        setattr(_LIVE[owner], key, _BEFORE[owner][key])
    try:
        yield
    finally:
        for owner, key, value in before:
            delattr(_LIVE[owner], key) if value is missing else setattr(_LIVE[owner], key, value)


def prevents_tracing(replaced: frozenset[tuple[str, str]]) -> str | None:
    """Return a replaced function around which no program can be traced, or None.

    These are methods of tensors, functions that are missing or whose original is not known, and functions that thunder
    or torch's fake tensors call while a program is traced.
    """
    for owner, name in sorted(replaced):
        unknown = (owner, name) in _REPLACED_BEFORE or not hasattr(_LIVE[owner], name)
        if unknown or owner == "torch.Tensor" or name in _called_by_tracing(len(sys.modules)):
            return f"{owner}.{name}"
    return None


# Modules that run while a program is traced, besides thunder's.
_OF_FAKE_TENSORS = ("torch._subclasses", "torch._meta_registrations", "torch._refs", "torch._decomp", "torch._prims",
                    "torch._prims_common", "torch._library", "torch.fx.experimental")  # fmt: skip
_NAMES_OF_NAMESPACES = frozenset({"torch", "F", "functional", "linalg", "special", "fft"})


@functools.lru_cache(maxsize=1)
def _called_by_tracing(modules: int) -> frozenset[str]:
    """Return the names of the functions of torch that the code of thunder and of fake tensors refers to.

    `modules` is the number of modules that have been loaded.
    """
    found: set[str] = set()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "thunder" or name.startswith(_OF_FAKE_TENSORS):
            for value in list(vars(module).values()):
                methods = list(vars(value).values()) if isinstance(value, type) else [value]
                for function in methods:
                    function = inspect.unwrap(getattr(function, "__func__", function))
                    if isinstance(function, types.FunctionType) and function.__module__ == name:
                        found.update(_names_in_namespaces(function.__code__))
    return frozenset(found)


def _names_in_namespaces(code: types.CodeType) -> Iterator[str]:
    """Return the names that code reads from the namespaces of torch, e.g. `relu` of `torch.nn.functional.relu`."""
    before = ""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_METHOD", "LOAD_DEREF"):
            if before in _NAMES_OF_NAMESPACES and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                yield instruction.argval
            before = str(instruction.argval)
        elif instruction.opname not in ("CACHE", "EXTENDED_ARG"):
            before = ""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in_namespaces(constant)


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
    return [(owner, _LIVE[owner], key, _BEFORE[owner][key]) for owner, key in _names_of_places(function, inside)]


def replaced_inside(function: types.FunctionType, replaced: frozenset[tuple[str, str]]) -> str | None:
    """Return one of the functions `replaced` to which the Python code of a function of torch refers, or None."""
    found = replaced.intersection(_names_of_places(function, True)).difference(_names_of_places(function, False))
    return ".".join(min(found)) if found else None


def live_function(owner: str, name: str) -> tuple[Any, Any]:
    """Return the namespace called `owner`, and its attribute as it is now."""
    return _LIVE[owner], getattr(_LIVE[owner], name)


def _names_of_places(function: Any, inside: bool) -> tuple[tuple[str, str], ...]:
    if id(function) not in _index()[0]:
        return ()  # not published by torch, e.g. a function of the user with overrides, which must not be kept alive
    return _places(function, inside)


@functools.cache
def _places(function: Any, inside: bool) -> tuple[tuple[str, str], ...]:
    by_id, by_name = _index()
    found = dict.fromkeys(by_id[id(function)])
    if any(owner != "torch._C._nn" for owner, _ in found):  # torch's own code calls it by its public name
        found = dict.fromkeys(place for place in found if place[0] != "torch._C._nn")
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
