# SPDX-License-Identifier: Apache-2.0
"""The hooks that thunder calls. They import their modules when they run, so importing this module is fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thunder.plugins import Availability, ConformanceProfile, hookimpl
from thunder_ex_multimul import __version__

if TYPE_CHECKING:
    from thunder.extend import Executor
    from thunder.plugins import Env, PluginRegistry


@hookimpl
def thunder_probe(env: Env) -> Availability:
    """Check whether NumPy is installed."""
    if not env.has_module("numpy"):
        return Availability(False, "needs NumPy: pip install numpy")
    return Availability(True)


@hookimpl
def thunder_register_executors(registry: PluginRegistry) -> None:
    """Register one default executor."""
    from thunder.extend import OperatorExecutor

    registry.register_executor(OperatorExecutor("multimul", version=__version__), default=True, priority=10)


@hookimpl
def thunder_register_operators(registry: PluginRegistry) -> None:
    """Register the operator that performs two multiplications in one call."""
    from thunder_ex_multimul import multimul

    registry.register_operator("multimul", like=multimul.like, fn=multimul.run)


@hookimpl
def thunder_register_implementations(registry: PluginRegistry) -> None:
    """Implement multiplication and its gradient."""
    import thunder.torch as ltorch
    from thunder_ex_multimul.mul import make_transforms, takes

    execution_transform, grad_transform = make_transforms(registry.operator("multimul"))
    registry.register_implementation(
        ltorch.mul, checker=takes, execution_transform=execution_transform, grad_transform=grad_transform
    )


@hookimpl
def thunder_conformance_profile(executor: Executor) -> ConformanceProfile:
    """Test the executor on the CPU, in the dtypes that `takes` accepts."""
    from thunder_ex_multimul.mul import DTYPES
    from thunder_ex_multimul.samples import opinfos

    return ConformanceProfile(devices=("cpu",), dtypes=DTYPES, opinfos=opinfos)
