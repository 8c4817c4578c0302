# SPDX-License-Identifier: Apache-2.0
"""Built-in containers, read and written without running the code of a subclass."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

__all__ = ["base_of", "dict_type", "items_of"]


def dict_type(x: Any) -> Any:
    """Return the built-in class whose methods read and write a dict without running methods of a subclass."""
    return OrderedDict if isinstance(x, OrderedDict) else dict


def base_of(x: Any) -> Any:
    """Return the built-in class that a container is an instance of."""
    for base in (OrderedDict, dict, list, tuple, set, frozenset, deque):
        if isinstance(x, base):
            return base
    raise TypeError(type(x).__name__)


def items_of(x: Any) -> tuple[Any, ...]:
    """Return the items of a container (pairs of a dict), read without running a subclass's code."""
    if isinstance(x, dict):
        return tuple(dict_type(x).items(x))
    return tuple(base_of(x).__iter__(x))
