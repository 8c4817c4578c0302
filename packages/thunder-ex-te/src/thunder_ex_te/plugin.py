# SPDX-License-Identifier: Apache-2.0
"""The hooks that thunder calls. What they need is imported when they run: importing this module costs nothing."""

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
    """Return a Hopper GPU, and a TransformerEngine that loads."""
    return Availability.unless(why_not(env))


@hookimpl
def thunder_register_executors(registry: PluginRegistry) -> None:
    """Asked before all others, and takes nothing where no recipe is given."""
    from thunder.extend import OperatorExecutor

    registry.register_executor(OperatorExecutor(EXECUTOR, version=__version__), default=True, priority=50)


@hookimpl
def thunder_register_operators(registry: PluginRegistry) -> None:
    """Quantize, multiply, move scales on."""
    from thunder_ex_te import operators

    operators.register(registry, EXECUTOR)


@hookimpl
def thunder_register_implementations(registry: PluginRegistry) -> None:
    """Linear layers, and their gradients."""
    from thunder_ex_te import groups, linear
    from thunder_ex_te.operators import NAMES

    operators = {name: registry.operator(name) for name in NAMES}
    linear.register(registry, EXECUTOR, operators)
    groups.register(registry, EXECUTOR, operators)


@hookimpl
def thunder_register_options(registry: PluginRegistry) -> None:
    """The recipe, and what goes with it."""
    from thunder_ex_te.groups import GROUP_LAYERS
    from thunder_ex_te.linear import GROUP, KEEP, RECIPE
    from thunder_ex_te.norms import FUSE

    registry.register_option(
        RECIPE, help="the recipe of TransformerEngine by which linear layers compute in fp8; None: they do not"
    )
    registry.register_option(
        GROUP, help="the process group whose members take the largest of their values for DelayedScaling's scales"
    )
    registry.register_option(
        KEEP, type=bool, default=True, help="whether fp8 copies of parameters stay until the parameters change"
    )
    registry.register_option(
        GROUP_LAYERS, type=bool, default=True, help="whether layers of the pieces of one matrix are one operator"
    )
    registry.register_option(
        FUSE,
        type=(bool, type(None)),
        help="whether a norm gives its result in fp8, where only layers in fp8 read it (None: where it pays)",
    )


@hookimpl
def thunder_register_transforms(registry: PluginRegistry) -> None:
    """What is done with whole programs."""
    from thunder_ex_te import linear, passes
    from thunder_ex_te.operators import NAMES

    operators = {name: registry.operator(name) for name in NAMES}
    passes.register(registry, EXECUTOR, operators, linear.writes(operators), registry.operator("te_grouped_linear"))


@hookimpl
def thunder_conformance_profile(executor: Executor) -> ConformanceProfile:
    """Tested on a GPU, in the dtypes that linear layers are taken in."""
    from thunder_ex_te.samples import TOLERANCES, opinfos

    return ConformanceProfile(
        devices=("cuda",),
        dtypes=("float32", "float16", "bfloat16"),
        tolerances=TOLERANCES,
        known_failures=Path(__file__).with_name("known_failures.toml"),
        opinfos=opinfos,
    )
