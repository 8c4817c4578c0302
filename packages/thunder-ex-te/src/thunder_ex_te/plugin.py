# SPDX-License-Identifier: Apache-2.0
"""The plugin's hooks. Each hook imports its modules when it runs, so importing this file is cheap."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from thunder.plugins import Availability, ConformanceProfile, hookimpl
from thunder_ex_te import __version__
from thunder_ex_te.probe import why_not

if TYPE_CHECKING:
    from thunder.extend import Executor
    from thunder.plugins import Env, PluginRegistry

EXECUTOR = "te"


@hookimpl
def thunder_probe(env: Env) -> Availability:
    """Check for a Hopper GPU and a compatible TransformerEngine."""
    return Availability.unless(why_not(env))


@hookimpl
def thunder_register_executors(registry: PluginRegistry) -> None:
    """Register the executor, first among the defaults. Without a recipe it claims nothing."""
    from thunder.extend import OperatorExecutor

    registry.register_executor(OperatorExecutor(EXECUTOR, version=__version__), default=True, priority=50)


@hookimpl
def thunder_register_operators(registry: PluginRegistry) -> None:
    """Register the operators."""
    from thunder_ex_te import operators

    operators.register(registry, EXECUTOR)


@hookimpl
def thunder_register_implementations(registry: PluginRegistry) -> None:
    """Register the linear layers and their gradients."""
    from thunder_ex_te import groups, linear
    from thunder_ex_te.operators import NAMES

    operators = {name: registry.operator(name) for name in NAMES}
    linear.register(registry, EXECUTOR, operators)
    groups.register(registry, EXECUTOR, operators)


@hookimpl
def thunder_register_options(registry: PluginRegistry) -> None:
    """Register the recipe and the related options."""
    from thunder_ex_te.groups import GROUP_LAYERS
    from thunder_ex_te.linear import GROUP, KEEP, RECIPE
    from thunder_ex_te.norms import FUSE

    registry.register_option(
        RECIPE, help="TransformerEngine's recipe for linear layers in fp8 (None: no layer runs in fp8)"
    )
    registry.register_option(
        GROUP, help="the process group over which DelayedScaling reduces the largest absolute values (amax)"
    )
    registry.register_option(
        KEEP, type=bool, default=True, help="whether to keep fp8 copies of parameters until the parameters change"
    )
    registry.register_option(
        GROUP_LAYERS, type=bool, default=True, help="whether to merge layers of the row groups of one matrix (experts)"
    )
    registry.register_option(
        FUSE,
        type=(bool, type(None)),
        help="whether a norm whose result only fp8 layers read is computed in fp8 (None: if profitable)",
    )


@hookimpl
def thunder_register_transforms(registry: PluginRegistry) -> None:
    """Register the passes."""
    from thunder_ex_te import linear, passes
    from thunder_ex_te.operators import NAMES

    operators = {name: registry.operator(name) for name in NAMES}
    passes.register(registry, EXECUTOR, operators, linear.writes(operators), registry.operator("te_grouped_linear"))


@hookimpl
def thunder_conformance_profile(executor: Executor) -> ConformanceProfile:
    """Return the devices, dtypes and tolerances of the conformance tests."""
    from thunder_ex_te.samples import TOLERANCES, opinfos

    return ConformanceProfile(
        devices=("cuda",),
        dtypes=("float32", "float16", "bfloat16"),
        tolerances=TOLERANCES,
        known_failures=Path(__file__).with_name("known_failures.toml"),
        opinfos=opinfos,
    )
