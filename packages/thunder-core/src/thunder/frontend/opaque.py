# SPDX-License-Identifier: Apache-2.0
"""Torch functions that thunder has no symbol for.

One that is written in Python is traced through: its source runs on handles. Any other becomes an opaque operation: its
result's metadata comes from running torch on fake tensors, torch runs it, and its gradient is torch's own.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.overrides
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode

from thunder.core.devices import to_device, to_torch_device
from thunder.core.dtypes import is_inexact_dtype, to_dtype, to_torch_dtype
from thunder.core.errors import TracingError
from thunder.core.prims import get_grad, put_grad
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import OpTags, Symbol, map_proxies, proxies_in
from thunder.executors.torchex.base import ex as torch_executor
from thunder.executors.torchex.base import qualified_name
from thunder.frontend.tracer import Tracer

__all__ = ["call_opaque", "call_python_source"]


# -- through Python source --------------------------------------------------------------------------------------------
def _never(*args: Any, **kwargs: Any) -> bool:
    return False


_OVERRIDE_CHECKS = {
    "has_torch_function": _never,
    "has_torch_function_unary": _never,
    "has_torch_function_variadic": _never,
}


class _Seen:
    """A module with some of its attributes replaced, for whoever reads them through this."""

    def __init__(self, module: types.ModuleType, **replaced: Any):
        self.__dict__.update(replaced, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


_OVERRIDES = _Seen(torch.overrides, **_OVERRIDE_CHECKS)
_TORCH = _Seen(torch, overrides=_OVERRIDES)


@functools.cache
def _without_override_check(func: types.FunctionType) -> Callable[..., Any]:
    """The same function with its first step, asking whether its arguments override it, answered no."""
    scope = {**func.__globals__, **_OVERRIDE_CHECKS}
    for name, module, seen in (("torch", torch, _TORCH), ("overrides", torch.overrides, _OVERRIDES)):
        if scope.get(name) is module:
            scope[name] = seen
    out = types.FunctionType(func.__code__, scope, func.__name__, func.__defaults__, func.__closure__)
    out.__kwdefaults__ = func.__kwdefaults__
    return out


def call_python_source(tracer: Tracer, func: types.FunctionType, args: Any, kwargs: Any) -> Any:
    """Runs a torch function that is written in Python, so that what it calls is traced."""
    from thunder.frontend.dispatch import TracingMode

    with TracingMode():
        return _without_override_check(func)(*args, **kwargs)


# -- opaque operations ------------------------------------------------------------------------------------------------
@functools.cache
def _opaque_symbol(func: Any) -> Symbol:
    module, name = qualified_name(func)
    if getattr(func, "__name__", "") == "__get__":
        name, module = f"get_{func.__self__.__name__}", None
    if module is None:
        name = "".join(c if c.isalnum() else "_" for c in name)  # an overload of torch.ops is called `add.Tensor`
    tags = [OpTags.OPAQUE_OP]
    if _is_random(func, name):
        tags.append(OpTags.RANDOM_OP)

    def meta(*args: Any, **kwargs: Any) -> Any:
        return _fake_result(func, args, kwargs)

    meta.__doc__ = f"torch's {name}, which thunder does not look into."
    sym = Symbol(
        name, meta, id=("opaque", func), module=module, is_prim=True, executor=torch_executor, fn=func, tags=tags
    )
    if OpTags.RANDOM_OP not in sym.tags:
        sym.grad(_gradient_by_torch(sym, func))
    return sym


_RANDOM_NAMES = ("rand", "normal", "bernoulli", "multinomial", "dropout", "poisson", "exponential", "cauchy",
                 "geometric", "log_normal", "uniform", "rrelu", "random", "binomial", "dirichlet", "gamma",
                 "fractional_max_pool")  # fmt: skip


def _is_random(func: Any, name: str) -> bool:
    return any(part in name for part in _RANDOM_NAMES) and "lgamma" not in name and "digamma" not in name


def _fake_result(func: Any, args: Any, kwargs: Any) -> Any:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:

        def fake(p: Proxy) -> Any:
            if not isinstance(p, TensorProxy):
                return p
            return torch.empty(p.shape, dtype=to_torch_dtype(p.dtype), device=to_torch_device(p.device))

        try:
            with mode, torch.no_grad():
                result = func(*map_proxies(args, fake), **map_proxies(kwargs, fake))
        except DynamicOutputShapeException as error:
            raise TracingError(
                f"the shape of the result of {getattr(func, '__name__', func)} depends on its input's values, which "
                "are not known while tracing. Use a form of fixed size (torch.where, masks, padding), or leave this "
                "line out of the traced function"
            ) from error
    return _proxies_of(result)


def _proxies_of(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return TensorProxy(shape=tuple(x.shape), device=to_device(x.device), dtype=to_dtype(x.dtype))
    if isinstance(x, tuple):
        return tuple(_proxies_of(i) for i in x)
    if isinstance(x, list):
        return [_proxies_of(i) for i in x]
    return x


def _gradient_by_torch(sym: Symbol, func: Any) -> Callable[..., Any]:
    def rule(*args: Any, **kwargs: Any) -> Any:
        out = sym(*args, **kwargs)
        outs = [p for p in proxies_in(out) if isinstance(p, TensorProxy)]
        wrt = [p for p in proxies_in((args, kwargs)) if isinstance(p, TensorProxy) and is_inexact_dtype(p.dtype)]
        flowing = [get_grad(p) if is_inexact_dtype(p.dtype) else None for p in outs]
        for p, g in zip(wrt, _vjp_symbol(func)(args, kwargs, flowing)):
            put_grad(p, g)
        return out

    return rule


@functools.cache
def _vjp_symbol(func: Any) -> Symbol:
    """The operation that runs torch's own backward of `func`, which runs `func` again for it."""

    def meta(args: Any, kwargs: Any, cotangents: Any) -> Any:
        return [
            TensorProxy(like=p)
            for p in proxies_in((args, kwargs))
            if isinstance(p, TensorProxy) and is_inexact_dtype(p.dtype)
        ]

    def run(args: Any, kwargs: Any, cotangents: Any) -> list[torch.Tensor]:
        leaves: list[torch.Tensor] = []

        def leaf(x: Any) -> Any:
            if isinstance(x, torch.Tensor):
                if x.is_floating_point() or x.is_complex():
                    x = x.detach().requires_grad_()
                    leaves.append(x)
                return x
            if isinstance(x, (tuple, list)):
                return type(x)(leaf(i) for i in x)
            return {k: leaf(v) for k, v in x.items()} if isinstance(x, dict) else x

        with torch.enable_grad():
            out = func(*leaf(args), **leaf(kwargs))
            outs = [t for t in _flat(out) if isinstance(t, torch.Tensor)]
            pairs = [(o, g) for o, g in zip(outs, cotangents) if g is not None and o.requires_grad]
            found = torch.autograd.grad([o for o, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True)
        return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found)]

    _, name = qualified_name(func)
    return Symbol(f"{name}_vjp", meta, id=("opaque_vjp", func), is_prim=True, executor=torch_executor, fn=run)


