# SPDX-License-Identifier: Apache-2.0
"""The built-in executors. Importing this module registers them."""
# There is no `from __future__ import annotations` here: help(add_operator_executor) shows annotations as they are
# written, and its documented signature contains exactly these.

from thunder.core.symbol import Symbol
from thunder.executors.flex_attention import ex as FLEX_ATTENTION
from thunder.executors.pythonex import ex as PYTHON
from thunder.executors.torch_compile import ex as TORCH_COMPILE
from thunder.executors.torchex.families import ex as TORCH
from thunder.extend import OperatorExecutor, add_always_executor, register_executor, symbol_of_id

__all__ = ["FLEX_ATTENTION", "PYTHON", "TORCH", "TORCH_COMPILE", "add_operator_executor"]

add_always_executor(TORCH)
add_always_executor(PYTHON)


def add_operator_executor(name, op_map, *, add_to_default_executors: bool = True) -> None:  # type: ignore[no-untyped-def]
    """Create and register an executor from a map of operator ids to `(name, checker, implementation)`.

    The checker receives the operator's arguments as proxies. The implementation accepts and returns real tensors.
    """
    executor = OperatorExecutor(name)
    for id, (op_name, checker, implementation) in op_map.items():
        target = id if isinstance(id, Symbol) else symbol_of_id(id)
        description = {"meta" if target.is_prim else "like": target.meta}
        op = executor.register_operator(op_name, **description, fn=implementation, tags=tuple(target.tags), kernel=True)
        executor.register_implementation(target, op, checker=checker)
    register_executor(executor, default=add_to_default_executors)


add_operator_executor.__module__ = "thunder.executors"  # the documented module, which `help()` prints
