# SPDX-License-Identifier: Apache-2.0
"""The registry that stages the registrations of a plugin's hooks, and commits them.

Each plugin has a separate registry. Its executors stay private until all hooks of the plugin have succeeded. `commit`
then puts executors, options and passes into use in one step, and rolls back if it fails half way. A plugin that raises
in its last hook therefore leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from thunder.core.executor import ExecutorLike as Executor
from thunder.plugins.catalog import Catalog, OptionSpec, PassContext, TransformSpec
from thunder.plugins.record import ExecutorInfo, PluginRecord

if TYPE_CHECKING:
    from thunder.core.symbol import Symbol

__all__ = ["ExecutorHost", "PluginRegistry"]


class ExecutorHost(Protocol):
    """The interface that executors are registered with: the module `thunder.extend`, or a replacement in tests."""

    def register_executor(self, ex: Any, *, default: bool = False, priority: int = 0) -> Any: ...

    def deregister_executor(self, ex: Any) -> Any: ...

    def get_all_executors(self) -> Sequence[Any]: ...

    def get_default_executors(self) -> Sequence[Any]: ...


@dataclass(frozen=True)
class _Implementation:
    """A call of `register_implementation`, deferred to the commit."""

    executor: Any
    symbol: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


class PluginRegistry:
    """The registrations of one plugin. Hooks receive it. It is closed after the last hook."""

    def __init__(self, plugin: str) -> None:
        self.plugin = plugin
        self.owner = f"plugin {plugin!r}"  # the owner of its options and passes in messages
        self._executors: dict[str, tuple[Any, ExecutorInfo]] = {}
        self._operators: dict[str, Any] = {}
        self._implementations: list[_Implementation] = []
        self._options: list[OptionSpec] = []
        self._transforms: list[TransformSpec] = []
        self._closed = False

    # ---- for hooks -------------------------------------------------------------------------------------------------

    def register_executor(self, executor: Executor, *, default: bool = False, priority: int = 0) -> Executor:
        """Register an executor and return it.

        default: `thunder.jit` uses the executor even if the user does not name it.
        priority: operations are offered to executors of higher priority first. The torch executor is always last.
        """
        self._check_open()
        name = getattr(executor, "name", None)
        if not isinstance(name, str) or isinstance(executor, type):
            raise TypeError(
                f"register_executor needs an executor such as OperatorExecutor('acme'), but got {executor!r}"
            )
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise TypeError(f"the priority of executor {name!r} must be an integer, but it is {priority!r}")
        if name in self._executors:
            raise ValueError(f"plugin {self.plugin!r} registers two executors named {name!r}")
        version = getattr(executor, "version", None)
        info = ExecutorInfo(name, None if version is None else str(version), priority, bool(default))
        self._executors[name] = (executor, info)
        executor.plugin = self.plugin
        return executor

    def register_operator(self, name: str, *, executor: Executor | str | None = None, **definition: Any) -> Symbol:
        """Register a new operator and return its symbol.

        The arguments are the same as for `OperatorExecutor.register_operator`: `like=` or `meta=`, `fn=`, and the
        optional `module=`, `tags=`, `replaces=`, `bind_postprocess=`, `workspace=`, `capturable=`, `out=`. The
        operator is a kernel, which traces print on a separate line, unless `kernel=False`. `executor` is required only
        if the plugin registers several executors.
        """
        target = self.executor(executor)
        if name in self._operators:
            raise ValueError(f"plugin {self.plugin!r} registers two operators named {name!r}")
        # The executor is not in use yet, so the symbol can be created now. Implementations need the symbol.
        symbol: Symbol = target.register_operator(name, **{"kernel": True, **definition})
        self._operators[name] = symbol
        return symbol

    def register_implementation(
        self,
        symbol_or_id: Any,
        op: Any = None,
        *,
        executor: Executor | str | None = None,
        checker: Callable[..., Any] | None = None,
        execution_transform: Callable[..., Any] | None = None,
        grad_transform: Callable[..., Any] | None = None,
        priority: int | None = None,
        profitable: Callable[..., Any] | None = None,
        measured: bool | Callable[..., Any] | None = None,
    ) -> None:
        """Register how an executor runs an operation: directly by the operator `op`, or through `execution_transform`.

        Same as `OperatorExecutor.register_implementation`, but effective only when all hooks of the plugin have
        succeeded.
        """
        target = self.executor(executor)
        given = {
            "checker": checker,
            "execution_transform": execution_transform,
            "grad_transform": grad_transform,
            "priority": priority,
            "profitable": profitable,
            "measured": measured,
        }
        keywords = {key: value for key, value in given.items() if value is not None}
        self._implementations.append(_Implementation(target, symbol_or_id, () if op is None else (op,), keywords))

    def register_option(
        self,
        name: str,
        *,
        type: type | tuple[type, ...] = object,
        default: Any = None,
        help: str = "",
        choices: Iterable[Any] | None = None,
    ) -> OptionSpec:
        """Register a compile option. `thunder.jit(fn, NAME=value)` accepts the option and validates its value."""
        self._check_open()
        spec = OptionSpec(name, type, default, help, None if choices is None else tuple(choices), owner=self.owner)
        self._options.append(spec)
        return spec

    def register_transform(
        self,
        name: str,
        transform: Callable[[Any, PassContext], Any],
        *,
        phase: str,
        before: str | Iterable[str] = (),
        after: str | Iterable[str] = (),
        executor: Executor | str | None = None,
    ) -> TransformSpec:
        """Register a pass. `transform(trace, context)` returns a new trace, or the same trace if nothing changes.

        phase: one of `thunder.plugins.PHASES`.
        before, after: names of other passes of that phase. Names of absent passes are ignored.
        executor: an executor of this plugin. The pass then runs only in programs that use the executor.
        """
        self._check_open()
        user = None if executor is None else self.executor(executor).name
        spec = TransformSpec(name, transform, phase, _names(before), _names(after), owner=self.owner, executor=user)
        self._transforms.append(spec)
        return spec

    def executor(self, executor: Executor | str | None = None) -> Any:
        """Return the executor of this name that this plugin registered. Without a name, return its only executor."""
        self._check_open()
        if executor is None:
            if len(self._executors) == 1:
                return next(iter(self._executors.values()))[0]
            have = ", ".join(self._executors) or "none"
            raise ValueError(f"name the executor (executor=…): plugin {self.plugin!r} has registered {have}")
        name = executor if isinstance(executor, str) else getattr(executor, "name", executor)
        if name not in self._executors:
            raise ValueError(
                f"plugin {self.plugin!r} has not registered an executor {name!r}: call register_executor first"
            )
        return self._executors[name][0]

    def operator(self, name: str) -> Any:
        """Return the symbol of an operator that this plugin registered."""
        if name not in self._operators:
            have = ", ".join(self._operators) or "none"
            raise ValueError(f"plugin {self.plugin!r} has not registered an operator {name!r}; it has: {have}")
        return self._operators[name]

    # ---- for the manager -------------------------------------------------------------------------------------------

    @property
    def executors(self) -> dict[str, Any]:
        """The staged executors by name."""
        return {name: executor for name, (executor, _) in self._executors.items()}

    def close(self) -> None:
        """Reject further registrations."""
        self._closed = True

    def commit(self, host: ExecutorHost, catalog: Catalog) -> None:
        """Put all registrations into use. Put none into use if one of them is rejected."""
        if not (self._executors or self._options or self._transforms):
            raise ValueError(f"plugin {self.plugin!r} registers no executor, no option and no transform")
        self._check_names(host)
        for staged in self._implementations:
            staged.executor.register_implementation(staged.symbol, *staged.arguments, **staged.keywords)
        catalog.add(self._options, self._transforms)
        done: list[Any] = []
        try:
            for executor, info in self._executors.values():
                done.append(executor)
                host.register_executor(executor, default=info.default, priority=info.priority)
        except BaseException:
            catalog.remove(self.owner)
            withdraw(host, done)
            raise

    def describe_on(self, record: PluginRecord) -> None:
        """Store the registrations on the plugin's record."""
        record.executors = tuple(info for _, info in self._executors.values())
        record.operators = tuple(self._operators)
        record.options = tuple(option.name for option in self._options)
        record.transforms = tuple(transform.name for transform in self._transforms)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(
                f"the registry of plugin {self.plugin!r} is closed: register inside the thunder_register_* hooks"
            )

    def _check_names(self, host: ExecutorHost) -> None:
        in_use = {other.name: other for other in host.get_all_executors()}
        for name, (executor, _) in self._executors.items():
            other = in_use.get(name)
            if other is not None and other is not executor:
                version = getattr(other, "version", None)
                what = f"{name!r} (version {version})" if version else repr(name)
                raise ValueError(
                    f"an executor named {what} is already registered by core, another plugin or the program"
                )


def withdraw(host: ExecutorHost, executors: Iterable[Any]) -> None:
    """Deregister the executors that are in use."""
    for executor in executors:
        if any(other is executor for other in host.get_all_executors()):
            host.deregister_executor(executor)


def _names(names: str | Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
