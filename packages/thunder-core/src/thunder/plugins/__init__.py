# SPDX-License-Identifier: Apache-2.0
"""The API of executor plugins: the parts that a plugin author implements, and functions that query installed plugins.

A plugin author needs `hookimpl`, `Availability` and `ConformanceProfile`. `docs/plugins.md` is a tutorial from an empty
folder to a wheel. Importing this package imports neither a plugin nor torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from thunder.core.deprecations import old_names
from thunder.core.environment import EXECUTORS_VARIABLE, names_in
from thunder.core.errors import PluginLoadError, ThunderError
from thunder.plugins.catalog import PHASES, OptionSpec, PassContext, TransformSpec
from thunder.plugins.discovery import API_VERSION, GROUP
from thunder.plugins.env import (
    AcceleratorDevice,
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
    "AcceleratorDevice",
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

if not TYPE_CHECKING:  # type checkers report unknown names
    __getattr__ = old_names(__name__)

_manager = PluginManager()


def manager() -> PluginManager:
    """Return the plugin manager of this process."""
    return _manager


def records() -> tuple[PluginRecord, ...]:
    """Return a record of every installed executor plugin.

    A plugin that is not loaded is described from its metadata.
    """
    return _manager.records()


def load_all() -> None:
    """Load every compatible plugin once. The first compilation without named executors calls this. Never raise."""
    _manager.load_all()


def load_named(name: str) -> PluginRecord:
    """Load one plugin and no other. Raise PluginLoadError with the reason if the plugin cannot be used.

    `name` is the name of the plugin. An executor may have another name than its plugin, and only the plugin's code
    contains the executor's name. If no plugin is called `name`, all plugins are therefore loaded before `name` is
    rejected.
    """
    return _manager.load_named(name)


def is_usable(name: str) -> bool:
    """Check whether an installed plugin can be used here: it is in use, or its probe reports that it can run.

    A plugin that is not loaded yet is only probed, and nothing is registered. A plugin calls this if it defers to
    another plugin.
    """
    record = _manager.find(name)
    if record is None or not record.pending:
        return record is not None and record.ready
    try:
        return bool(record.entry_point.load().thunder_probe(env=_manager.env))
    except Exception:  # loading the plugin will report the error
        return False


def executor_order() -> tuple[str, ...] | None:
    """Return the executor names in THUNDER_EXECUTORS, or None if it is not set.

    These executors replace the default executors. `thunder.jit(executors=…)` takes precedence over them. If neither is
    given, executors are ordered by priority, then by name.
    """
    return names_in(EXECUTORS_VARIABLE) or None


def conformance_profile(executor: str) -> ConformanceProfile | None:
    """Return the plugin's conformance profile for `executor`.

    Return None if there is none, or if core owns the executor.
    """
    return _manager.conformance_profile(executor)


def known_options() -> dict[str, OptionSpec]:
    """Return the compile options registered by loaded plugins, by name."""
    return _manager.catalog.options()


def check_options(values: Mapping[str, Any], others: Iterable[str] = ()) -> dict[str, Any]:
    """Validate the compile options that are not core's.

    An unknown option raises a TypeError that lists the known options.

    An option may belong to a plugin that is not loaded yet, so an unknown name loads all plugins before it is rejected.
    If the option has the prefix of an unusable plugin, the error explains why that plugin is unusable. `others` are
    further valid option names, for the message.
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
    """Return the passes of loaded plugins for a phase of compilation (see `PHASES`), in execution order."""
    return _manager.catalog.transforms(phase)


def transformed(
    trace: Any,
    phase: str,
    *,
    options: Mapping[str, Any] | None = None,
    executors: Iterable[Any] = (),
    trace_into: TraceInto | None = None,
) -> Iterator[Any]:
    """Run the passes of `phase` on `trace`. Yield the trace after each pass that changed it.

    The context of a pass holds the user's `options`, the `executors` of this compilation, and `trace_into`.
    """
    executors = executors if isinstance(executors, tuple) else tuple(executors)  # an `ExecutorList` is a tuple
    context = PassContext(phase, dict(options or {}), executors, trace_into)
    for spec in registered_transforms(phase):
        result = spec.apply(trace, context)
        if result is not trace:
            trace = result
            yield trace


def reset() -> None:
    """Unregister everything that plugins registered, and drop their records. The next use scans again."""
    _manager.reset()
