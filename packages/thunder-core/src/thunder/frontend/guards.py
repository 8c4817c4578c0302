# SPDX-License-Identifier: Apache-2.0
"""Guards: what a specialization checks before it answers a call, as operators of the python executor.

Each raises `GuardFailed` when what it looks at is not what it was when the program was traced. They stand in the prologue
trace, which prints like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.core import pytree
from thunder.core.proxies import AnyProxy, Proxy
from thunder.core.symbol import BoundSymbol, OpTags, Symbol
from thunder.executors.pythonex import ex as python_executor

__all__ = ["GuardFailed", "TensorCheck", "global_state"]


class GuardFailed(Exception):  # noqa: N818  (it is no error, only an answer)
    """The specialization is not for this call."""


_TAGS = (OpTags.CHECK_OP, OpTags.NON_DIFFERENTIABLE)


def _guard(fn: Callable[..., Any]) -> Symbol:
    """Decorator: an operator of the python executor that checks and returns nothing."""

    def meta(*args: Any) -> None:
        return None

    meta.__doc__ = fn.__doc__
    return python_executor.register_operator(fn.__name__, meta=meta, fn=fn, tags=_TAGS)


@_guard
def check_state(expected: tuple[Any, ...]) -> None:
    """torch's modes and defaults are as they were."""
    if global_state() != expected:
        raise GuardFailed("torch's global state (grad mode, autocast, default dtype or device, determinism)")


