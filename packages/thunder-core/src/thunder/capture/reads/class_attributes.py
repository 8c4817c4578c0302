# SPDX-License-Identifier: Apache-2.0
"""Classification of class attributes: C code of the interpreter, functions under descriptors, or data."""

from __future__ import annotations

import functools
import types
from typing import Any

from thunder.capture.base.snapshots import cell_value, variables
from thunder.capture.reads.libraries import is_library_class

__all__ = [
    "codes_of",
    "functions_in",
    "holds_code",
    "is_library_descriptor",
    "is_of_the_interpreter",
    "is_user_descriptor",
    "plain_class_attributes",
]

_OF_INTERPRETER = (types.WrapperDescriptorType, types.GetSetDescriptorType, types.MethodDescriptorType,
                   types.ClassMethodDescriptorType, types.MemberDescriptorType,
                   types.BuiltinFunctionType)  # fmt: skip


def is_of_the_interpreter(raw: Any) -> bool:
    """Check whether an attribute of a class is implemented in C."""
    return isinstance(raw, _OF_INTERPRETER) and not isinstance(raw, types.MemberDescriptorType)


def is_user_descriptor(raw: Any) -> bool:
    """Check whether an attribute of a class is a descriptor of a user class, whose code runs at each access."""
    cls = type(raw)
    return bool(cls.__flags__ & _HEAP_TYPE) and not is_library_class(cls) and not _DESCRIBES.isdisjoint(dir(cls))


def is_library_descriptor(raw: Any) -> bool:
    """Check for a descriptor of a library's class written in Python, e.g. `torch.distributions.utils.lazy_property`."""
    cls = type(raw)
    if not (cls.__flags__ & _HEAP_TYPE and is_library_class(cls) and hasattr(cls, "__get__")):
        return False
    return bool(variables(raw))


_HEAP_TYPE = 1 << 9
_DESCRIBES = frozenset({"__get__", "__set__", "__delete__"})


def functions_in(raw: Any) -> list[types.FunctionType]:
    """Return the Python functions that an attribute of a class runs."""
    if isinstance(raw, types.FunctionType):
        return [raw]
    if isinstance(raw, (staticmethod, classmethod)):
        raw = [raw.__func__]
    elif isinstance(raw, (property, types.DynamicClassAttribute)):
        raw = [raw.fget, raw.fset, raw.fdel]
    elif isinstance(raw, functools.cached_property):
        raw = [raw.func]
    elif is_library_descriptor(raw):
        raw = list(vars(raw).values())
    else:
        return []
    return [f for f in raw if isinstance(f, types.FunctionType)]


def codes_of(fn: types.FunctionType) -> list[types.CodeType]:
    """Return the code of a function, and of the functions in its closure (as decorated functions have)."""
    found, pending = {id(fn): fn}, [fn]
    while pending:
        for cell in pending.pop().__closure__ or ():
            inner = cell_value(cell)
            if isinstance(inner, types.FunctionType) and id(inner) not in found:
                found[id(inner)] = inner
                pending.append(inner)
    return [f.__code__ for f in found.values()]


def holds_code(x: Any, code: types.CodeType) -> bool:
    """Check whether a container has a function with this code, at most two levels deep."""
    inner = list(dict.values(x)) if type(x) is dict else list(x) if type(x) in (list, tuple) else []
    inner += [y for z in inner if type(z) in (list, tuple) for y in z]
    return any(isinstance(f, types.FunctionType) and f.__code__ is code for f in inner)


def plain_class_attributes(cls: type) -> list[str]:
    """Return the names of the data attributes of a class and of its bases, except library classes."""
    return [
        name
        for c in cls.__mro__
        if not is_library_class(c)
        for name, raw in c.__dict__.items()
        if not name.startswith("__") and not hasattr(type(raw), "__get__")
    ]
