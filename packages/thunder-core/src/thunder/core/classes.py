# SPDX-License-Identifier: Apache-2.0
"""Caches keyed by class that do not keep user classes alive, together with all that their methods close over."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

__all__ = ["ClassCache", "is_permanent"]

T = TypeVar("T")
_HEAP_TYPE = 1 << 9
_PERMANENT = frozenset({"torch", "thunder", "numpy", "builtins", "collections"})


def is_permanent(cls: type) -> bool:
    """Check whether a class lives as long as the process, like `list` and `torch.Tensor`."""
    if not cls.__flags__ & _HEAP_TYPE:
        return True
    module = cls.__module__
    root = module.partition(".")[0] if isinstance(module, str) else ""  # a class may have a property of this name
    return root in _PERMANENT and "<locals>" not in cls.__qualname__


class ClassCache(Generic[T]):
    """Values by class. Classes that may be deleted are referenced weakly, so a value must not refer to its class."""

    def __init__(self) -> None:
        self._permanent: dict[type, T] = {}
        # By id. Python's weak dicts call C functions outside of thunder, which a traced program could not call.
        self._others: dict[int, tuple[weakref.ref[type], T]] = {}

    def get(self, cls: type) -> T | None:
        """Return the value of a class, or None."""
        found = self._permanent.get(cls)
        if found is None:
            entry = self._others.get(id(cls))
            if entry is not None and entry[0]() is cls:
                return entry[1]
        return found

    def __setitem__(self, cls: type, value: T) -> None:
        if is_permanent(cls):
            self._permanent[cls] = value
        else:
            key = id(cls)
            self._others[key] = weakref.ref(cls, lambda ref: self._drop(key, ref)), value

    def _drop(self, key: int, ref: weakref.ref[type]) -> None:
        entry = self._others.get(key)
        if entry is not None and entry[0] is ref:  # otherwise a new class has the same id
            del self._others[key]
