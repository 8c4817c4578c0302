# SPDX-License-Identifier: Apache-2.0
"""Executors that compute wrong results, for tests of what finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.core import prims
from thunder.core.trace import Trace
from thunder.execution.claim import transform_for_execution
from thunder.execution.excerpt import excerpt
from thunder.execution.regions import Region, fused, partition
from thunder.extend import (
    FusionExecutor,
    OperatorExecutor,
    deregister_executor,
    get_always_executors,
    register_executor,
)


@contextmanager
def operator_executor(name: str = "wrong", **kernels: Callable[..., Any]) -> Iterator[OperatorExecutor]:
    """Register an executor with a kernel for each of these operations of torch."""
    executor = OperatorExecutor(name)
    register_executor(executor)
    for operation, fn in kernels.items():
        symbol = getattr(ltorch, operation)
        executor.register_implementation(symbol, executor.register_operator(f"{name}_{operation}", like=symbol, fn=fn))
    try:
        yield executor
    finally:
        deregister_executor(executor)


class Fuser(FusionExecutor):
    """Fuses sines and exponentials. A fusion that contains an exponential is wrong by `factor`."""

    factor = 1.0

    def fusion_pass(self, trace: Trace) -> Trace:
        def run(region: Region) -> Any:
            parts = region.operations
            factor = self.factor if any(op.sym.name == "exp" for op in parts) else 1.0
            program = transform_for_execution(excerpt(region.inputs, parts, region.outputs), get_always_executors())
            computed = program[-1].python_callable(decorators=False)

            def kernel(*inputs: torch.Tensor) -> Any:
                return tuple(x * factor for x in computed(*inputs))

            where = {"inputs": region.inputs, "outputs": region.outputs, "bsyms": parts}
            return [self.register_temporary_operation("chain", kernel, **where)]

        return fused(trace, partition(trace, lambda op: self.can_fuse(op) and bool(op.out_names)), run, "Chains")


@contextmanager
def fuser(factor: float) -> Iterator[Fuser]:
    """Register a fusion executor."""
    executor = Fuser("chains")
    executor.factor = factor
    for prim in (prims.sin, prims.exp):
        executor.register_supported(prim)
    register_executor(executor)
    try:
        yield executor
    finally:
        deregister_executor(executor)
