# SPDX-License-Identifier: Apache-2.0
"""The lifecycle of plugins in a process: discovered once, loaded separately on demand, and isolated when they fail.

A plugin that cannot be used never breaks `thunder.jit`. Its record contains the reason, one line is logged, and its
registrations are discarded. Only naming the plugin explicitly raises an error. pluggy's loader stops at the first
plugin that raises, and its broadcast calls stop at the first implementation that raises. Here each plugin has a
separate pluggy manager, so a failing plugin does not affect the others.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pluggy

from thunder.core.errors import PluginLoadError
from thunder.plugins import hookspecs
from thunder.plugins.catalog import Catalog
from thunder.plugins.discovery import discover, without_plugin
from thunder.plugins.env import Availability, Env
from thunder.plugins.profile import ConformanceProfile
from thunder.plugins.record import PluginRecord, PluginState
from thunder.plugins.registry import ExecutorHost, PluginRegistry, withdraw

__all__ = ["PluginManager"]

_log = logging.getLogger("thunder.plugins")

#: The errors that a plugin may raise without aborting the program: all except an interrupt. E.g. a library calls
#: sys.exit() at import because it finds no licence file or device. Its plugin then only counts as broken.
_PLUGIN_ERRORS = (Exception, SystemExit)

_NEVER_IMPORTED = frozenset({PluginState.BLOCKED, PluginState.INCOMPATIBLE})

_EXTEND = "thunder.extend"


class PluginManager:
    """Discovers, loads and stores plugins.

    The process has one manager (`thunder.plugins.manager()`); tests create others.
    """

    def __init__(
        self,
        *,
        scan: Callable[[], list[PluginRecord]] = discover,
        host: ExecutorHost | None = None,
        env: Env | None = None,
        catalog: Catalog | None = None,
    ) -> None:
        self.env = Env() if env is None else env
        self.catalog = Catalog() if catalog is None else catalog
        self._scan = scan
        self._host = host
        self._records: list[PluginRecord] | None = None
        self._hooks: dict[str, Any] = {}
        self._executors: dict[str, tuple[PluginRecord, Any]] = {}
        self._loading: list[PluginRecord] = []
        self._busy = False
        self._all_loaded = False
        self._lock = threading.RLock()

    # ---- discovery --------------------------------------------------------------------------------------------------

    def records(self) -> tuple[PluginRecord, ...]:
        """Return a record of every installed plugin. The first call scans metadata, and no call imports a plugin."""
        with self._lock:
            if self._records is None:
                self._records = self._scan()
                for record in self._records:
                    self._report(record)
            return tuple(self._records)

    def find(self, name: str) -> PluginRecord | None:
        """Return the record of the plugin `name`.

        If several plugins have that name, return the record of the plugin in use.
        """
        matches = [record for record in self.records() if record.name == name]
        # The record of a plugin that lost a name conflict must not hide the winner's record.
        return min(matches, key=lambda record: record.state in _NEVER_IMPORTED, default=None)

    def owner_of(self, executor: str) -> PluginRecord | None:
        """Return the plugin that registered the executor of this name, or None."""
        owned = self._executors.get(executor)
        return owned[0] if owned else None

    def conformance_profile(self, executor: str) -> ConformanceProfile | None:
        """Return the conformance profile that a plugin provides for the executor of this name, or None."""
        if executor not in self._executors:
            return None
        record, instance = self._executors[executor]
        profile = self._hooks[record.name].thunder_conformance_profile(executor=instance)
        if profile is not None and not isinstance(profile, ConformanceProfile):
            raise TypeError(
                f"thunder_conformance_profile of {record.source} returned {profile!r}, not a ConformanceProfile"
            )
        return profile

    def save_region(self, region: Any) -> tuple[str, Any] | None:
        """Return the module and the data with which a plugin describes the callable of a fusion.

        Return None if no plugin does.
        """
        for hooks in self._hooks.values():
            found = hooks.thunder_save_region(region=region)
            if found is not None:
                return found  # type: ignore[no-any-return]
        return None

    # ---- loading ---------------------------------------------------------------------------------------------------

    def load_all(self) -> None:
        """Load every compatible plugin that is not loaded yet. Never raise; failures are stored in the records."""
        if self._all_loaded:
            return
        with self._lock:
            # This is re-entered if a plugin compiles something during its import, or if `thunder.extend` lists
            # executors. Loading one plugin must not load the others.
            if self._busy:
                return
            for record in self.records():
                self._load(record)
            self._all_loaded = True

    def load_named(self, name: str) -> PluginRecord:
        """Load only the plugin `name` and return its record. Raise PluginLoadError if the plugin cannot be used.

        If no plugin has that name, a plugin may still provide an executor of that name. All plugins are then loaded to
        check this.
        """
        with self._lock:
            record = self.find(name)
            if record is None:
                self.load_all()
                record = self.owner_of(name)
            if record is None:
                raise PluginLoadError(self._unknown(name))
            self._load(record)
            if not record.ready:
                raise record.load_error()
            return record

    def reset(self) -> None:
        """Unregister everything that plugins registered, and drop the records. The next use scans again."""
        with self._lock, self._working():
            if self._executors:
                withdraw(self.host, [executor for _, executor in self._executors.values()])
            for record in self._records or ():
                self.catalog.remove(PluginRegistry(record.name).owner)
            self._records = None
            self._hooks.clear()
            self._executors.clear()
            self._all_loaded = False

    @property
    def host(self) -> ExecutorHost:
        """Return the module that executors are registered with.

        It imports torch, so it is imported as late as possible.
        """
        if self._host is None:
            # The import is local on purpose: commands about plugins (e.g. `thunder plugins list`) do not import torch.
            self._host = importlib.import_module(_EXTEND)
        return self._host

    def _load(self, record: PluginRecord) -> None:
        if record.state is not PluginState.COMPATIBLE or record in self._loading:
            return
        self._loading.append(record)
        try:
            with self._working():
                self._load_now(record)
        finally:
            self._loading.remove(record)
        self._report(record)

    def _load_now(self, record: PluginRecord) -> None:
        registry = PluginRegistry(record.name)
        before = self._in_use()
        try:
            self._run(record, registry)
        except _PLUGIN_ERRORS as error:
            record.fail(error)
            self._blame_torch(record)
        finally:
            registry.close()
            if record.pending:  # interrupted from the keyboard, so the next use tries again
                record.state, record.stage = PluginState.COMPATIBLE, None
        if record.ready:
            self._executors.update({name: (record, executor) for name, executor in registry.executors.items()})
            registry.describe_on(record)
        else:
            self._hooks.pop(record.name, None)
            # The plugin bypassed its registry and called thunder.extend directly.
            leaked = [executor for executor in self._in_use() if all(executor is not old for old in before)]
            if leaked:
                withdraw(self.host, leaked)

    def _run(self, record: PluginRecord, registry: PluginRegistry) -> None:
        """Run all stages of one plugin. It ends in READY or UNAVAILABLE, or raises with `record.stage` set."""
        with _stage(record, "import"):
            began = time.perf_counter()
            plugin = record.entry_point.load()
            record.import_seconds = time.perf_counter() - began
        with _stage(record, "hooks"):
            hooks = plugin_hooks(plugin, record)
            record.state = PluginState.LOADED
        with _stage(record, "thunder_probe"):
            answer = _availability(hooks.thunder_probe(env=self.env))
            if answer and self.env.torch_error is not None:
                answer = Availability(False, f"torch cannot be imported ({self.env.torch_error})")
            if not answer:
                record.end(PluginState.UNAVAILABLE, answer.reason)
                return
        for name in hookspecs.REGISTER_HOOKS:
            with _stage(record, name):
                getattr(hooks, name)(registry=registry)
        with _stage(record, "commit"):
            registry.commit(self.host, self.catalog)
        self._hooks[record.name] = hooks
        record.end(PluginState.READY, answer.reason or None)

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Make `load_all` a no-op within the context. The caller holds the lock."""
        busy, self._busy = self._busy, True
        try:
            yield
        finally:
            self._busy = busy

    def _in_use(self) -> Sequence[Any]:
        """Return the executors in use. Return none if torch, and therefore thunder.extend, cannot be imported."""
        if self.env.torch_error is not None:
            return ()
        return tuple(self.host.get_all_executors())

    def _blame_torch(self, record: PluginRecord) -> None:
        """Mark a plugin as unavailable (not as failed) if it failed because torch cannot be imported."""
        if self.env.torch_error is not None:
            record.end(PluginState.UNAVAILABLE, f"torch cannot be imported ({self.env.torch_error})")

    def _unknown(self, name: str) -> str:
        with self._working():
            executors = {executor.name for executor in self._in_use()}
        plugins = {record.name for record in self.records()}
        close = difflib.get_close_matches(name, executors | plugins, n=1)
        hint = f", did you mean {close[0]!r}?" if close else "."
        return (
            f"there is no executor {name!r}, and no installed distribution provides a plugin of that name{hint} "
            f"Executors: {', '.join(sorted(executors)) or 'none'}; plugins: {', '.join(sorted(plugins)) or 'none'}"
            f"{without_plugin(name)}"
        )

    def _report(self, record: PluginRecord) -> None:
        """Log one message for each plugin that is installed but not used, and for each plugin with a note."""
        if record.logged or record.pending:
            return
        record.logged = True
        if record.ready and not record.reason:
            _log.debug("%s", record.describe())
        elif record.ready:
            _log.info("%s", record.describe())  # the plugin is usable and has a note
        elif record.state is PluginState.UNAVAILABLE or (record.state is PluginState.BLOCKED and not record.conflict):
            _log.info("%s", record.describe())  # expected, e.g. a GPU plugin on a laptop or a disabled plugin
        else:
            _log.warning("%s. `python -m thunder doctor` shows more.", record.describe())


