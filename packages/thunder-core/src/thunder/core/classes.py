# SPDX-License-Identifier: Apache-2.0
"""Caches keyed by class that do not keep user classes alive, together with all that their methods close over."""

from __future__ import annotations

import weakref
from collections.abc import MutableMapping
from typing import Generic, TypeVar

__all__ = ["ClassCache", "is_permanent"]

T = TypeVar("T")
_HEAP_TYPE = 1 << 9
_PERMANENT = frozenset({"torch", "thunder", "numpy", "builtins", "collections"})


def is_permanent(cls: type) -> bool:
    """Check whether a class lives as long as the process, like `list` and `torch.Tensor`."""
    if not cls.__flags__ & _HEAP_TYPE:
        return True
    return cls.__module__.partition(".")[0] in _PERMANENT and "<locals>" not in cls.__qualname__


class ClassCache(Generic[T]):
    """Values by class. Classes that may be deleted are referenced weakly, so a value must not refer to its class."""

    def __init__(self) -> None:
        self._permanent: dict[type, T] = {}
        self._others: MutableMapping[type, T] = weakref.WeakKeyDictionary()

    def get(self, cls: type) -> T | None:
        """Return the value of a class, or None."""
        found = self._permanent.get(cls)
        return self._others.get(cls) if found is None else found

    def __setitem__(self, cls: type, value: T) -> None:
        (self._permanent if is_permanent(cls) else self._others)[cls] = value
