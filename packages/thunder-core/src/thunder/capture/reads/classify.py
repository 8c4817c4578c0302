# SPDX-License-Identifier: Apache-2.0
"""What sort of thing a value is, for the reads of a program: how it is guarded and what can be read through it."""

from __future__ import annotations

import abc
import collections
import collections.abc
import contextvars
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import inspect
import random
import re
import sys
import threading
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from typing import Any

import torch

from thunder.capture.base.snapshots import CONTAINERS, cell_value, dict_type
from thunder.capture.reads.bytecode import attribute_names, imported_modules, is_library
from thunder.capture.reads.hooks import can_hook
from thunder.capture.tensors.handle import Handle
from thunder.core.symbol import Symbol

__all__ = ["CONTAINERS", "EXACT", "all_plain", "frozen", "items_of", "kind_of", "module_of"]

PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented), range, slice,
                   torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, torch.finfo,
                   torch.iinfo})  # fmt: skip
EXACT = frozenset({list, dict, tuple, set, frozenset, deque, OrderedDict, defaultdict})
_IDENTITY = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
             types.MethodWrapperType,
             types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType, types.ModuleType,
             types.CodeType, types.GenericAlias, enum.Enum, re.Pattern, datetime.date, datetime.time,
             datetime.timedelta, datetime.tzinfo, decimal.Decimal, fractions.Fraction, torch.Generator, torch.Stream,
             type(threading.Lock()), type(threading.RLock()), dataclasses.Field, inspect.Signature,
             inspect.Parameter, Symbol)  # fmt: skip
_LRU = type(functools.lru_cache(lambda: None))
_FOUND: dict[type, str] = {
    object: "identity",  # a sentinel
    types.FunctionType: "function", types.MethodType: "method", functools.partial: "partial", _LRU: "wrapper",
    types.SimpleNamespace: "namespace", weakref.ref: "reference",
    contextvars.ContextVar: "variable", threading.local: "opaque",
    random.Random: "opaque", random.SystemRandom: "opaque",
}  # fmt: skip
# Classes of Python's library whose instances are data that programs keep their options in.
_DATA_LIBRARIES = ("argparse", "collections", "types", "dataclasses")


def kind_of(value: Any) -> str:
    """How a value is guarded: the name of a method of `ReadRecorder`, or "plain", "identity", "tensor"."""
    cls = type(value)
    if cls in PLAIN:
        return "plain"
    if value is sys.modules:
        return "identity"  # what is imported meanwhile is no doing of the program's
    if cls is tuple and not value:
        return "plain"
    if cls in EXACT:
        return "container"
    found = _FOUND.get(cls)
    if found is None:
        found = _kind_of_class(cls)
        if found != "opaque":
            _FOUND[cls] = found
    if found == "identity" and isinstance(value, types.BuiltinFunctionType):
        if isinstance(value.__self__, random.Random) or module_of(type(value.__self__)).startswith("numpy.random"):
            return "opaque"
        if value.__module__ == "time" and value.__name__ in _CLOCKS:
            return "opaque"
    return found


def module_of(cls: type) -> str:
    """The name of the module of a class; nothing where that is a descriptor for instances (functions of Cython)."""
    name: Any = cls.__module__
    return name if isinstance(name, str) else ""


def _kind_of_class(cls: type) -> str:
    if _says_a_mask(cls):
        return "namespace"
    if issubclass(cls, torch.Tensor):
        return "tensor"
    if issubclass(cls, type):
        return "class"
    module = module_of(cls)
    if module == "numpy" and issubclass(cls, getattr(sys.modules.get("numpy"), "generic", ())):
        return "plain"
    if issubclass(cls, (functools.partial, functools.partialmethod)):
        return "partial"
    if issubclass(cls, _IDENTITY):
        return "identity"
    if module in ("thunder.frontend.jit", "thunder.frontend.module"):
        return "jitted"
    package = module.partition(".")[0]
    if package == "typing":
        return "identity"
    if issubclass(cls, torch.nn.Module) or not is_library_class(cls):
        return "object" if _is_python(cls) else "opaque"
    if package in _DATA_LIBRARIES and hasattr(cls, "__dict__") and _is_python(cls):
        return "object"
    if not _is_python(cls):
        return "opaque"
    # Containers of Python's library (os.environ, WeakKeyDictionary) are what is in them.
    of_python = package not in ("torch", "thunder", "numpy")
    return "namespace" if of_python and issubclass(cls, collections.abc.Collection) else "library"