def global_state() -> tuple[Any, ...]:
    """The modes and defaults of torch that change what a program means."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cpu"),
        torch.get_autocast_dtype("cuda"),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
    )


@_guard
def check_positional(args: tuple[Any, ...], kwargs: dict[str, Any], count: int) -> None:
    """The call has that many positional arguments and no others."""
    if len(args) != count or kwargs:
        raise GuardFailed("the number of arguments")


@_guard
def check_value(x: Any, expected: Any) -> None:
    """A number, string or other plain value is of the same type and equal."""
    if type(x) is not type(expected) or (x != expected and not (x != x and expected != expected)):
        raise GuardFailed(f"the value {expected!r}")
    if type(x) is float and x == 0.0 and str(x) != str(expected):
        raise GuardFailed(f"the value {expected!r}")


@_guard
def check_is(x: Any, expected: Any) -> None:
    """It is the same object."""
    if x is not expected:
        raise GuardFailed(f"the object {expected!r:.80}")


@_guard
def check_attributes(x: Any, expected: dict[str, Any]) -> None:
    """Plain attributes of an object are as they were."""
    found = x.__dict__
    for name, value in expected.items():
        now = found.get(name, GuardFailed)
        if now is not value and (type(now) is not type(value) or now != value):
            raise GuardFailed(f"the attribute {name} of a {type(x).__name__}, which was {value!r}")


def module_shape(module: torch.nn.Module) -> tuple[Any, ...]:
    """What a module is made of: its class, its children by identity, the names of its tensors, its hooks."""
    d = module.__dict__
    return (
        type(module),
        tuple(d["_modules"].items()),
        tuple(d["_parameters"]),
        tuple(d["_buffers"]),
        tuple(d["_forward_hooks"].values()),
        tuple(d["_forward_pre_hooks"].values()),
        d.get("forward"),
    )


@_guard
def check_module(module: torch.nn.Module, expected: tuple[Any, ...]) -> None:
    """A module has the children, tensors and hooks that it had."""
    if module_shape(module) != expected:
        raise GuardFailed(f"the children, tensors or hooks of a {type(module).__name__}")


@_guard
def check_tensors(check: TensorCheck, tensors: Sequence[Any]) -> None:
    """Tensors have the shapes, strides, dtypes and devices that they had, and require grad alike."""
    if not check(tensors):
        raise GuardFailed(f"a tensor's metadata: {check.explain(tensors)}")


@_guard
def check_distinct(tensors: Sequence[torch.Tensor], written: Sequence[int]) -> None:
    """Inputs that the program writes to share no memory with others."""
    storages = [t.untyped_storage()._cdata for t in tensors]
    for i in written:
        if storages.count(storages[i]) != 1:
            raise GuardFailed("an input that is written in place shares memory with another")


class TensorCheck:
    """Compares the metadata of several tensors with what it was, in one C++ call where torch has it."""

    def __init__(self, tensors: Sequence[torch.Tensor]):
        self.expected = [_metadata(t) for t in tensors]
        self.same = _sameness(tensors)
        self._fast: Callable[..., bool] | None = None
        try:
            from torch._C._dynamo.guards import TensorGuards

            # Both keywords, with a list a tensor: without them its check() reads past the end.
            sizes, strides = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
            guards = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
            if guards.check(*tensors):
                self._fast = guards.check
        except Exception:  # a private part of torch: without it the slow way is as right
            self._fast = None

    def __call__(self, tensors: Sequence[Any]) -> bool:
        if len(tensors) > 1 and _sameness(tensors) != self.same:
            return False
        if self._fast is not None:
            return self._fast(*tensors)
        return all(isinstance(t, torch.Tensor) and _metadata(t) == e for t, e in zip(tensors, self.expected))

    def explain(self, tensors: Sequence[Any]) -> str:
        """Which tensor is not as it was."""
        for i, (t, expected) in enumerate(zip(tensors, self.expected)):
            found = _metadata(t) if isinstance(t, torch.Tensor) else type(t)
            if found != expected:
                return f"tensor {i} was {expected} and is {found}"
        return "which inputs are the same tensor"


def _metadata(t: torch.Tensor) -> tuple[Any, ...]:
    return (type(t), tuple(t.shape), t.stride(), t.dtype, t.device, t.requires_grad)


def _sameness(tensors: Sequence[Any]) -> tuple[int, ...] | None:
    """None when all are different objects, else which is the same as which."""
    ids = [id(t) for t in tensors]
    if len(set(ids)) == len(ids):
        return None
    first: dict[int, int] = {}
    return tuple(first.setdefault(x, i) for i, x in enumerate(ids))


# -- reading inputs -----------------------------------------------------------------------------------------------------
def _flatten_meta(*args: Any) -> Any:
    raise TypeError("flatten_call is bound by the prologue's builder")


def _flatten_call(args: tuple[Any, ...], kwargs: dict[str, Any], structure: Any) -> list[Any]:
    leaves, spec = pytree.tree_flatten((args, kwargs))
    if spec != structure:
        raise GuardFailed("the structure of the arguments")
    return leaves


flatten_call = python_executor.register_operator(
    "flatten_call", meta=_flatten_meta, fn=_flatten_call, tags=(OpTags.UNPACK_OP,)
)


def _print_unpack(bsym: BoundSymbol, context: Any) -> list[str]:
    from thunder.core.printer import printable

    names = ", ".join("_" if p is None else p.name for p in bsym.output)
    return [f"{names}, = {printable(bsym.args[0], context)}"] if bsym.output else []


unpack = Symbol(
    "unpack", _flatten_meta, id="python.unpack", is_prim=True, printer=_print_unpack, tags=(OpTags.UNPACK_OP,)
)


def _print_fetch(bsym: BoundSymbol, context: Any) -> list[str]:
    from thunder.core.printer import printable

    root, path = bsym.args
    return [f"{bsym.output.name} = {printable(root, context)}{path}"]


fetch = Symbol("fetch", _flatten_meta, id="python.fetch", is_prim=True, printer=_print_fetch, tags=(OpTags.UNPACK_OP,))


def fetched(root: Any, path: str, name: str) -> tuple[BoundSymbol, Proxy]:
    """The line `name = root<path>` of a prologue, and the value that it binds."""
    out = AnyProxy(name=name)
    return BoundSymbol(fetch, (root, path), {}, out), out
