# SPDX-License-Identifier: Apache-2.0
"""The state of the current compilation, for checkers, execution transforms and gradient rules.

Checkers, execution transforms and gradient rules receive only the arguments of one operation. This module provides the
state of the whole compilation: the options of `thunder.jit`, and the state that a jitted function stores between calls.
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
    """What executors and passes can read while a function is compiled.

    options: the user's compile options, of all plugins.
    state: the state that the jitted function stores in addition to its programs. It consists of dicts of tensors, by
      the name of their owner. The state is copied and pickled with the jitted function, but is not part of any
      `state_dict()`.
    measurements: the choices that measurements decide (`thunder.extend.measuring.Measurements`, which imports this
      module); None without the option `measured`.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    measurements: Any = None


def put(state: Mapping[str, Any], into: dict[str, Any]) -> None:
    """Replace values of the state in place, because programs refer to the dicts and CUDA graphs to the tensors."""
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
    """Return the compilation that runs on this thread. Outside of a compilation, return one without options."""
    return _current.compilation or Compilation()


def set_compilation(of: Compilation | None) -> None:
    """Set the compilation that `compilation()` returns from now on. None means a compilation without options."""
    _current.compilation = of


def current_compilation() -> Compilation | None:
    """Return the compilation that was set; None if there is none."""
    return _current.compilation


@contextmanager
def compiling(of: Compilation) -> Iterator[None]:
    """Make `compilation()` return `of` within the context."""
    before, _current.compilation = _current.compilation, of
    try:
        yield
    finally:
        _current.compilation = before
