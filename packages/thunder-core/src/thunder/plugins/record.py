# SPDX-License-Identifier: Apache-2.0
"""The record of one plugin: its origin, its state, and the reason for that state."""

from __future__ import annotations

import enum
import traceback as _traceback
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import Any

from thunder.core.errors import PluginLoadError

__all__ = ["ExecutorInfo", "PluginRecord", "PluginState"]


class PluginState(enum.Enum):
    """The states of a plugin. The first four lead to its use. The others are final."""

    FOUND = "found"  # an entry point exists, and nothing is checked yet
    COMPATIBLE = "compatible"  # metadata fits this version of thunder-core, and the plugin is not imported yet
    LOADED = "loaded"  # imported, and its hooks are being called
    READY = "ready"  # all its registrations are in use
    BLOCKED = "blocked"  # the user disabled it, or another plugin won its name
    INCOMPATIBLE = "incompatible"  # made for another plugin API or another range of thunder-core, and never imported
    UNAVAILABLE = "unavailable"  # imported, and its probe reports that it cannot run here
    FAILED = "failed"  # raised during its import or registration


#: The states in which loading is not finished.
PENDING = frozenset({PluginState.FOUND, PluginState.COMPATIBLE, PluginState.LOADED})


@dataclass(frozen=True)
class ExecutorInfo:
    """An executor as registered by a plugin."""

    name: str
    version: str | None
    priority: int
    default: bool


@dataclass(eq=False)
class PluginRecord:
    """One plugin of this environment.

    `reason` is one line: why the plugin is not used, or the note of its probe. `stage` and `traceback` describe where
    it failed. `import_seconds` is the time of its import. `conflict` is set on all plugins that share a name, including
    the plugin in use.
    """

    name: str
    entry_point: EntryPoint
    distribution: str
    version: str | None = None
    requires_core: str | None = None
    state: PluginState = PluginState.FOUND
    reason: str | None = None
    stage: str | None = None
    traceback: str | None = None
    conflict: str | None = None
    import_seconds: float | None = None
    executors: tuple[ExecutorInfo, ...] = ()
    operators: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    transforms: tuple[str, ...] = ()
    logged: bool = field(default=False, repr=False)

    @property
    def source(self) -> str:
        """The distribution and its version, as text."""
        return f"{self.distribution} {self.version}" if self.version else self.distribution

    @property
    def ready(self) -> bool:
        """Whether all registrations of this plugin are in use."""
        return self.state is PluginState.READY

    @property
    def pending(self) -> bool:
        """Whether loading this plugin may still change its state."""
        return self.state in PENDING

    def end(self, state: PluginState, reason: str | None = None) -> None:
        """Set the final state, with its reason."""
        self.state = state
        self.reason = reason

    def fail(self, error: BaseException) -> None:
        """Record that the current stage raised `error`. Store its text, but not the exception or its frames."""
        lines = str(error).strip().splitlines()
        summary = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        self.traceback = "".join(_traceback.format_exception(type(error), error, error.__traceback__))
        self.end(PluginState.FAILED, f"{self.stage}: {summary}" if self.stage else summary)

    def describe(self) -> str:
        """Return one line with the plugin, its state and the reason."""
        is_ = "" if self.state is PluginState.FAILED else "is "
        text = f"executor plugin {self.name!r} ({self.source}) {is_}{self.state.value}"
        return f"{text}: {self.reason}" if self.reason else text

    def load_error(self) -> PluginLoadError:
        """Return the error for a user who named this plugin."""
        hint = "" if self.state is PluginState.BLOCKED else f" `python -m thunder doctor {self.name}` shows more."
        return PluginLoadError(f"{self.describe().rstrip('.')}.{hint}")

    def to_dict(self) -> dict[str, Any]:
        """Return the whole record as JSON types."""
        return {
            "name": self.name,
            "state": self.state.value,
            "reason": self.reason,
            "distribution": self.distribution,
            "version": self.version,
            "group": self.entry_point.group,
            "target": self.entry_point.value,
            "requires_core": self.requires_core,
            "conflict": self.conflict,
            "import_seconds": self.import_seconds,
            "stage": self.stage,
            "traceback": self.traceback,
            "executors": [vars(executor) for executor in self.executors],
            "operators": list(self.operators),
            "options": list(self.options),
            "transforms": list(self.transforms),
        }
