# SPDX-License-Identifier: Apache-2.0
"""The plugin's hooks. Each hook imports its modules when it runs, so importing this file is cheap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thunder.plugins import Availability, ConformanceProfile, hookimpl
from thunder_ex_apex import __version__
from thunder_ex_apex.probe import CROSS_ENTROPY, NORMS, loads, why_not

if TYPE_CHECKING:
    from thunder.extend import Executor
    from thunder.plugins import Env, PluginRegistry

LOSS = "apex"
NORM = "apex_norm"


@hookimpl
def thunder_probe(env: Env) -> Availability:
    """Check for an NVIDIA GPU and an extension of apex that loads."""
    return Availability.unless(why_not(env))


@hookimpl
def thunder_register_executors(registry: PluginRegistry) -> None:
    """Register an executor per extension. Triton's cross-entropy is faster (measured), so it has a higher priority."""
    from thunder.extend import OperatorExecutor

    if loads(CROSS_ENTROPY):
        registry.register_executor(OperatorExecutor(LOSS, version=__version__), default=True, priority=15)
    if loads(NORMS):
        registry.register_executor(OperatorExecutor(NORM, version=__version__))


@hookimpl
def thunder_register_implementations(registry: PluginRegistry) -> None:
    """Register cross-entropy and norms, and their gradients."""
    if loads(CROSS_ENTROPY):
        from thunder_ex_apex import cross_entropy

        cross_entropy.register(registry, LOSS)
    if loads(NORMS):
        from thunder_ex_apex import norms

        norms.register(registry, NORM)


@hookimpl
def thunder_conformance_profile(executor: Executor) -> ConformanceProfile:
    """Return the devices and dtypes of the conformance tests: those that the checkers accept."""
    from thunder_ex_apex import cross_entropy, norms, samples

    if executor.name == LOSS:
        return ConformanceProfile(devices=("cuda",), dtypes=cross_entropy.DTYPES, opinfos=samples.loss_opinfos)
    return ConformanceProfile(
        devices=("cuda",), dtypes=norms.DTYPES, tolerances=norms.TOLERANCES, opinfos=samples.norm_opinfos
    )
