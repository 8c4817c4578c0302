# SPDX-License-Identifier: Apache-2.0
"""Executor plugins: the contract for those who publish one, and what thunder asks about those installed.

A plugin author needs `hookimpl`, `Availability` and `ConformanceProfile`; `docs/plugins.md` leads from an empty
folder to a wheel. Importing this package imports no plugin and no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from thunder.core.errors import PluginLoadError, ThunderError
from thunder.plugins.catalog import PHASES, OptionSpec, PassContext, TransformSpec
from thunder.plugins.discovery import API_VERSION, EXECUTORS_VARIABLE, GROUP, names_in
from thunder.plugins.env import (
    Availability,
    Env,
    GpuDevice,
    describe_error,
    major_and_minor,
    reject_device,
    reject_version,
)
from thunder.plugins.hookspecs import HOOKS, hookimpl, hookspec
from thunder.plugins.manager import PluginManager
from thunder.plugins.profile import ConformanceProfile
from thunder.plugins.record import ExecutorInfo, PluginRecord, PluginState
from thunder.plugins.registry import PluginRegistry
from thunder.transforms.base import TraceInto

__all__ = [
    "API_VERSION",
    "GROUP",
    "HOOKS",
    "PHASES",
    "Availability",
    "ConformanceProfile",
    "Env",
    "ExecutorInfo",
    "GpuDevice",
    "OptionSpec",
    "PassContext",
    "PluginLoadError",
    "PluginManager",
    "PluginRecord",
    "PluginRegistry",
    "PluginState",
    "ThunderError",
    "TransformSpec",
    "check_options",
    "conformance_profile",
    "describe_error",
    "executor_order",
    "hookimpl",
    "hookspec",
    "is_usable",
    "known_options",
    "load_all",
    "load_named",
    "major_and_minor",
    "manager",
    "records",
    "registered_transforms",
    "reject_device",
    "reject_version",
    "reset",
    "transformed",
]

_manager = PluginManager()


def manager() -> PluginManager:
    """Return the plugin manager of this process."""
    return _manager


def records() -> tuple[PluginRecord, ...]:
    """Return every executor plugin that is installed, from metadata alone; those that were loaded say how that went."""
    return _manager.records()


def load_all() -> None:
    """Load every compatible plugin once; called at the first compilation that names no executors. Never raises."""
    _manager.load_all()


def load_named(name: str) -> PluginRecord:
    """Load one plugin and imports no other; raises PluginLoadError with the reason if it cannot be used.

    `name` is that of the plugin. An executor may have another name than the plugin that brings it; as nothing but the
    plugin's own code tells, a name that no plugin has loads all of them before it is refused.
    """
    return _manager.load_named(name)


def is_usable(name: str) -> bool:
    """Return whether an installed plugin can be used here: it is in use, or its probe says that it could be.

    Its probe is asked where it has not been loaded yet; nothing of it is registered. A plugin asks this of another one
    that it would give way to.
    """
    record = _manager.find(name)
    if record is None or not record.pending:
        return record is not None and record.ready
    try:
        return bool(record.entry_point.load().thunder_probe(env=_manager.env))
    except Exception:  # it will say so itself, when it is loaded
        return False


def executor_order() -> tuple[str, ...] | None:
    """Return the names in THUNDER_EXECUTORS, or None if it is not set.

    They stand in for the default executors: `thunder.jit(executors=…)` comes before them, and priorities, then names,
    order the executors where neither is given.
    """
    return names_in(EXECUTORS_VARIABLE) or None


def conformance_profile(executor: str) -> ConformanceProfile | None:
    """Return how the plugin that brought `executor` wants it tested; None without a profile or for core's own
    executors.
    """
    return _manager.conformance_profile(executor)


def known_options() -> dict[str, OptionSpec]:
    """Return the compile options that loaded plugins brought, by name."""
    return _manager.catalog.options()


def check_options(values: Mapping[str, Any], others: Iterable[str] = ()) -> dict[str, Any]:
    """Check compile options that core does not know itself; an unknown one is a TypeError that lists the known ones.

    An option may belong to a plugin that is not loaded yet, so an unknown name loads all plugins before it is refused.
    One that begins with the name of a plugin that cannot be used is refused with the reason.
    `others` are option names that the caller knows besides, for the message.
    """
    if any(name not in _manager.catalog.options() for name in values):
        _manager.load_all()
        unknown = values.keys() - _manager.catalog.options().keys()
        for record in _manager.records():
            if not record.ready and any(name.startswith(f"{record.name}_") for name in unknown):
                names = ", ".join(sorted(repr(name) for name in unknown))
                raise TypeError(f"unknown compile option {names}: {record.describe()}")
    return _manager.catalog.check_options(values, others)


def registered_transforms(phase: str) -> tuple[TransformSpec, ...]:
    """Return the passes that loaded plugins brought for a phase of compilation (see `PHASES`), in running order."""
    return _manager.catalog.transforms(phase)


def transformed(
    trace: Any,
    phase: str,
    *,
    options: Mapping[str, Any] | None = None,
    executors: Iterable[Any] = (),
    trace_into: TraceInto | None = None,
) -> Iterator[Any]:
    """Yield the traces that the passes of `phase` make of `trace`, one after the other; none where a pass changed
    nothing.

    Passes find in their context the `options` that the user gave, the `executors` that will be asked, and `trace_into`.
    """
    context = PassContext(phase, dict(options or {}), tuple(executors), trace_into)
    for spec in registered_transforms(phase):
        result = spec.apply(trace, context)
        if result is not trace:
            trace = result
            yield trace


def reset() -> None:
    """Take everything that plugins brought out of use and forgets what was found; the next use looks again."""
    _manager.reset()
