# SPDX-License-Identifier: Apache-2.0
"""Which executors a compilation uses, and in which order.

What the caller names comes first: `thunder.jit(executors=[…])`, else the environment variable THUNDER_EXECUTORS, else
every default executor by its priority. Whoever names executors gets just those, and the plugins of others are not
imported; whoever names none gets all default executors, so every compatible plugin is loaded at that point.

The order of the defaults is never that of installation or of pluggy's calls: higher priority first, then the name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from thunder.core.errors import PluginLoadError
from thunder.plugins.discovery import names_in
from thunder.plugins.manager import PluginManager

__all__ = ["EXECUTORS_VARIABLE", "resolve_executor", "select_executors"]

EXECUTORS_VARIABLE = "THUNDER_EXECUTORS"


def select_executors(
    manager: PluginManager,
    executors: str | Any | Iterable[str | Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[Any, ...]:
    """The executors to use, in order, without those that always stand at the end (see `thunder.extend`).

    executors: what the caller of `thunder.jit` named: executors or their names, one or several; None for "not named".
    Raises PluginLoadError for a name that no executor has, or whose plugin cannot be used.
    """
    if executors is None:
        wanted: Iterable[Any] = names_in(EXECUTORS_VARIABLE, environ)
        origin = f" (named in {EXECUTORS_VARIABLE})"
        if not wanted:
            manager.load_all()
            return tuple(manager.host.get_default_executors())
    else:
        wanted = executors if _is_several(executors) else (executors,)
        origin = ""
    chosen: list[Any] = []
    for each in wanted:
        for executor in resolve_executors(manager, each, origin) if isinstance(each, str) else (each,):
            if all(executor is not other for other in chosen):
                chosen.append(executor)
    return tuple(chosen)


def resolve_executors(manager: PluginManager, name: str, origin: str = "") -> tuple[Any, ...]:
    """The executor called `name`; if it is a plugin that brings executors of other names, all of these.

    Imports at most the plugin of that name, unless no plugin has it: then some other plugin may bring an executor of
    that name, and all are loaded before the name is refused.
    """
    if (executor := _in_use(manager, name)) is not None:
        return (executor,)
    if (record := manager.find(name)) is not None:
        try:
            manager.load_named(name)
        except PluginLoadError as error:
            raise PluginLoadError(f"{error}{origin}") from None
        executor = _in_use(manager, name)
        brought = manager.executors_of(record) if executor is None else (executor,)
        if not brought:
            raise PluginLoadError(f"plugin {name!r} ({record.source}) brings no executor{origin}")
        return tuple(sorted(brought, key=_order(record)))
    manager.load_all()
    if (executor := _in_use(manager, name)) is not None:
        return (executor,)
    raise PluginLoadError(f"{_unknown(manager, name)}{origin}")


def resolve_executor(manager: PluginManager, name: str) -> Any:
    """The one executor called `name`, from core or from a plugin, which is loaded if need be."""
    found = resolve_executors(manager, name)
    if len(found) > 1:
        names = ", ".join(repr(executor.name) for executor in found)
        raise PluginLoadError(f"plugin {name!r} brings several executors; name one of {names}")
    return found[0]


def _is_several(executors: Any) -> bool:
    return isinstance(executors, Iterable) and not isinstance(executors, str)


def _in_use(manager: PluginManager, name: str) -> Any:
    return next((executor for executor in manager.host.get_all_executors() if executor.name == name), None)


def _order(record: Any) -> Any:
    priority = {info.name: info.priority for info in record.executors}
    return lambda executor: (-priority.get(executor.name, 0), executor.name)


def _unknown(manager: PluginManager, name: str) -> str:
    known = {executor.name for executor in manager.host.get_all_executors()} | {
        record.name for record in manager.records()
    }
    close = difflib.get_close_matches(name, known, n=1)
    hint = f", did you mean {close[0]!r}?" if close else "."
    return f"there is no executor {name!r}{hint} Known: {', '.join(sorted(known)) or 'none'}"
