# SPDX-License-Identifier: Apache-2.0
"""What checkers, execution transforms and gradient rules may know of the compilation that asks them.

They see one operation's arguments. What the user asked for as a whole, by options of `thunder.jit`, and what a jitted
function keeps from call to call, they find here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Compilation", "compilation", "compiling", "put"]


@dataclass(frozen=True)
class Compilation:
    """options: the compile options that the user gave, of all plugins.

    state: what the jitted function keeps besides its programs, by the names of those who keep it: dicts of tensors. It
    goes along with the jitted function when that is copied or pickled, and is in nobody's `state_dict()`.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)


def put(state: Mapping[str, Any], into: dict[str, Any]) -> None:
    """Return what is kept other values. Programs hold on to the dicts, and graphs to the tensors: these stay."""
    for name in into.keys() - state.keys():
        if isinstance(into[name], dict):
            put({}, into[name])
        else:
            del into[name]
    for name, value in state.items():
        known: Any = into.get(name)
        if isinstance(value, dict):
            into[name] = known if isinstance(known, dict) else {}
            put(value, into[name])
        elif hasattr(value, "copy_"):
            same = known is not None and (known.shape, known.dtype) == (value.shape, value.dtype)
            into[name] = known.copy_(value) if same else value.clone()
        else:
            into[name] = value


class _Current(threading.local):
    compilation: Compilation | None = None


_current = _Current()


def compilation() -> Compilation:
    """Return the compilation that runs on this thread; outside of any, one without options."""
    return _current.compilation or Compilation()


def set_compilation(of: Compilation | None) -> None:
    """Make `compilation()` this one from now on; None is the one without options."""
    _current.compilation = of


def current_compilation() -> Compilation | None:
    """Return the compilation that was set, None where there is none."""
    return _current.compilation


@contextmanager
def compiling(of: Compilation) -> Iterator[None]:
    """Within it, `compilation()` is this one."""
    before, _current.compilation = _current.compilation, of
    try:
        yield
    finally:
        _current.compilation = before
