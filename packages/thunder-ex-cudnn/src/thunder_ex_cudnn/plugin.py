# SPDX-License-Identifier: Apache-2.0
"""The plugin's hooks. Each hook imports its modules when it runs, so importing this file is cheap."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from thunder.plugins import Availability, ConformanceProfile, hookimpl
from thunder_ex_cudnn import __version__
from thunder_ex_cudnn.probe import why_not

if TYPE_CHECKING:
    from thunder.extend import Executor
    from thunder.plugins import Env, PluginRegistry

EXECUTOR = "cudnn"


@hookimpl
def thunder_probe(env: Env) -> Availability:
    """Check for an NVIDIA GPU, cuDNN and its frontend."""
    return Availability.unless(why_not(env))


@hookimpl
def thunder_register_executors(registry: PluginRegistry) -> None:
    """Register the executor as a default, before fusion executors."""
    from thunder.extend import NewResults, OperatorExecutor

    executor = OperatorExecutor(EXECUTOR, version=__version__, memory=NewResults())
    registry.register_executor(executor, default=True, priority=40)


@hookimpl
def thunder_register_implementations(registry: PluginRegistry) -> None:
    """Register attention and norms, and their gradients."""
    from thunder_ex_cudnn.attention import implementation as attention
    from thunder_ex_cudnn.attention import varlen
    from thunder_ex_cudnn.norms import implementation as norms

    attention.register(registry, EXECUTOR)
    varlen.register(registry, EXECUTOR)
    norms.register(registry, EXECUTOR)


@hookimpl
def thunder_register_transforms(registry: PluginRegistry) -> None:
    """Register the passes: attention in separate operations, unused gradients, and copies of operands."""
    from thunder_ex_cudnn.attention import operands, patterns

    patterns.register(registry, EXECUTOR)
    operands.register(registry, EXECUTOR)


@hookimpl
def thunder_conformance_profile(executor: Executor) -> ConformanceProfile:
    """Return the devices and dtypes of the conformance tests. Attention supports only half precision."""
    from thunder_ex_cudnn.samples import opinfos

    return ConformanceProfile(
        devices=("cuda",),
        dtypes=("float32", "float16", "bfloat16"),
        known_failures=Path(__file__).with_name("known_failures.toml"),
        opinfos=opinfos,
    )