def is_remembering(x: Any) -> bool:
    """Whether it is a function under `functools.lru_cache`."""
    return type(x) is _LRU


def _says_a_mask(cls: type) -> bool:
    return cls.__name__ == "CausalBias" and cls.__module__ == "torch.nn.attention.bias"


def says_a_mask(x: Any) -> bool:
    """Whether it says of which shape and corner a causal mask is: a tensor in name, with nothing in its memory."""
    return _says_a_mask(type(x))


def is_tensor(x: Any) -> bool:
    """Whether it is a tensor with something in it."""
    return isinstance(x, torch.Tensor) and not says_a_mask(x)


def is_handle(x: Any) -> bool:
    """Whether a tensor is one that the trace made."""
    return type(x) is Handle


def _is_python(cls: type) -> bool:
    return can_hook(cls)


_library_classes: dict[str, bool] = {}


def is_library_class(cls: type) -> bool:
    """Whether a class is torch's, thunder's or Python's own."""
    name = module_of(cls)
    found = _library_classes.get(name)
    if found is None:
        file = getattr(sys.modules.get(name), "__file__", None)
        found = name == "builtins" or (file is not None and is_library(file))
        if name in sys.modules:
            _library_classes[name] = found
    return found


# -- containers -------------------------------------------------------------------------------------------------------
def base_of(x: Any) -> Any:
    """The built-in class that a container is an instance of."""
    for base in (OrderedDict, dict, list, tuple, set, frozenset, deque):
        if isinstance(x, base):
            return base
    raise TypeError(type(x).__name__)


def items_of(x: Any) -> tuple[Any, ...]:
    """The items of a container (pairs of a dict), read without running a subclass's code."""
    if isinstance(x, dict):
        return tuple(dict_type(x).items(x))
    return tuple(base_of(x).__iter__(x))


def _is_plain(x: Any) -> bool:
    return kind_of(x) == "plain" or isinstance(x, enum.Enum) or (type(x) is tuple and all(_is_plain(i) for i in x))


def is_key(x: Any) -> bool:
    """Whether a dict's key can be compared with what it was."""
    return _is_plain(x) or kind_of(x) in ("identity", "class")


def are_told_apart(items: tuple[Any, ...]) -> bool:
    """Whether elements of a set are equal only where they are the same: strings and classes."""
    return all(type(x) is str or (isinstance(x, type) and has_plain_lookup(x)) for x in items)


def is_literal(x: Any) -> bool:
    """Whether its repr can stand in the text of a prologue."""
    return type(x) in (str, int, bool, bytes, type(None)) or (type(x) is tuple and all(is_literal(i) for i in x))


def all_plain(items: tuple[Any, ...], pairs: bool) -> bool:
    """Whether there is nothing but plain values in them."""
    if pairs:
        return all(_is_plain(k) and _is_plain(v) for k, v in items)
    return all(_is_plain(i) for i in items)


def frozen(x: Any) -> Any:
    """What `same_contents` compares a container with."""
    if isinstance(x, (set, frozenset)):
        return frozenset(x)
    return x if type(x) is tuple else items_of(x)


# -- classes ----------------------------------------------------------------------------------------------------------
_OF_INTERPRETER = (types.WrapperDescriptorType, types.GetSetDescriptorType, types.MethodDescriptorType,
                   types.ClassMethodDescriptorType, types.MemberDescriptorType, types.BuiltinFunctionType,
                   type(vars(collections.namedtuple("_", "field"))["field"]))  # fmt: skip


def is_of_the_interpreter(raw: Any) -> bool:
    """Whether an attribute of a class is written in C."""
    return isinstance(raw, _OF_INTERPRETER) and not isinstance(raw, types.MemberDescriptorType)


def is_cached_property(raw: Any) -> bool:
    """Whether it is functools' cached property."""
    return isinstance(raw, functools.cached_property)


def has_plain_lookup(cls: type) -> bool:
    """Whether `cls.name` is the attribute itself: no metaclass has a say."""
    return type(cls) in (type, abc.ABCMeta)


def functions_in(raw: Any) -> list[types.FunctionType]:
    """The functions that an attribute of a class runs."""
    if isinstance(raw, types.FunctionType):
        return [raw]
    if isinstance(raw, (staticmethod, classmethod)):
        raw = [raw.__func__]
    elif isinstance(raw, property):
        raw = [raw.fget, raw.fset, raw.fdel]
    elif isinstance(raw, functools.cached_property):
        raw = [raw.func]
    else:
        return []
    return [f for f in raw if isinstance(f, types.FunctionType)]