def _flat(x: Any) -> list[Any]:
    return [y for i in x for y in _flat(i)] if isinstance(x, (tuple, list)) else [x]


def call_opaque(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a function of torch that thunder does not look into."""
    out = kwargs.pop("out", None)
    name = getattr(func, "__name__", "")
    if _writes(func, name):
        return _write_opaque(tracer, func, name, args, kwargs)
    if _without_tensors(args) and _without_tensors(kwargs) and not _makes_tensor(func, args, kwargs):
        return func(*args, **kwargs)
    result = tracer.call_symbol(_opaque_symbol(func), args, kwargs)
    if out is not None:
        from thunder.frontend.dispatch import _assign_out

        return _assign_out(tracer, out, result, name)
    return result


def _writes(func: Any, name: str) -> bool:
    schema = getattr(func, "_schema", None)
    return (name.endswith("_") and not name.endswith("__")) or bool(schema is not None and schema.is_mutable)


def _write_opaque(tracer: Tracer, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function that writes in place: the result of the one that does not is assigned."""
    from thunder.frontend.dispatch import assign, call_torch_function

    for owner in (torch.Tensor, torch):
        functional = getattr(owner, name[:-1], None)
        if name.endswith("_") and functional is not None and getattr(owner, name, None) is func:
            result = call_torch_function(functional, args, kwargs)
            if isinstance(args[0], (tuple, list)):  # torch._foreach_add_
                for target, value in zip(args[0], result):
                    assign(tracer, target, value, name)
                return None
            return assign(tracer, args[0], result, name)
    raise TracingError(
        f"{name} writes to its arguments in a way that thunder does not know: use a form that returns its result, or "
        "leave it out of the traced function"
    )


def _without_tensors(x: Any) -> bool:
    if isinstance(x, torch.Tensor):
        return False
    if isinstance(x, dict):
        x = list(x.values())
    return all(_without_tensors(i) for i in x) if isinstance(x, (tuple, list)) else True


def _makes_tensor(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a function without tensor arguments is a factory, or one that reads or sets state of torch's."""
    name = getattr(func, "__name__", "")
    if getattr(func, "__module__", None) not in ("torch", None) or name.startswith(("_", "set_")):
        return False
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        result = func(*args, **kwargs)
    return any(isinstance(x, torch.Tensor) for x in _flat(result))
