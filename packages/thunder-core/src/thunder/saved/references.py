# SPDX-License-Identifier: Apache-2.0
"""References: how a saved program names an object that another process must find again.

A reference is a root (the jitted callable, or a module that is imported already), the steps from it to the object, and
a fingerprint of what the object is. Nothing is imported to find an object, except modules of thunder and of torch, and
no descriptor runs on the way through a module or a class.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import importlib
import inspect
import operator
import re
import sys
import threading
import types
import typing
from collections.abc import Sequence
from typing import Any

import torch

from thunder.saved.digests import class_digest, code_digest
from thunder.saved.keys import plugin_packages

__all__ = ["CALLABLE", "Stale", "Unsavable", "fingerprint", "follow", "named_path"]

#: The root of paths that begin at the jitted callable.
CALLABLE = "callable"

_MISSING: Any = object()
_MEMOIZED = type(functools.lru_cache(lambda: None))
_OF_C = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
         types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType)  # fmt: skip
# Objects that their text describes completely.
_BY_TEXT = (datetime.date, datetime.time, datetime.timedelta, datetime.timezone,
            decimal.Decimal, fractions.Fraction, inspect.Signature, inspect.Parameter, operator.attrgetter,
            operator.itemgetter, operator.methodcaller)  # fmt: skip
# Objects whose state does not matter: locks, sentinels.
_BY_TYPE = (
    object,
    type(threading.Lock()),
    type(threading.RLock()),
    type(vars(typing.NamedTuple("_", [("a", int)]))["a"]),
)


class Unsavable(Exception):
    """A program refers to an object that has no name in another process."""


class Stale(Exception):
    """An entry refers to an object that does not exist in this process, or that is another one."""


def fingerprint(x: Any, known: dict[int, str]) -> str | None:
    """Return a text that changes with everything that a program may depend on through `x` without further guards.

    Return None if there is no such text. `known` contains the fingerprints of classes that were computed before.
    """
    found = known.get(id(x))
    if found is None:
        found = _fingerprint(x)
        if found is not None and isinstance(x, (type, types.FunctionType, types.CodeType)):
            known[id(x)] = found
    return found


def _fingerprint(x: Any) -> str | None:
    kind = type(x)
    if kind is tuple:
        parts = [repr(i) if type(i) in (str, int, bool, type(None)) else _fingerprint(i) for i in x]
        return None if None in parts else f"tuple {hashlib.sha256(repr(parts).encode()).hexdigest()[:32]}"
    if kind is types.FunctionType:
        return f"function {x.__qualname__} {code_digest(x.__code__)}"
    if kind is types.CodeType:
        return f"code {code_digest(x)}"
    if isinstance(x, type):
        return f"class {x.__module__}.{x.__qualname__} {class_digest(x)}".rstrip()
    if isinstance(x, types.ModuleType):
        return f"module {x.__name__}"
    if kind in _OF_C:
        return f"{kind.__name__} {getattr(x, '__qualname__', x.__name__)}"
    if isinstance(x, enum.Enum):
        return f"member {kind.__module__}.{x!s} {x._value_!r}"
    if kind is re.Pattern:
        return f"pattern {x.pattern!r} {x.flags}"
    if kind is _MEMOIZED:
        inner = _fingerprint(x.__wrapped__)
        return None if inner is None else f"memoized {inner}"
    if kind.__module__ == "typing" or kind is types.UnionType or issubclass(kind, types.GenericAlias):
        return _fingerprint_of_type(x)
    if kind in _BY_TEXT:
        return f"{kind.__name__} {x!r}"
    if kind in _BY_TYPE:
        return kind.__name__
    return _fingerprint_of_torch(x, f"{kind.__module__}.{kind.__qualname__}")


_OF_TYPES = ("__origin__", "__args__", "__metadata__", "__bound__", "__constraints__", "__covariant__",
             "__contravariant__", "__supertype__", "__default__", "__forward_arg__")  # fmt: skip


def _fingerprint_of_type(x: Any) -> str | None:
    """Return the fingerprint of what `typing` makes: of its text, and of the types in it."""
    parts = [f"{type(x).__name__} {x!r}"]
    for name in _OF_TYPES:
        value = getattr(x, name, None)
        for part in value if isinstance(value, tuple) else (value,):
            known = type(part) in (str, int, bool, type(None)) or part is ... or isinstance(part, enum.Enum)
            found = repr(part) if known else _fingerprint(part) if part is not x else ""
            if found is None:
                return None
            parts.append(found)
    return f"type {hashlib.sha256(repr(parts).encode()).hexdigest()[:32]}"


_BY_TEXT_IN = ("torch.utils._pytree.", "torch.distributed.tensor.placement_types.", "optree.", "thunder.core.dtypes.",
               "thunder.core.devices.")  # fmt: skip


def _fingerprint_of_torch(x: Any, name: str) -> str | None:
    """Return the fingerprint of an object of a trusted class of torch, or of thunder's leaf types."""
    if name.startswith(_BY_TEXT_IN):
        return f"{name} {x!r}"
    if name.startswith("torch._ops."):
        return f"{name} {x!s}"
    if name == "torch._dynamo.eval_frame.DisableContext":  # in the closure of a function that Dynamo leaves alone
        return name if x.callback is None else None
    if name == "contextlib.nullcontext":
        return name if x.enter_result is None else None
    if isinstance(x, torch.Generator):
        return f"generator {x.device}"
    return None


