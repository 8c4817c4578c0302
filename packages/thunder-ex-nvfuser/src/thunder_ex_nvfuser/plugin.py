# SPDX-License-Identifier: Apache-2.0
"""The plugin's hooks. Each hook imports its modules when it runs, so importing this file is cheap."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from thunder.plugins import Availability, ConformanceProfile, hookimpl, is_usable
from thunder_ex_nvfuser import __version__
from thunder_ex_nvfuser.probe import neighbour, why_not

if TYPE_CHECKING:
    from thunder.extend import Executor
    from thunder.plugins import Env, PluginRegistry

EXECUTOR = "nvfuser"


@hookimpl
def thunder_probe(env: Env) -> Availability:
    """Check for an NVIDIA GPU and a wheel of nvFuser that is compatible with this torch, without loading it."""
    return Availability.unless(why_not(env), note=neighbour(env))


@hookimpl
def thunder_register_executors(registry: PluginRegistry) -> None:
    """Register the executor. It is a default only if Triton's faster fusion executor is not usable."""
    from thunder_ex_nvfuser.executor import NvFusion

    registry.register_executor(NvFusion(EXECUTOR, version=__version__), default=not is_usable("triton"), priority=10)


@hookimpl
def thunder_register_transforms(registry: PluginRegistry) -> None:
    """Register random numbers in fusions."""
    from thunder_ex_nvfuser import random

    random.register(registry, EXECUTOR)


@hookimpl
def thunder_conformance_profile(executor: Executor) -> ConformanceProfile:
    """Return the devices and tolerances of the conformance tests. nvFuser computes sums in another order than torch."""
    from thunder_ex_nvfuser.samples import opinfos

    return ConformanceProfile(
        devices=("cuda",),
        tolerances={"float32": (5e-6, 1e-5)},
        known_failures=Path(__file__).with_name("known_failures.toml"),
        opinfos=opinfos,
    )
