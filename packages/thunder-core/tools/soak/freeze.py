# SPDX-License-Identifier: Apache-2.0
"""Values as plain data, to be compared after the objects themselves have changed."""

from __future__ import annotations

import collections
import enum
import logging
import math
import re
import threading
import types
from typing import Any

import numpy as np
import torch

_MOST_OBJECTS = 500
# Bookkeeping of Python's and torch's that is no state of the program.
_HIDDEN = {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "_is_full_backward_hook", "__slots__"}


def freeze(value: Any, seen: dict[int, Any] | None = None) -> Any:
    """Return the value as nested tuples of strings and floats: types by name, numbers exactly, tensors by elements.

    An object that was there before is named by its place, so aliases are compared, too.
    """
    seen = {} if seen is None else seen
    if value is None or isinstance(value, (bool, bytes, int, float, complex, str)):
        return _plain(value, seen)
    if id(value) in seen:
        return ("the same as", list(seen).index(id(value)))
    if len(seen) > _MOST_OBJECTS:
        return ("more", type(value).__name__)
    seen[id(value)] = value  # keeps it alive: ids are not reused
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, np.ndarray):
        return ("array", str(value.dtype), value.shape, value.tolist())
    if isinstance(value, logging.Logger):
        return ("logger", value.name, value.level, value.disabled, len(value.handlers))
    if isinstance(value, threading.Thread):
        return ("thread", re.sub("Thread-[0-9]+", "Thread", value.name), value.ident is not None, value.is_alive())
    if isinstance(value, torch.utils.hooks.RemovableHandle):
        return (type(value).__name__,)  # its number is counted by the process
    return _other(value, seen)


def _plain(value: Any, seen: dict[int, Any]) -> Any:
    """Return type and value of a number or text, and the attributes of an instance of a subclass."""
    if isinstance(value, enum.Enum):
        return (type(value).__qualname__, value.name)
    bases: tuple[Any, ...] = (bool, int, float, complex, str, bytes)
    base: Any = next((c for c in bases if isinstance(value, c)), type(None))
    extra = _attributes(value, seen) if type(value) is not base else None
    return (type(value).__qualname__, re.sub(" at 0x[0-9a-f]+", "", base.__repr__(value)), extra)


def _tensor(value: torch.Tensor) -> Any:
    name = type(value).__qualname__
    plain = value.detach()
    if plain.layout != torch.strided:
        plain = plain.to_dense()
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    elements = plain.resolve_neg().double().flatten().tolist()
    return ("tensor", name, str(value.dtype), tuple(value.shape), value.requires_grad, elements)


def _other(value: Any, seen: dict[int, Any]) -> Any:
    name = type(value).__qualname__
    extra = _attributes(value, seen)
    if isinstance(value, enum.Enum):
        return (name, value.name)
    if isinstance(value, dict):
        base_dict: Any = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict
        items = base_dict.items(value)  # an OrderedDict has an order of its own
        factory = getattr(getattr(value, "default_factory", None), "__name__", "")
        return (name, [(freeze(k, seen), freeze(v, seen)) for k, v in items], factory, extra)
    if isinstance(value, (list, tuple, collections.deque)):
        maximum = getattr(value, "maxlen", None)
        bases: tuple[Any, ...] = (list, tuple, collections.deque)
        base = next(c for c in bases if isinstance(value, c))
        return (name, [freeze(v, seen) for v in base.__iter__(value)], maximum, extra)
    if isinstance(value, (set, frozenset)):
        return (name, sorted(re.sub(" at 0x[0-9a-f]+", "", repr(v)) for v in value), extra)
    if isinstance(value, types.FunctionType):
        return (name, value.__name__, freeze(value.__defaults__, seen), freeze(value.__kwdefaults__, seen), extra)
    if isinstance(value, (types.ModuleType, type)):
        own = extra if getattr(value, "__module__", value.__name__) == "program" else None
        return (name, value.__name__, own)
    return (name, extra)


def _attributes(value: Any, seen: dict[int, Any]) -> Any:
    """Return what an object of a class written in Python holds."""
    if isinstance(value, (types.ModuleType, type)) and getattr(value, "__module__", value.__name__) != "program":
        return None
    try:
        own = dict(object.__getattribute__(value, "__dict__")) if not isinstance(value, type) else dict(vars(value))
    except AttributeError:
        own = {}
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else tuple(slots):
            if cls.__module__ == "program" and hasattr(value, slot):
                own[slot] = getattr(value, slot)
    shown = {k: v for k, v in own.items() if k not in _HIDDEN and not (isinstance(k, str) and k.startswith("_abc"))}
    if isinstance(value, torch.nn.Module):  # keys of hooks are numbers that the process counts
        shown = {k: len(v) if k.endswith("hooks") and v is not None else v for k, v in shown.items()}
    if isinstance(value, type):
        shown = {k: v for k, v in shown.items() if isinstance(v, (int, float, str, list, dict, torch.Tensor))}
    return [(repr(k), freeze(v, seen)) for k, v in shown.items()]


def difference(a: Any, b: Any) -> tuple[Any, Any] | None:
    """Return the first parts of two frozen values that differ; None if they agree."""
    if a == b:  # types are in the values; what remains differs by rounding, or in NaNs
        return None
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)) and len(a) == len(b):
        for x, y in zip(a, b):
            found = difference(x, y)
            if found is not None:
                return (a, b) if not isinstance(x, (tuple, list)) else found
        return None
    if isinstance(a, float) and isinstance(b, float):
        same = math.isclose(a, b, rel_tol=2e-5, abs_tol=1e-6) or (math.isnan(a) and math.isnan(b))
        return None if same or a == b else (a, b)
    return None if type(a) is type(b) and a == b else (a, b)
