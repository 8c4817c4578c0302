# SPDX-License-Identifier: Apache-2.0
"""Adding to thunder from outside: executors, their operators and implementations, and the registry of them."""

from thunder.extend.compilation import Compilation, compilation, compiling
from thunder.extend.executor import Executor, FusionExecutor, Implementation, OperatorExecutor, implementations_epoch
from thunder.extend.registry import (
    ExecutorList,
    add_always_executor,
    add_default_executor,
    are_named,
    deregister_executor,
    get_all_executors,
    get_always_executors,
    get_default_executors,
    get_executor,
    named_executors,
    register_executor,
    remove_default_executor,
    resolve_executors,
    set_default_executors,
    symbol_of_id,
)

__all__ = [
    "Compilation",
    "Executor",
    "ExecutorList",
    "FusionExecutor",
    "Implementation",
    "OperatorExecutor",
    "add_always_executor",
    "add_default_executor",
    "are_named",
    "compilation",
    "compiling",
    "deregister_executor",
    "get_all_executors",
    "get_always_executors",
    "get_default_executors",
    "get_executor",
    "implementations_epoch",
    "named_executors",
    "register_executor",
    "remove_default_executor",
    "resolve_executors",
    "set_default_executors",
    "symbol_of_id",
]
