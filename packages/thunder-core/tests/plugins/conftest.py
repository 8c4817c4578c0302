# SPDX-License-Identifier: Apache-2.0
"""What the tests of plugins share: stand-ins for executors and their registry, and plugins made from a few lines."""

from __future__ import annotations

import itertools
import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from thunder.plugins import Env, PluginManager, PluginRecord, PluginState
from thunder.plugins.discovery import GROUP

_numbers = itertools.count()


class FakeExecutor:
    """As much of an executor as a registry touches."""

    def __init__(self, name: str, version: str | None = None) -> None:
        self.name, self.version = name, version
        self.operators: list[str] = []
        self.implementations: list[Any] = []

    def register_operator(self, name: str, **definition: Any) -> SimpleNamespace:
        self.operators.append(name)
        return SimpleNamespace(name=name, definition=definition)

    def register_implementation(self, symbol: Any, *arguments: Any, **keywords: Any) -> None:
        if symbol == "unknown":
            raise ValueError("there is no symbol with the id 'unknown'")
        self.implementations.append((symbol, arguments, keywords))


class FakeHost:
    """As much of thunder.extend as the manager uses, with a way to fail."""

    def __init__(self) -> None:
        self.registered: dict[str, tuple[Any, bool, int]] = {}
        self.refuse: str | None = None

    def register_executor(self, ex: Any, *, default: bool = False, priority: int = 0) -> Any:
        if ex.name == self.refuse:
            raise RuntimeError(f"{ex.name} is refused")
        self.registered[ex.name] = (ex, default, priority)
        return ex

    def deregister_executor(self, ex: Any) -> None:
        del self.registered[ex.name]

    def get_all_executors(self) -> tuple[Any, ...]:
        return tuple(ex for ex, _, _ in self.registered.values())

    def get_default_executors(self) -> tuple[Any, ...]:
        chosen = [(-priority, name, ex) for name, (ex, default, priority) in self.registered.items() if default]
        return tuple(ex for _, _, ex in sorted(chosen, key=lambda each: each[:2]))


@pytest.fixture
def host() -> FakeHost:
    """An empty registry of executors."""
    return FakeHost()


@pytest.fixture
def env() -> Env:
    """An environment whose torch works, without importing it."""
    return env_with(SimpleNamespace(__version__="2.99.0", version=SimpleNamespace(cuda=None)), None)


@pytest.fixture
def broken_env() -> Env:
    """An environment whose torch cannot be imported."""
    return env_with(None, "ImportError: libtorch.so: cannot open shared object file")


def env_with(torch: Any, error: str | None) -> Env:
    env = Env()
    env.__dict__["_torch"] = (torch, error)
    return env


PRELUDE = """
import conftest_of_plugins
from thunder.plugins import Availability, ConformanceProfile, hookimpl
Executor = conftest_of_plugins.FakeExecutor
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., PluginRecord]]:
    """`plugin(name, *sources)` makes a module of `sources` and the record of a compatible plugin that it is.

    The sources find `hookimpl`, `Availability`, `ConformanceProfile` and `Executor` defined. Without sources the
    plugin brings one default executor of its own name.
    """
    made: list[str] = []
    monkeypatch.setitem(sys.modules, "conftest_of_plugins", sys.modules[__name__])
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(name: str, *sources: str, distribution: str | None = None, **fields: Any) -> PluginRecord:
        module = f"plugin_under_test_{next(_numbers)}"
        made.append(module)
        parts = sources or (
            f"""
            @hookimpl
            def thunder_register_executors(registry):
                registry.register_executor(Executor({name!r}, version="1.0"), default=True)
            """,
        )
        text = "\n".join([PRELUDE, *map(textwrap.dedent, parts)])
        (tmp_path / f"{module}.py").write_text(text, encoding="utf-8")
        return PluginRecord(
            name=name,
            entry_point=EntryPoint(name, module, GROUP),
            distribution=distribution or f"thunder-ex-{name}",
            version="1.0",
            state=fields.pop("state", PluginState.COMPATIBLE),
            **fields,
        )

    yield make
    for module in made:
        sys.modules.pop(module, None)


@pytest.fixture
def manager_of(host: FakeHost, env: Env) -> Callable[..., PluginManager]:
    """`manager_of(*records)` makes a manager that finds these records, on the fake host and environment."""

    def make(*records: PluginRecord, **parts: Any) -> PluginManager:
        return PluginManager(scan=lambda: list(records), **{"host": host, "env": env, **parts})

    return make


@pytest.fixture
def site(tmp_path: Path) -> Callable[..., Path]:
    """`site(distribution, entry_points={group: {name: value}}, …)` writes metadata into a scratch site directory."""
    root = tmp_path / "site"

    def add(
        distribution: str,
        *,
        version: str = "1.0",
        entry_points: dict[str, dict[str, str]] | None = None,
        requires: tuple[str, ...] = (),
        folder: str = "",
    ) -> Path:
        info = root / folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = ["Metadata-Version: 2.1", f"Name: {distribution}", f"Version: {version}"]
        lines += [f"Requires-Dist: {requirement}" for requirement in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
        text = ""
        for group, entries in (entry_points or {}).items():
            text += f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        (info / "entry_points.txt").write_text(text, encoding="utf-8")
        return root / folder

    return add
