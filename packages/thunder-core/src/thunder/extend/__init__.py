# SPDX-License-Identifier: Apache-2.0
"""The parts that executors are built from: executor classes, their registry, and the IR of programs.

- Executors: `OperatorExecutor`, `FusionExecutor`, and their registry.
- The IR: a `Trace` is a list of `BoundSymbol`s. Each is a `Symbol` with its arguments and results, which are `Proxy`
  objects. `rewrite` and `recording` write operations. `thunder.torch` and `thunder.prims` define operations.
- Gradient rules: `get_grad`, `put_grad`, `put_grads`.

`thunder.toolkit` has the tools for executors: claiming, regions for fusion executors, the conformance suite and
benchmarks. `thunder.plugins` discovers and loads plugins.
"""

from typing import TYPE_CHECKING

from thunder.core import devices, dtypes
from thunder.core.deprecations import old_names
from thunder.core.devices import to_device, to_torch_device
from thunder.core.dtypes import to_dtype, to_torch_dtype
from thunder.core.errors import ThunderError, UnsupportedError
from thunder.core.nbytes import bytes_of, in_bytes, known_shape
from thunder.core.prims import get_grad, put_grad, put_grads
from thunder.core.prims.structure import Saved
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.state import current_trace, tracectx
from thunder.core.strides import Strides, dense_strides
from thunder.core.symbol import BoundSymbol, OpTags, Symbol, argument_key, map_proxies, proxies_in
from thunder.core.symint.numbers import SymbolicNumber
from thunder.core.trace import Trace, construct
from thunder.extend.choice_store import write_once
from thunder.extend.compile_state import Compilation, compilation, compiling
from thunder.extend.executor import Executor, FusionExecutor, Implementation, OperatorExecutor, implementations_epoch
from thunder.extend.memory import NewResults, ResultMemory
from thunder.extend.operations import symbol_of_id
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
    is_left_to_torch,
    named_executors,
    register_executor,
    remove_default_executor,
    resolve_executors,
    set_default_executors,
)
from thunder.extend.rewriting import recording, rewrite
from thunder.runtime.device_tables import device_table, is_capturing_graph

__all__ = [
    "BoundSymbol",
    "Compilation",
    "Executor",
    "ExecutorList",
    "FusionExecutor",
    "Implementation",
    "NewResults",
    "NumberProxy",
    "OpTags",
    "OperatorExecutor",
    "Proxy",
    "ResultMemory",
    "Saved",
    "Strides",
    "Symbol",
    "SymbolicNumber",
    "TensorProxy",
    "ThunderError",
    "Trace",
    "UnsupportedError",
    "add_always_executor",
    "add_default_executor",
    "are_named",
    "argument_key",
    "bytes_of",
    "compilation",
    "compiling",
    "construct",
    "current_trace",
    "dense_strides",
    "deregister_executor",
    "device_table",
    "devices",
    "dtypes",
    "get_all_executors",
    "get_always_executors",
    "get_default_executors",
    "get_executor",
    "get_grad",
    "implementations_epoch",
    "in_bytes",
    "is_capturing_graph",
    "is_left_to_torch",
    "known_shape",
    "map_proxies",
    "named_executors",
    "proxies_in",
    "put_grad",
    "put_grads",
    "recording",
    "register_executor",
    "remove_default_executor",
    "resolve_executors",
    "rewrite",
    "set_default_executors",
    "symbol_of_id",
    "to_device",
    "to_dtype",
    "to_torch_device",
    "to_torch_dtype",
    "tracectx",
    "write_once",
]

if not TYPE_CHECKING:  # type checkers report unknown names
    __getattr__ = old_names(__name__)