@contextmanager
def _stage(record: PluginRecord, name: str) -> Iterator[None]:
    """Set the current stage of a plugin. It stays on the record only if the stage raises."""
    record.stage = name
    yield
    record.stage = None


def plugin_hooks(plugin: Any, record: PluginRecord) -> Any:
    """Return the hooks of one plugin, in a separate pluggy manager. Raise if they do not match the hookspecs."""
    if isinstance(plugin, type):
        raise TypeError(f"{record.entry_point.value} is a class; the entry point must name a module, or an instance")
    _check_hooks(plugin, record)
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(plugin, record.name)
    manager.check_pending()
    if not manager.get_hookcallers(plugin):
        raise TypeError(f"{record.entry_point.value} implements no hook: mark its hooks with @thunder.plugins.hookimpl")
    return manager.hook


def _check_hooks(plugin: Any, record: PluginRecord) -> None:
    """Reject misspelt and unmarked hooks, and unknown arguments. pluggy ignores these, or reports them unclearly."""
    for name in dir(plugin):
        function = getattr(plugin, name) if name.startswith("thunder_") else None
        if not callable(function):
            continue
        marked = getattr(function, f"{hookspecs.PROJECT}_impl", None)
        if marked is None and name in hookspecs.HOOKS:
            raise TypeError(f"{name} in {record.entry_point.value} is not marked with @thunder.plugins.hookimpl")
        if marked is not None and name not in hookspecs.HOOKS and not marked.get("optionalhook"):
            close = difflib.get_close_matches(name, hookspecs.HOOKS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"the hooks are {', '.join(hookspecs.HOOKS)}"
            raise TypeError(f"{name} in {record.entry_point.value} is not a hook of thunder: {hint}")
        if name in hookspecs.HOOKS:
            given = inspect.signature(hookspecs.HOOKS[name]).parameters
            asked = inspect.signature(function).parameters.values()
            for p in asked:
                if p.name not in given and p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                    raise TypeError(
                        f"{name} in {record.entry_point.value} has an argument {p.name!r}, but the hook's are "
                        f"{', '.join(map(repr, given))}"
                    )


def _availability(answer: Any) -> Availability:
    if answer is None:  # the plugin has no probe and runs everywhere
        return Availability(True)
    if not isinstance(answer, Availability):
        raise TypeError(f"thunder_probe must return a thunder.plugins.Availability, but it returned {answer!r}")
    return answer
