# SPDX-License-Identifier: Apache-2.0
"""The torch executor: it runs every operation that torch has, under torch's name and with the same arguments.

Its implementations are derived. An operation of `thunder.torch` runs as the torch function of that name. A primitive
runs as the function that its declaration names. If torch's arguments differ, `@torch_impl` in the family files of this
folder implements the operation.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from thunder.core.devices import Device, to_torch_device
from thunder.core.dtypes import dtype as thunder_dtype
from thunder.core.dtypes import to_torch_dtype
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, OpTags, Symbol
from thunder.core.trace import imported
from thunder.extend import Implementation, OperatorExecutor
from thunder.runtime.kernels.table import kernel
from thunder.runtime.torch_originals import namespaces, original_torch
from thunder.torch.base import torch_function_map

__all__ = ["ex", "to_torch_arguments", "torch_impl"]

F = TypeVar("F", bound=Callable[..., Any])
MODULE = "thunder.executors.torchex"

# Python operators for calls whose first operand is a number, because torch's functions reject a number there.
_WITH_NUMBER_FIRST: dict[str, Callable[..., Any]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip

_NAMESPACES = ("torch", "torch.nn.functional", "torch.Tensor", "torch.special", "torch.linalg", "torch.fft")
# Programs call torch's functions as they were when thunder was loaded, whatever the user replaces them with.
imported.update(torch=original_torch, Tensor=namespaces["torch.Tensor"])


def to_torch_arguments(x: Any) -> Any:
    """Replace thunder's dtypes and devices in arguments by torch's."""
    kind = type(x)
    if kind is TensorProxy or kind is int or kind is float:
        return x
    if kind is tuple:
        return tuple([to_torch_arguments(i) for i in x])
    if kind is list:
        return [to_torch_arguments(i) for i in x]
    if kind is thunder_dtype:
        return to_torch_dtype(x)
    return to_torch_device(x) if kind is Device else x


def qualified_name(fn: Any) -> tuple[str | None, str]:
    """Return the module and name under which torch publishes `fn`. The module is None if no such name is found."""
    name = getattr(fn, "__name__", type(fn).__name__)
    for module in _NAMESPACES:
        if getattr(namespaces[module], name, None) is fn:
            return module, name
    return None, name


@functools.cache
def torch_operator(fn: Any, name: str | None = None, tags: frozenset[OpTags] = frozenset()) -> Symbol:
    """Return the symbol that runs a function of torch.

    In a trace, it decomposes into the operation of `thunder.torch`.
    """
    module, found = qualified_name(fn)

    def meta(*args: Any, **kwargs: Any) -> Any:
        sym = torch_function_map().get(fn)
        if sym is None:
            raise TypeError(
                f"{found} is not an operation of thunder.torch, so its result is unknown while tracing: claim "
                "an operation with it (register_implementation(symbol, op)) instead of calling it in a transform"
            )
        return sym(*args, **kwargs)

    return Symbol(
        found if module else (name or found),
        meta,
        id=("torchex", fn),
        module=module,
        executor=ex,
        fn=fn,
        tags=tuple(tags),
    )


class TorchExecutor(OperatorExecutor):
    """Runs operations with torch, one at a time."""

    is_fallback = True

    def implementation(self, bsym: BoundSymbol) -> Implementation | None:
        found = super().implementation(bsym)
        if found is not None and found.executable:
            return found
        if bsym.args and not isinstance(bsym.args[0], TensorProxy) and len(bsym.args) == 2 and not bsym.kwargs:
            fn = _WITH_NUMBER_FIRST.get(bsym.sym.name)
            if fn is not None and isinstance(bsym.args[1], TensorProxy):
                return Implementation(op=_python_operator(fn))
        return self._derived(bsym.sym)

    def unconditional(self, sym: Symbol) -> Implementation | None:
        found = self.implmap.get(sym.id)
        if (found is not None and found.executable) or (sym.executor is self and sym.fn is not None):
            return super().unconditional(sym)
        return None if sym.name in _WITH_NUMBER_FIRST else self._derived(sym)

    def _derived(self, sym: Symbol) -> Implementation | None:
        if OpTags.GRAD_OP in sym.tags:
            return None
        reference = sym.reference if not sym.is_prim else _resolve(sym.torch_names)
        return None if reference is None else _running(reference, sym.name, sym.tags)

    def arguments(self, bsym: BoundSymbol) -> tuple[tuple[Any, ...], dict[str, Any]]:
        kwargs = bsym.kwargs
        return to_torch_arguments(bsym.args), {k: to_torch_arguments(v) for k, v in kwargs.items()} if kwargs else {}


@functools.cache
def _running(fn: Any, name: str, tags: frozenset[OpTags]) -> Implementation:
    return Implementation(op=torch_operator(fn, name, tags))


@functools.cache
def _python_operator(fn: Any) -> Symbol:
    def meta(*args: Any) -> Any:
        return fn(*args)

    return Symbol(fn.__name__, meta, id=("torchex", fn), module="operator", executor=ex, fn=fn)


@functools.cache
def _resolve(names: tuple[str, ...]) -> Any:
    for name in names:
        found: Any = original_torch
        for part in name.split(".")[1:]:
            found = getattr(found, part, None)
        if found is not None:
            return found
    return None


ex = TorchExecutor("torch", version=torch.__version__)


def torch_impl(sym: Symbol, *, checker: Callable[..., bool | str] | None = None) -> Callable[[F], F]:
    """Register the decorated function as the implementation of `sym`, on real tensors, with the arguments of `sym`."""

    def register(fn: F) -> F:
        def meta(*args: Any, **kwargs: Any) -> Any:
            return sym(*args, **kwargs)

        kernel(fn)
        op = Symbol(fn.__name__, meta, id=("torchex", sym.id), module=MODULE, executor=ex, fn=fn, tags=tuple(sym.tags))
        ex.register_implementation(sym, op, checker=checker)
        return fn

    return register
