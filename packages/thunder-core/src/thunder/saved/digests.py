# SPDX-License-Identifier: Apache-2.0
"""Digests of what a saved program refers to by name: code, functions and classes.

An entry stores a digest beside each name. If the object of that name has another digest in a later process, the entry
is stale. Digests cover what a program can depend on through the object without a guard of its own: the instructions
of code, and the methods, bases and layout of classes. Values that may change within a process have guards instead.
"""

from __future__ import annotations

import hashlib
import sys
import types
import typing
from typing import Any

__all__ = ["class_digest", "code_digest", "is_of_library", "of_attribute"]

# Packages whose versions are part of the key of an entry.
_LIBRARIES = frozenset({*sys.stdlib_module_names, *sys.builtin_module_names, "torch", "numpy", "optree", "thunder",
                        "typing_extensions"})  # fmt: skip
_IGNORED = frozenset({"__dict__", "__weakref__", "__doc__", "__static_attributes__", "__firstlineno__", "_abc_impl",
                      "__abstractmethods__", "__annotations_cache__", "__annotations__", "__annotate_func__",
                      "__annotate__", "__getattribute__", "__setattr__", "__delattr__", "__module__",
                      "__qualname__", "__slotnames__"})  # fmt: skip
# What `dataclasses.fields` says about a field, besides its name.
_OF_FIELDS = ("type", "default", "init", "repr", "hash", "compare", "kw_only")


_OF_NAMEDTUPLE = type(vars(typing.NamedTuple("_", [("a", int)]))["a"])


def is_of_library(module: Any) -> bool:
    """Check whether a module of this name belongs to a package whose version is part of the key."""
    return isinstance(module, str) and module.partition(".")[0] in _LIBRARIES and module != "__main__"


def code_digest(code: types.CodeType) -> str:
    """Return a hash of code: its instructions, constants, names and layout, and the hashes of functions in it."""
    found = hashlib.sha256(code.co_code)
    found.update(getattr(code, "co_exceptiontable", b""))
    layout = (
        code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_flags,
        code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount,
    )  # fmt: skip
    found.update(repr(layout).encode())
    for const in code.co_consts:
        found.update(_constant(const).encode())
    return found.hexdigest()[:32]


def _constant(x: Any) -> str:
    """Return a text that tells a constant of code from all others. Frozensets have no order."""
    if isinstance(x, types.CodeType):
        return f"code:{code_digest(x)};"
    if isinstance(x, frozenset):
        return f"frozenset:{sorted(map(_constant, x))};"
    if isinstance(x, tuple):
        return f"tuple:{len(x)}:{''.join(map(_constant, x))};"
    return f"{type(x).__name__}:{x!r};"


def class_digest(cls: type) -> str:
    """Return a hash of a class: its bases, its metaclass, and the names and code of its attributes.

    Values of attributes are left out, because guards compare those that a program reads. A class of a library has no
    hash: the versions of the libraries are part of the key.
    """
    if is_of_library(cls.__module__):
        return ""
    found = hashlib.sha256()
    for each in (type(cls), *cls.__mro__[1:]):
        found.update(f"{each.__module__}.{each.__qualname__};{class_digest(each) if each is not cls else ''};".encode())
    for name, value in sorted(vars(cls).items(), key=lambda pair: str(pair[0])):
        if name not in _IGNORED and not hasattr(value, "_thunder_hook"):
            found.update(f"{name}={of_attribute(value)};".encode())
    for field in vars(cls).get("__dataclass_fields__", {}).values():
        found.update(_field(field).encode())
    return found.hexdigest()[:32]


def _field(x: Any) -> str:
    """Return a text that changes with a field of a dataclass. No hook sees that a program reads it."""
    values = [getattr(x, name, None) for name in _OF_FIELDS]
    pairs = [f"{_plain(k)}:{_plain(v)}" for k, v in getattr(x, "metadata", {}).items()]
    return f"{x.name}({','.join(map(_plain, values))};{of_attribute(x.default_factory)};{pairs});"


def _plain(x: Any) -> str:
    if isinstance(x, (str, int, float, bytes, tuple, types.NoneType)):
        return _constant(x)
    return f"{x.__module__}.{x.__qualname__}" if isinstance(x, type) else type(x).__qualname__


def of_attribute(x: Any) -> str:
    """Return a text that changes with the code of a class's attribute."""
    if isinstance(x, types.FunctionType):
        return f"function:{code_digest(x.__code__)}{''.join(map(_inner, x.__closure__ or ()))}"
    if isinstance(x, (staticmethod, classmethod)):
        return f"{type(x).__name__}:{of_attribute(x.__func__)}"
    if isinstance(x, property):
        return f"property:{','.join(map(of_attribute, (x.fget, x.fset, x.fdel)))}"
    if x is None or isinstance(x, (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)):
        return f"{type(x).__name__}:{getattr(x, '__qualname__', '')}"
    if type(x) is _OF_NAMEDTUPLE:
        return f"field:{x.__reduce__()[1]}"
    if isinstance(x, type):
        return f"class:{x.__module__}.{x.__qualname__}"
    return f"{type(x).__module__}.{type(x).__qualname__}"


def _inner(cell: Any) -> str:
    """Return the digest of a function in a closure, as decorated functions have."""
    try:
        inner = cell.cell_contents
    except ValueError:
        return ""
    return f",{code_digest(inner.__code__)}" if isinstance(inner, types.FunctionType) else ""