# -- paths through modules --------------------------------------------------------------------------------------------
def named_path(x: Any) -> tuple[str, list[str]] | None:
    """Return the module and the names by which an object can be found again, or None."""
    if isinstance(x, types.ModuleType):
        return (x.__name__, []) if sys.modules.get(x.__name__) is x else None
    if type(x) in _OF_C and (found := _path_of_c_function(x)) is not None:
        return found
    module, name = getattr(x, "__module__", None), getattr(x, "__qualname__", getattr(x, "__name__", None))
    if not isinstance(module, str) or not isinstance(name, str) or "<" in name:
        return None
    return _checked(x, module, name.split("."))


def _path_of_c_function(x: Any) -> tuple[str, list[str]] | None:
    """Return the path of a function written in C, first of all as an operator of torch."""
    name: str = x.__name__
    for module in _OF_OPERATORS:
        for public in (name, _bare(name), name.replace("_", "")):  # e.g. `logsigmoid` of `log_sigmoid`
            found = _checked(x, module, [public])
            if found is not None:
                return found
    if getattr(torch._C._VariableFunctions, name, None) is x:
        return "torch._C", ["_VariableFunctions", name]
    owner: Any = getattr(x, "__objclass__", None) or getattr(x, "__self__", None)
    if isinstance(getattr(x, "__module__", None), str) or not isinstance(owner, (type, types.ModuleType)):
        return None
    path = named_path(owner)
    return None if path is None else _checked(x, path[0], [*path[1], name])


_OF_OPERATORS = ("torch", "torch.nn.functional", "torch.special", "torch.linalg", "torch.fft", "torch._C._nn",
                 "torch._C._linalg")  # fmt: skip


def _bare(name: str) -> str:
    for prefix in ("special_", "linalg_", "fft_"):
        name = name.removeprefix(prefix)
    return name


def _checked(x: Any, module: str, names: list[str]) -> tuple[str, list[str]] | None:
    try:
        return (module, names) if functools.reduce(member, names, module_called(module)) is x else None
    except Stale:
        return None


def module_called(name: str) -> types.ModuleType:
    """Return a module that is imported already, or a module of thunder or torch."""
    found = sys.modules.get(name)
    package = name.partition(".")[0]
    if found is None and (package in ("thunder", "torch") or package in plugin_packages()):
        try:
            # Imported by name at run time: the program decides which modules it needs.
            found = importlib.import_module(name)
        except ImportError:
            found = None
    if not isinstance(found, types.ModuleType):
        raise Stale(f"the module {name} is not imported")
    return found


def member(owner: Any, name: str) -> Any:
    """Return a variable of a module, or an attribute of a class, without running code of the user."""
    if isinstance(owner, types.ModuleType):
        found = vars(owner).get(name, _MISSING)
        if found is _MISSING and owner.__name__.partition(".")[0] in ("thunder", "torch"):
            found = getattr(owner, name, _MISSING)
    elif owner is torch._C._VariableFunctions:
        found = getattr(owner, name, _MISSING)
    elif isinstance(owner, type):
        found = next((vars(c)[name] for c in owner.__mro__ if name in vars(c)), _MISSING)
        if isinstance(found, (staticmethod, classmethod)):
            found = found.__func__
    else:
        found = _MISSING
    if found is _MISSING:
        raise Stale(f"{getattr(owner, '__name__', owner)!s} has no {name}")
    return found


# -- steps through objects --------------------------------------------------------------------------------------------
_ATTRIBUTES = frozenset({"__code__", "__self__", "__func__", "__wrapped__", "__mro__", "__dict__", "__globals__",
                         "__defaults__", "__kwdefaults__", "__call__", "__init__", "__new__"})  # fmt: skip


def follow(start: Any, steps: Sequence[Sequence[Any]]) -> Any:
    """Return the object to which `steps` lead. Raise `Stale` if there is none."""
    x = start
    try:
        for kind, *operands in steps:
            x = _STEPS[kind](x, *operands)
    except Stale:
        raise
    except Exception as error:
        raise Stale(f"a value that the program read no longer exists ({type(error).__name__}: {error})") from None
    return x


def _attribute(x: Any, name: str) -> Any:
    # Since Python 3.14, annotations are code that runs when they are read.
    of_function = name == "__annotations__" and type(x) is types.FunctionType and sys.version_info < (3, 14)
    if name.startswith("__") and name not in _ATTRIBUTES and not of_function and not isinstance(x, type):
        raise Stale(f"a path reads {name}")
    return getattr(x, name)


_STEPS: dict[str, Any] = {
    "member": member,
    "attr": _attribute,
    "dict": lambda x: x.__dict__,
    "item": lambda x, key: x[tuple(key) if isinstance(key, list) else key],
    "values": lambda x: tuple(dict.values(x)),
    "keys": lambda x: tuple(dict.keys(x)),
    "cell": lambda x, i: x.__closure__[i],
    "contents": lambda x: x.cell_contents,
    "type": type,
}