def codes_of(fn: types.FunctionType) -> list[types.CodeType]:
    """The code of a function, and of those that it closes over, as decorated functions do."""
    found, pending = {id(fn): fn}, [fn]
    while pending:
        for cell in pending.pop().__closure__ or ():
            inner = cell_value(cell)
            if isinstance(inner, types.FunctionType) and id(inner) not in found:
                found[id(inner)] = inner
                pending.append(inner)
    return [f.__code__ for f in found.values()]


def holds_code(x: Any, code: types.CodeType) -> bool:
    """Whether a container has a function of that code in it, at most two steps away."""
    inner = list(dict.values(x)) if type(x) is dict else list(x) if type(x) in (list, tuple) else []
    inner += [y for z in inner if type(z) in (list, tuple) for y in z]
    return any(isinstance(f, types.FunctionType) and f.__code__ is code for f in inner)


def plain_class_attributes(cls: type) -> list[str]:
    """The attributes of user classes that are data."""
    return [
        name
        for c in cls.__mro__
        if not is_library_class(c)
        for name, raw in c.__dict__.items()
        if not name.startswith("__") and not hasattr(type(raw), "__get__")
    ]


# -- what is read past all guards -------------------------------------------------------------------------------------
# Functions of Python's that read what no place leads to.
READERS = {
    "globals": "the program reads globals()", "dir": "the program asks for the names of all attributes (dir)",
    "open": "the program opens a file", "input": "the program asks for input",
    "__import__": "the program imports by a computed name",
}  # fmt: skip


def reads_past_guards(module: types.ModuleType, name: str) -> str | None:
    """Why `module.name` leads to what no guard watches."""
    if module.__name__ == "importlib" and name == "import_module":
        return "the program imports by a computed name (importlib.import_module)"
    return None


# -- chance -----------------------------------------------------------------------------------------------------------
# Names that mean something else while a program is traced.
_REPLACED_WHILE_TRACING = {"grad", "vjp", "jvp", "vmap", "jacrev", "jacfwd", "hessian", "grad_and_value", "linearize",
                           "manual_seed", "seed", "set_rng_state", "_is_compiling_flag", "compile", "cond",
                           "checkpoint", "_check", "_check_is_size", "_check_tensor_all"}  # fmt: skip


def is_replaced_while_tracing(module: types.ModuleType, name: str) -> bool:
    """Whether a function of torch is another one now, for as long as a program is traced (`entry_points.py`)."""
    return name in _REPLACED_WHILE_TRACING and module.__name__.partition(".")[0] == "torch"


_CLOCKS = {
    "time",
    "monotonic",
    "perf_counter",
    "process_time",
    "time_ns",
    "monotonic_ns",
    "perf_counter_ns",
    "thread_time",
}


_CHANCE = {
    "urandom": ("os",), "getrandom": ("os",), "uuid1": ("uuid",), "uuid4": ("uuid",), "token_bytes": ("secrets",),
    "token_hex": ("secrets",), "randbelow": ("secrets",), "choice": ("secrets",),
}  # fmt: skip
_MODULES_OF_CHANCE = ("time", "random", "os", "uuid", "secrets", "numpy", "datetime", "importlib")
_OF_TODAY = ("now", "today", "utcnow")


def imported_chance(code: types.CodeType) -> str | None:
    """Why code that imports modules itself gives something else each time."""
    for name in _MODULES_OF_CHANCE:
        module = sys.modules.get(name) if name in imported_modules(code) else None
        if module is None:
            continue
        for used in attribute_names(code):
            reason = is_of_today(name, used) or source_of_chance(module, used, getattr(module, used, None))
            if reason is not None:
                return reason
    return None


def is_of_today(owner: str, name: str) -> str | None:
    """Why an attribute of a class of `datetime` gives something else each time."""
    return f"the program reads a clock ({owner}.{name})" if owner == "datetime" and name in _OF_TODAY else None


def source_of_chance(module: types.ModuleType, name: str, value: Any) -> str | None:
    """Why `module.name` gives something else each time; None where it does not."""
    if module.__name__ in _CHANCE.get(name, ()):
        return f"the program asks for something that differs each time ({module.__name__}.{name})"
    reason = reads_past_guards(module, name)
    if reason is not None:
        return reason
    if module.__name__ == "random" and kind_of(value) in ("opaque", "method"):
        return f"the program draws from Python's random state (random.{name})"
    if module.__name__ == "numpy" and name == "random":
        return "the program draws from NumPy's random state"
    if module.__name__ == "time" and name in _CLOCKS:
        return f"the program reads a clock (time.{name})"
    return None
