# SPDX-License-Identifier: Apache-2.0
"""The hook specifications of executor plugins, version 1: the hooks that a plugin module implements.

A plugin implements the hooks that it needs, and marks each with `@hookimpl`. An implementation may omit arguments that
it does not use. A function is an error if its name begins with `thunder_` but it is not a hook, so that misspelt hooks
are noticed.

thunder calls the hooks of one plugin at a time, in the order below, once per process. Registrations are staged: if a
hook raises, all earlier registrations of the plugin are discarded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from thunder.core.executor import ExecutorLike as Executor
    from thunder.plugins.env import Availability, Env
    from thunder.plugins.profile import ConformanceProfile
    from thunder.plugins.registry import PluginRegistry

__all__ = ["HOOKS", "PROJECT", "REGISTER_HOOKS", "hookimpl", "hookspec"]

PROJECT = "thunder"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec(firstresult=True)
def thunder_probe(env: Env) -> Availability | None:
    """Return whether this plugin can run on this machine.

    thunder calls this hook immediately after it imports the plugin module, before anything is registered. Return
    `Availability(True)`, or `Availability(False, reason)`. The reason is one line that names the missing library, GPU,
    driver or newer torch. The plugin is then recorded as unavailable, and thunder runs without it. `doctor` prints the
    note of `Availability(True, note)`.

    Do not import a heavy library here if a cheaper check is enough. `env.has_module("acme")` and
    `env.version_of("acme-kernels")` import nothing. `thunder.plugins.major_and_minor(version)` returns two numbers to
    compare. `env.lacks_gpu((8, 0))` returns a reason if there is no usable GPU of that compute capability or newer. A
    plugin without this hook runs everywhere.
    """


@hookspec
def thunder_register_executors(registry: PluginRegistry) -> None:
    """Register the executors of this plugin.

    `registry.register_executor(executor, default=True, priority=10)`: `thunder.jit` uses a default executor even if the
    user does not name it. Executors claim operations in order of descending priority, then by name.
    """


@hookspec
def thunder_register_operators(registry: PluginRegistry) -> None:
    """Register new operators of this plugin's executors, with their meta function or a `like` function.

    `registry.register_operator(name, like=…, fn=…)` returns the operator's symbol, like
    `OperatorExecutor.register_operator`.
    """


@hookspec
def thunder_register_implementations(registry: PluginRegistry) -> None:
    """Declare which operations of thunder the executors of this plugin implement, and under which conditions.

    `registry.register_implementation(ltorch.mul, checker=…, execution_transform=…, grad_transform=…)`. `priority=`
    overrides the executor's priority for this operation. `profitable=` is a second checker. It is called if the user
    named no executor, and rejects calls that other executors run faster. With `measured=`, measurements decide that
    instead if the user asks for them.
    """


@hookspec
def thunder_register_options(registry: PluginRegistry) -> None:
    """Register the compile options of this plugin. `thunder.jit(fn, acme_precision="high")` is then accepted.

    `registry.register_option(name, type=…, default=…, help=…)`. An option that is not registered raises an error.

    Passes read the user's options from `context.options`. Checkers, execution transforms and gradient rules read them
    from `thunder.extend.compilation().options`.
    """


@hookspec
def thunder_register_transforms(registry: PluginRegistry) -> None:
    """Register passes over traces.

    Each pass belongs to a phase of compilation, before or after other passes of that phase.

    `registry.register_transform(name, transform, phase="before_execution", before=(), after=())`. `transform(trace,
    context)` returns a trace, and reads the user's options from `context.options`.
    """


@hookspec(firstresult=True)
def thunder_conformance_profile(executor: Executor) -> ConformanceProfile | None:
    """Return the profile with which the conformance suite tests `executor`, one of this plugin's executors.

    The profile has devices, dtypes, tolerances, known failures, and the OpInfos of the plugin's operators. Only the
    suite calls this hook. An executor without a profile is tested on the CPU, with every dtype and the suite's
    tolerances.
    """


@hookspec(firstresult=True)
def thunder_save_region(region: Any) -> tuple[str, Any] | None:
    """Describe the callable of a fusion, so that another process can run it without compiling it.

    Return the name of a module of the plugin, and data of JSON's types. The module has a function `load_region(data)`,
    which returns the callable. It should load no more than the callable needs. Return None for a callable that is not
    this plugin's. Raise an exception with the reason if the fusion cannot be saved; its program is then not saved.

    thunder calls this hook after the fusion has run for the first time. Data is read back only if the versions and the
    sources of all plugins and the GPUs are the same.
    """


#: Every hook by name, in the order in which thunder calls them.
HOOKS = {
    hook.__name__: hook
    for hook in (
        thunder_probe,
        thunder_register_executors,
        thunder_register_operators,
        thunder_register_implementations,
        thunder_register_options,
        thunder_register_transforms,
        thunder_conformance_profile,
        thunder_save_region,
    )
}

#: The hooks that register into a plugin's staged registry.
REGISTER_HOOKS = tuple(name for name in HOOKS if name.startswith("thunder_register_"))
