# SPDX-License-Identifier: Apache-2.0
"""The hooks that thunder calls. What they need is imported when they run: importing this module costs nothing."""

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
    """Return an NVIDIA GPU, and a wheel of nvFuser that fits this torch. The library is not loaded for that."""
    return Availability.unless(why_not(env), note=neighbour(env))


@hookimpl
def thunder_register_executors(registry: PluginRegistry) -> None:
    """A default where it is the only fuser that can be used: one program is fused by one, and Triton's is faster."""
    from thunder_ex_nvfuser.executor import NvFusion

    registry.register_executor(NvFusion(EXECUTOR, version=__version__), default=not is_usable("triton"), priority=10)


@hookimpl
def thunder_register_transforms(registry: PluginRegistry) -> None:
    """Random numbers inside fusions."""
    from thunder_ex_nvfuser import random

    random.register(registry, EXECUTOR)


@hookimpl
def thunder_conformance_profile(executor: Executor) -> ConformanceProfile:
    """Tested on a GPU. Sums are taken in another order than torch's."""
    from thunder_ex_nvfuser.samples import opinfos

    return ConformanceProfile(
        devices=("cuda",),
        tolerances={"float32": (5e-6, 1e-5)},
        known_failures=Path(__file__).with_name("known_failures.toml"),
        opinfos=opinfos,
    )
