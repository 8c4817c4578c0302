# SPDX-License-Identifier: Apache-2.0
"""The contract between thunder and an executor plugin, version 1: the hooks that a plugin module implements.

A plugin implements the hooks it needs and marks each with `@hookimpl`. An implementation may leave out arguments it
does not use; a function whose name begins with `thunder_` and is no hook is an error, so that a misspelt hook does
not go unnoticed.

thunder calls the hooks of one plugin at a time, in the order below, once a process. What they register is staged:
when one of them raises, everything the plugin registered before is dropped with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    """Can this plugin run here?

    Called right after the plugin module was imported, before anything is registered. Return `Availability(True)`, or
    `Availability(False, reason)` with a line that tells the user what is missing: a library, a GPU, a driver, a newer
    torch. The plugin is then recorded as unavailable, and thunder goes on without it. `Availability(True, note)` has
    `doctor` say what is worth knowing of a plugin that can run.

    Import no heavy library here when a cheaper question will do: `env.has_module("acme")` and
    `env.version_of("acme-kernels")` import nothing; `thunder.plugins.major_and_minor(version)` gives two numbers to
    compare. `env.lacks_gpu((8, 0))` is the line where no GPU of that compute capability or newer can be used. A plugin
    without this hook runs everywhere.
    """


@hookspec
def thunder_register_executors(registry: PluginRegistry) -> None:
    """Register the executors this plugin brings, one or several.

    `registry.register_executor(executor, default=True, priority=10)`: a default executor is used by `thunder.jit`
    without being named; executors of higher priority are asked first, those of equal priority in the order of their
    names.
    """


@hookspec
def thunder_register_operators(registry: PluginRegistry) -> None:
    """Register new operators that the executors of this plugin run, with their meta function or a `like` function.

    `registry.register_operator(name, like=…, fn=…)` returns the operator's symbol, as
    `OperatorExecutor.register_operator` does.
    """


@hookspec
def thunder_register_implementations(registry: PluginRegistry) -> None:
    """Say which operations of thunder the executors of this plugin take, and under which conditions.

    `registry.register_implementation(ltorch.mul, checker=…, execution_transform=…, grad_transform=…)`. `priority=`
    for a single operation overrides the executor's priority. `profitable=` is a second checker, asked where nobody
    named the executor: what it can run, and others run faster, is left to them.
    """


@hookspec
def thunder_register_options(registry: PluginRegistry) -> None:
    """Register the compile options this plugin understands: `thunder.jit(fn, acme_precision="high")` is then accepted.

    `registry.register_option(name, type=…, default=…, help=…)`. An option that nobody registered is an error.

    Passes find what was given in `context.options`; checkers, execution transforms and gradient rules in
    `thunder.extend.compilation().options`.
    """


@hookspec
def thunder_register_transforms(registry: PluginRegistry) -> None:
    """Register passes over traces, each for a phase of compilation and before or after other passes of that phase.

    `registry.register_transform(name, transform, phase="before_execution", before=(), after=())`; `transform(trace,
    context)` returns a trace, and finds the user's options in `context.options`.
    """


@hookspec(firstresult=True)
def thunder_conformance_profile(executor: Executor) -> ConformanceProfile | None:
    """How the conformance suite is to test `executor`, one of this plugin's.

    Devices, dtypes, tolerances, known failures, and the OpInfos of the plugin's own operators. Called only by the
    suite. An executor without a profile is tested on the CPU, with every dtype and the suite's own tolerances.
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
    )
}

#: The hooks that fill a plugin's staged registry.
REGISTER_HOOKS = tuple(name for name in HOOKS if name.startswith("thunder_register_"))
