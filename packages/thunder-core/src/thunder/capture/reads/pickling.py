# SPDX-License-Identifier: Apache-2.0
"""Pickling of plain data: while a program is traced, a function of this file replaces `pickle.dumps`.

Libraries pickle arguments to get the key of a cache (e.g. linear_operator). `pickle.dumps` is written in C, and may run
any code of an object. For numbers, strings and built-in containers of them it depends on nothing else.
"""

from __future__ import annotations

import pickle
from typing import Any

from thunder.capture.base.phase import TracerPhase
from thunder.capture.base.substitutions import Substitutions
from thunder.capture.reads.streams import running_output

__all__ = ["replace_pickling"]

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_CONTAINERS = (tuple, list, dict, set, frozenset)
_dumps = pickle.dumps


def _is_plain(x: Any, depth: int = 8) -> bool:
    """Check whether a value consists of plain values and built-in containers."""
    if type(x) in _PLAIN:
        return True
    if type(x) not in _CONTAINERS or not depth:
        return False
    items = [*x.keys(), *x.values()] if type(x) is dict else x
    return all(_is_plain(item, depth - 1) for item in items)


def dumps(obj: Any, *args: Any, **kwargs: Any) -> bytes:
    """Return `pickle.dumps(obj)` if the object is plain data. Otherwise the call of the program runs eagerly."""
    output = running_output()
    if output is None:
        return _dumps(obj, *args, **kwargs)
    with TracerPhase():
        if _is_plain((obj, args, kwargs)):
            return _dumps(obj, *args, **kwargs)
    output.deny("the program pickles objects, whose state no guard can watch")
    return b""


def replace_pickling(substitutions: Substitutions) -> None:
    """Replace `pickle.dumps` until the board is restored."""
    substitutions.set(pickle, "dumps", dumps)
