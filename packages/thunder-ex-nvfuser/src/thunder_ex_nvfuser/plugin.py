# SPDX-License-Identifier: Apache-2.0
"""The plugin's hooks. They import what they need when they run, so that importing this module is cheap."""

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
    """Register the executor, as a default only where Triton's faster one is not usable: one fuser is enough."""
    from thunder_ex_nvfuser.executor import NvFusion

    registry.register_executor(NvFusion(EXECUTOR, version=__version__), default=not is_usable("triton"), priority=10)


@hookimpl
def thunder_register_transforms(registry: PluginRegistry) -> None:
    """Register random numbers in fusions."""
    from thunder_ex_nvfuser import random

    random.register(registry, EXECUTOR)


@hookimpl
def thunder_conformance_profile(executor: Executor) -> ConformanceProfile:
    """Return the devices and tolerances to test with: sums are taken in another order than torch's."""
    from thunder_ex_nvfuser.samples import opinfos

    return ConformanceProfile(
        devices=("cuda",),
        tolerances={"float32": (5e-6, 1e-5)},
        known_failures=Path(__file__).with_name("known_failures.toml"),
        opinfos=opinfos,
    )
