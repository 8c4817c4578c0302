# SPDX-License-Identifier: Apache-2.0
"""The registry of executors, the default executors, and the executors that end every list.

The order of the defaults is explicit: higher priority first, then by name. Plugins (`thunder.plugins`) register
executors here. Unknown names are looked up among the installed plugins.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import Any

from thunder import plugins
from thunder.extend.executor import Executor, _changed

_executors: dict[str, Executor] = {}
_defaults: list[str] = []
_always: list[str] = []


def register_executor(executor: Executor, *, default: bool = False, priority: int | None = None) -> Executor:
    """Register an executor by its name. With `default`, it is used even if the user does not name it."""
    if not isinstance(executor, Executor):
        raise TypeError(f"register_executor needs an Executor, not {type(executor).__name__}")
    known = _executors.get(executor.name)
    if known is not None and known is not executor and type(known) is not type(executor):
        raise ValueError(
            f"a different executor named {executor.name!r} is already registered: {known!r}; choose another name"
        )
    if priority is not None:
        executor.priority = priority
    _executors[executor.name] = executor
    if default:
        add_default_executor(executor)
    _changed()
    return executor


def deregister_executor(executor: Executor | str) -> None:
    """Remove an executor from the registry."""
    name = executor if isinstance(executor, str) else executor.name
    _executors.pop(name, None)
    for names in (_defaults, _always):
        if name in names:
            names.remove(name)
    _changed()


def add_default_executor(executor: Executor | str) -> None:
    """Use an executor by default, ordered by priority."""
    found = get_executor(executor)
    if found.name in _defaults:
        _defaults.remove(found.name)
    _defaults.append(found.name)
    _defaults.sort(key=lambda name: (-_executors[name].priority, name))
    _changed()


def remove_default_executor(executor: Executor | str) -> None:
    """Use an executor only if the user names it."""
    name = executor if isinstance(executor, str) else executor.name
    if name in _defaults:
        _defaults.remove(name)
    _changed()


def set_default_executors(executors: Iterable[Executor | str]) -> None:
    """Use exactly these executors by default, in this order, before the executors that end every list."""
    _defaults[:] = [get_executor(ex).name for ex in named_executors(executors)]
    _changed()


def add_always_executor(executor: Executor) -> None:
    """Add this executor to the end of every list of executors that `thunder.jit` uses."""
    register_executor(executor)
    if executor.name not in _always:
        _always.append(executor.name)


def get_executor(executor: Executor | str) -> Executor:
    """Return the executor of that name: a registered executor, otherwise an installed plugin's."""
    if isinstance(executor, Executor):
        return executor
    _load_built_in()
    found = _executors.get(executor)
    if found is None:
        plugins.load_named(executor)
        found = _executors.get(executor)
    if found is None:
        raise ValueError(f"there is no executor {executor!r}; the known executors are {', '.join(_executors)}")
    return found


Executor.find = staticmethod(get_executor)


def get_all_executors() -> tuple[Executor, ...]:
    """Return all registered executors, including those of usable plugins, in the order of priority."""
    _load_built_in()
    plugins.load_all()
    first = [_executors[name] for name in (*_defaults, *_always)]
    return (*first, *(ex for ex in _executors.values() if ex not in first))


def get_default_executors() -> tuple[Executor, ...]:
    """Return the executors that `thunder.jit` uses by default, without the executors that end every list."""
    _load_built_in()
    order = plugins.executor_order()
    if order is not None:  # only the plugins that it names are imported
        return tuple(get_executor(name) for name in order)
    plugins.load_all()
    return tuple(_executors[name] for name in _defaults)


def get_always_executors() -> tuple[Executor, ...]:
    """Return the executors that end every list: torch and python."""
    _load_built_in()
    return tuple(_executors[name] for name in _always)


class ExecutorList(tuple[Executor, ...]):
    """Executors in the order in which operations are offered to them.

    Executors that the user `named` claim every call that they support. Default executors claim only calls that are
    profitable (`register_implementation(profitable=…)`). `preferred` returns the executors to which a call is offered
    instead, if measurements decide that (`execution/measured_claims.py`).
    """

    named: bool
    preferred: Any

    def __new__(cls, executors: Iterable[Executor], *, named: bool, preferred: Any = None) -> ExecutorList:
        self = super().__new__(cls, executors)
        self.named = named
        self.preferred = preferred
        return self

    def __getnewargs_ex__(self) -> Any:
        return (tuple(self),), {"named": self.named}


def are_named(executors: Sequence[Executor]) -> bool:
    """Check whether the user named these executors, rather than using the defaults."""
    return getattr(executors, "named", True)


def is_left_to_torch(op: Any, executors: Sequence[Executor]) -> bool:
    """Check whether none of these executors runs an operation, other than torch's."""
    named = are_named(executors)
    return not any(ex.takes(op, named=named) for ex in executors if not ex.is_fallback)


def named_executors(executors: Iterable[Executor | str]) -> tuple[Executor | str, ...]:
    """Return the executors that a user named. They are validated, but not looked up."""
    if isinstance(executors, (Executor, str)) or not isinstance(executors, Iterable):
        hint = f": write [{executors!r}]" if isinstance(executors, (Executor, str)) else ""
        raise TypeError(f"executors must be a list, not {executors!r}{hint}")
    named = executors if isinstance(executors, tuple) else tuple(executors)
    for each in named:
        if not isinstance(each, (Executor, str)):
            raise TypeError(f"executors must contain names or executor objects, not {type(each).__name__}: {each!r}")
    return named


def resolve_executors(executors: Sequence[Executor | str] | None) -> ExecutorList:
    """Return the executors to use, in order: the named executors or the defaults, then those that end every list."""
    chosen = get_default_executors() if executors is None else map(get_executor, named_executors(executors))
    return ExecutorList(dict.fromkeys((*chosen, *get_always_executors())), named=executors is not None)


def _load_built_in() -> None:
    if not _always:
        # The import is local on purpose: built-in executors register themselves with this module, as plugins do.
        importlib.import_module("thunder.executors.built_in")
