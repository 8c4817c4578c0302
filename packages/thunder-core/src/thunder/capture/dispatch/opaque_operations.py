# SPDX-License-Identifier: Apache-2.0
"""Opaque operations: torch computes their metadata, gradients, tangents and batched results.

`opaque_symbol(fn)` returns an operation that runs `fn`, which is a function of torch or a function derived from one in
this file. The gradient of an opaque operation is another opaque operation, which calls torch's autograd. It therefore
has a gradient as well, to any order. `opaque_jvp` and `opaque_vmap` use `torch.func` in the same way. Only tensors are
saved for backward: backward runs the function again, with the same random numbers.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import thunder.torch as ltorch
from thunder.capture.dispatch.opaque_metadata import differentiable_places, differentiated, result_in_torch
from thunder.capture.dispatch.registry import formula_of, gives, result_of
from thunder.capture.tensors.autocast import is_composite
from thunder.core import prims
from thunder.core.devices import Device, cpu, to_torch_device
from thunder.core.dtypes import is_inexact_dtype
from thunder.core.errors import UnsupportedError
from thunder.core.facts import FactOptions
from thunder.core.prims import get_grad, put_grad
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import flat_items
from thunder.core.symbol import BoundSymbol, OpTags, Symbol, map_proxies, proxies_in
from thunder.executors.torchex.base import ex as torch_executor
from thunder.executors.torchex.base import qualified_name
from thunder.runtime.torch_private import autocast_devices, functorch_active
from thunder.torch.private import OpOverload, OpOverloadPacket

__all__ = ["derived_symbol", "is_collective", "opaque_call", "opaque_jvp", "opaque_symbol", "opaque_vmap"]


# Autocast's policies of the functions whose metadata torch cannot compute on fake tensors: a rule computes it from
# arguments that are already cast. All other functions run under autocast.
_FACTS: dict[str, FactOptions] = dict.fromkeys(("ctc_loss", "linalg_lstsq"), FactOptions(autocast={"cpu": "float32"}))


# -- the operation ----------------------------------------------------------------------------------------------------
@functools.cache
def opaque_symbol(func: Any) -> Symbol:
    """Return the operation that runs the torch function `func`."""
    module, name = qualified_name(func)
    if getattr(func, "__name__", "") == "__get__":
        name, module = f"get_{func.__self__.__name__}", None
    if module is None:
        name = "".join(c if c.isalnum() else "_" for c in name)  # e.g. the overload `add.Tensor`
    return _symbol(func, name, module, ("opaque", func))


def _enabled_autocast() -> tuple[tuple[str, torch.dtype], ...]:
    """Return the device types for which autocast is enabled, with its dtypes."""
    enabled = [kind for kind in autocast_devices() if torch.is_autocast_enabled(kind)]
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in enabled)


def opaque_call(func: Any) -> Symbol:
    """Return the operation that a call of `func` records: `func`, or `func` under the current autocast."""
    symbol = opaque_symbol(func)
    casts = _enabled_autocast()
    cast_before = symbol.facts.autocast or (result_of(func) is not None and not _is_composite(func))
    if not casts or cast_before or not {OpTags.VIEW_OP, OpTags.SIDE_EFFECT}.isdisjoint(symbol.tags):
        return symbol
    return _autocast_symbol(func, casts)


def _is_composite(func: Any) -> bool:
    module, name = qualified_name(func)
    return is_composite(f"{module}.{name}")


@functools.cache
def _autocast_symbol(func: Any, casts: tuple[tuple[str, torch.dtype], ...]) -> Symbol:
    """Return the operation that runs `func` under autocast. It casts what torch casts, and functions inside `func` too.

    A compiled program does not use autocast's cache of casts: it runs without gradients, and the caller's later
    operations would use casts through which no gradient flows.
    """

    def under(cache: bool, args: Any, kwargs: Any) -> Any:
        with contextlib.ExitStack() as contexts:
            for kind, dtype in casts:
                contexts.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=cache))
            return func(*args, **kwargs)

    def autocast(*args: Any, **kwargs: Any) -> Any:
        return under(False, args, kwargs)

    def caching(*args: Any, **kwargs: Any) -> Any:
        try:
            return under(torch.is_autocast_cache_enabled(), args, kwargs)
        finally:
            torch.clear_autocast_cache()  # the caller may be in an autocast region, which would keep the casts

    autocast.runs, autocast.caching = func, caching  # type: ignore[attr-defined]
    return _derived(func, "autocast", autocast, None, casts)


def _symbol(func: Any, name: str, module: str | None, id: Any) -> Symbol:
    """Return an operation that runs `func`. Calls that draw random numbers are recorded with a second symbol."""
    drew = [False]

    def meta(*args: Any, **kwargs: Any) -> Any:
        result, drew[0] = result_in_torch(func, args, kwargs)
        return result

    def settle(bsym: BoundSymbol) -> None:
        # `meta` has just run for this operation and has set `drew`.
        if drew[0]:
            bsym.sym = chance

    view = (OpTags.VIEW_OP,) if _is_view(func) else ()
    meta.__doc__ = f"torch's {name}, which thunder does not look into."

    def made(*tags: OpTags) -> Symbol:
        given: Any = {
            "module": module,
            "is_prim": True,
            "executor": torch_executor,
            "fn": func,
            "facts": FactOptions(view="maybe") if view else _FACTS.get(name),
        }
        which = id if not tags else (*id, "random")
        effect = (OpTags.SIDE_EFFECT,) if is_collective(func) else ()
        return Symbol(
            name,
            meta,
            id=which,
            tags=(OpTags.OPAQUE_OP, *effect, *view, *tags),
            bind_postprocess=None if tags else settle,
            **given,
        )

    plain, chance = made(), made(OpTags.RANDOM_OP)
    for sym in (plain, chance):
        sym.grad(_gradient_by_torch(plain, func))
        sym.batch(_batch_by_torch(sym))
    plain.jvp(_tangents_by_torch(plain))
    return plain


def _is_view(func: Any) -> bool:
    """Check whether the schema of an operator of `torch.ops` declares that its result may be a view of its argument."""
    overloads = [func] if isinstance(func, OpOverload) else []
    if isinstance(func, OpOverloadPacket):
        overloads = [getattr(func, name) for name in func.overloads()]
    return any(overload.is_view for overload in overloads)


# The namespaces of `torch.ops` whose operators communicate with other processes.
_COMMUNICATING = frozenset({"_c10d_functional", "_c10d_functional_autograd", "c10d", "c10d_functional", "symm_mem"})


def is_collective(func: Any) -> bool:
    """Check whether `func` is an operator of torch.distributed, which communicates with other processes."""
    if isinstance(func, OpOverload):
        return func.namespace in _COMMUNICATING
    if isinstance(func, OpOverloadPacket):
        return func._qualified_op_name.partition("::")[0] in _COMMUNICATING
    return False


# -- gradients --------------------------------------------------------------------------------------------------------
def _gradient_by_torch(sym: Symbol, func: Any) -> Callable[..., Any]:
    def rule(*args: Any, **kwargs: Any) -> Any:
        # The state of each generator before the call, so that backward can draw the same numbers.
        _, draws = result_in_torch(func, args, kwargs)
        states = [(str(to_torch_device(d)), prims.rng_state(d)) for d in _devices_in(args, kwargs)] if draws else []
        out = sym(*args, **kwargs)
        outs = [p for p in proxies_in(out) if isinstance(p, TensorProxy)]
        flowing = [get_grad(p) if is_inexact_dtype(p.dtype) and p.requires_grad else None for p in outs]
        places = differentiable_places(func, args, kwargs)
        if not places and getattr(func, "is_gradient", False):
            raise _no_further(func)  # a gradient is linear in its cotangent, so torch should have this derivative
        if places and any(g is not None for g in flowing):
            tensors = differentiated(args, kwargs)
            for i, g in zip(places, _vjp_symbol(func)(args, kwargs, flowing, places, states)):
                put_grad(tensors[i], g)
        return out

    return rule


def _devices_in(args: Any, kwargs: Any) -> list[Device]:
    found = {p.device: None for p in proxies_in((args, kwargs)) if isinstance(p, TensorProxy)}
    return list(found) or [cpu]


@functools.cache
def _vjp_symbol(func: Any) -> Symbol:
    """Return the operation that runs `func` again and then torch's backward of it, or the formula of its gradients."""

    def vjp(args: Any, kwargs: Any, cotangents: Any, places: Any, states: Any) -> list[torch.Tensor]:
        if functorch_active():
            return _vjp_by_functorch(func, args, kwargs, cotangents, places)
        # True if autograd differentiates this backward.
        again = torch.is_grad_enabled() and any(x.requires_grad for x in _tensors_in((args, kwargs, cotangents)))
        if not again and (formula := formula_of(func)) is not None:
            gradients = formula(args, kwargs, cotangents)
            if gradients is not None:
                return [gradients[i] for i in places]
        leaves: list[torch.Tensor] = []
        number = itertools.count()
        run = getattr(func, "caching", func)

        def leaf(x: torch.Tensor) -> torch.Tensor:
            if not (x.is_floating_point() or x.is_complex()):
                return x
            if next(number) not in places:
                return x.detach()
            # If a tensor is passed twice, each occurrence has its own gradient.
            leaves.append(x.view_as(x) if again and x.requires_grad else x.detach().requires_grad_())
            # Autocast casts a leaf once, and adds the gradients of all its uses before they are cast back.
            return leaves[-1] if run is func or (x.is_leaf and x.requires_grad) else leaves[-1].view_as(x)

        with torch.enable_grad(), _random_numbers(states):
            out = run(*_map_tensors(args, leaf), **_map_tensors(kwargs, leaf))
            pairs = [(o, g) for o, g in zip(_tensors_in(out), cotangents) if g is not None and o.requires_grad]
            found: Sequence[Any] = [None] * len(leaves)
            if not pairs and getattr(func, "is_gradient", False):
                raise _no_further(func)
            if pairs:
                found = torch.autograd.grad(
                    [o for o, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True, create_graph=again
                )
        return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found)]

    def meta(args: Any, kwargs: Any, cotangents: Any, places: Any, states: Any) -> Any:
        tensors = differentiated(args, kwargs)
        return [TensorProxy(like=tensors[i], requires_grad=True) for i in places]

    vjp.differentiated = func  # type: ignore[attr-defined]
    return _derived(func, "vjp", vjp, meta)


def _vjp_by_functorch(func: Any, args: Any, kwargs: Any, cotangents: Any, places: Any) -> list[torch.Tensor]:
    """Return the gradients under an active transform of `torch.func`, where `torch.autograd.grad` is not available."""
    floating = [x for x in _tensors_in((args, kwargs)) if x.is_floating_point() or x.is_complex()]

    def of_places(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given, number = iter(values), itertools.count()

        def value(x: torch.Tensor) -> torch.Tensor:
            wanted = (x.is_floating_point() or x.is_complex()) and next(number) in places
            return next(given) if wanted else x

        found = _tensors_in(func(*_map_tensors(args, value), **_map_tensors(kwargs, value)))
        return tuple([x for x, g in zip(found, cotangents) if g is not None])

    _, pull = torch.func.vjp(of_places, *[floating[i] for i in places])
    return list(pull(tuple([g for g in cotangents if g is not None])))


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)


@contextlib.contextmanager
def _random_numbers(states: Sequence[tuple[str, torch.Tensor]]) -> Iterator[None]:
    """Set the random number generators of devices to `states`, and restore their states on exit."""
    before = [(name, _exchange(name, state)) for name, state in states]
    try:
        yield
    finally:
        for name, state in before:
            _exchange(name, state)


def _exchange(name: str, state: torch.Tensor) -> torch.Tensor:
    device = torch.device(name)
    if device.type == "cpu":
        before = torch.get_rng_state()
        torch.set_rng_state(state)
    else:
        module = getattr(torch, device.type)
        before = module.get_rng_state(device)
        module.set_rng_state(state, device)
    return before


# -- tangents and batches ---------------------------------------------------------------------------------------------
def opaque_jvp(sym: Symbol, args: Any, kwargs: Any, tangents: Sequence[TensorProxy | None]) -> tuple[Any, Any]:
    """Record a call of an opaque operation and its directional derivative, and return the result and its tangents.

    `tangents` has one item for each floating point or complex tensor among the arguments, in order. None stands for
    zeros. The returned tangents have the structure of the result, with None for values that have no tangent.
    """
    given = [t if t is not None else _zeros_like(p) for p, t in zip(differentiated(args, kwargs), tangents)]
    return _jvp_symbol(sym.fn)(args, kwargs, given)  # type: ignore[no-any-return]


def opaque_vmap(
    sym: Symbol, args: Any, kwargs: Any, in_dims: Sequence[int | None], *, randomness: str = "error"
) -> Any:
    """Record an opaque operation over a batch, and return results that are all batched in their first dimension.

    `in_dims` has one item for each tensor among the arguments: its batch dimension, or None.
    """
    return _vmap_symbol(sym.fn, tuple(in_dims), randomness)(args, kwargs)


def _tangents_by_torch(sym: Symbol) -> Callable[..., Any]:
    def rule(t: Any, out: Any, *args: Any, **kwargs: Any) -> Any:
        tangents = [
            tangent
            for p, tangent in zip(flat_items((args, tuple(kwargs.values()))), flat_items(t))
            if isinstance(p, TensorProxy) and is_inexact_dtype(p.dtype)
        ]
        return opaque_jvp(sym, args, kwargs, tangents)[1]

    return rule


def _batch_by_torch(sym: Symbol) -> Callable[..., Any]:
    def rule(b: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [p for p in proxies_in((args, kwargs)) if isinstance(p, TensorProxy)]
        try:
            return opaque_vmap(sym, args, kwargs, [0 if p in b else None for p in tensors], randomness=b.randomness)
        except Exception:  # torch cannot batch it: the caller loops over the batch
            return NotImplemented

    return rule


def _zeros_like(p: TensorProxy) -> Any:
    return ltorch.zeros_like(p)


def _from_outside(func: Any) -> bool:
    """Check whether `func` is a custom operation (`torch.library`), or derived from one.

    torch's forward mode silently treats the results of custom operations as constants.
    """
    if isinstance(func, OpOverload):
        return func.namespace not in ("aten", "prims", "prim")
    if isinstance(func, OpOverloadPacket):
        return any(_from_outside(getattr(func, name)) for name in func.overloads())
    return bool(getattr(func, "from_outside", False))


def _no_further(func: Any) -> UnsupportedError:
    return UnsupportedError(
        f"the gradient of {getattr(func, 'of', None) or qualified_name(func)[1]} cannot be differentiated, so tangents "
        "and second derivatives are not available. Write its backward with differentiable operations of torch"
    )


def _jvp_by_gradients(func: Any, args: Any, kwargs: Any, tangents: Any) -> Any:
    """Return a result and its tangents by reverse mode applied twice.

    The gradient is a linear function of the cotangent. Its derivative with respect to the cotangent is the tangent.
    """
    leaves: list[torch.Tensor] = []

    def leaf(x: torch.Tensor) -> torch.Tensor:
        if not (x.is_floating_point() or x.is_complex()):
            return x
        leaves.append(x.detach().requires_grad_())
        return leaves[-1]

    with torch.enable_grad():
        result = func(*_map_tensors(args, leaf), **_map_tensors(kwargs, leaf))
        outs = [x for x in _tensors_in(result) if x.requires_grad]
        arriving = [torch.zeros_like(x).requires_grad_() for x in outs]
        found: Sequence[Any] = [None] * len(leaves)
        if outs:
            found = torch.autograd.grad(outs, leaves, arriving, create_graph=True, allow_unused=True)
        pairs = [(g, t) for g, t in zip(found, tangents) if g is not None]
        if not all(g.requires_grad for g, _ in pairs):
            raise _no_further(func)
        moved: Sequence[Any] = [None] * len(outs)
        if pairs:
            moved = torch.autograd.grad([g for g, _ in pairs], arriving, [t for _, t in pairs], allow_unused=True)
    of = {id(x): t for x, t in zip(outs, moved)}

    def tangent(x: torch.Tensor) -> Any:
        if not (x.is_floating_point() or x.is_complex()):
            return None
        known = of.get(id(x))
        return torch.zeros_like(x) if known is None else known

    return _map_tensors(result, torch.Tensor.detach), _map_tensors(result, tangent)


@functools.cache
def _jvp_symbol(func: Any) -> Symbol:
    def jvp(args: Any, kwargs: Any, tangents: Any) -> Any:
        if _from_outside(func):
            return _jvp_by_gradients(func, args, kwargs, tangents)
        primals = [x for x in _tensors_in((args, kwargs)) if x.is_floating_point() or x.is_complex()]
        structure: list[Any] = []

        def of_primals(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            left = iter(values)

            def next_value(x: torch.Tensor) -> torch.Tensor:
                return next(left) if x.is_floating_point() or x.is_complex() else x

            structure[:] = [func(*_map_tensors(args, next_value), **_map_tensors(kwargs, next_value))]
            return tuple(_tensors_in(structure[0]))

        # torch gives tangents the layout of their primals, and raises if elements of a primal share memory.
        primals = [x.clone(memory_format=torch.contiguous_format) for x in primals]
        out, found = torch.func.jvp(of_primals, tuple(primals), tuple(tangents))
        outs, moved = iter(out), iter([t if t.is_floating_point() or t.is_complex() else None for t in found])
        return _map_tensors(structure[0], lambda x: next(outs)), _map_tensors(structure[0], lambda x: next(moved))

    def meta(args: Any, kwargs: Any, tangents: Any) -> Any:
        out, _ = result_in_torch(func, args, kwargs)
        return out, map_proxies(
            out,
            lambda p: (
                TensorProxy(like=p, requires_grad=True)
                if isinstance(p, TensorProxy) and is_inexact_dtype(p.dtype)
                else None
            ),
        )

    return _derived(func, "jvp", jvp, meta)


@functools.cache
def _vmap_symbol(func: Any, in_dims: tuple[int | None, ...], randomness: str) -> Symbol:
    def vmap(args: Any, kwargs: Any) -> Any:
        tensors = _tensors_in((args, kwargs))
        structure: list[Any] = []

        def of_tensors(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            left = iter(values)
            structure[:] = [
                func(*_map_tensors(args, lambda x: next(left)), **_map_tensors(kwargs, lambda x: next(left)))
            ]
            return tuple(_tensors_in(structure[0]))

        out = iter(torch.func.vmap(of_tensors, in_dims=in_dims, randomness=randomness)(*tensors))
        return _map_tensors(structure[0], lambda x: next(out))

    return _derived(func, "vmap", vmap, None, in_dims, randomness)


def _derived(func: Any, what: str, run: Callable[..., Any], meta: Callable[..., Any] | None, *more: Any) -> Symbol:
    """Return the operation that runs `run`, a function derived from `func`."""
    _, name = qualified_name(func)
    if meta is not None:
        gives(run)(meta)
    run.from_outside = _from_outside(func)  # type: ignore[attr-defined]
    run.is_gradient = what == "vjp" and run.from_outside  # type: ignore[attr-defined]
    run.of = getattr(func, "of", None) or name  # type: ignore[attr-defined]
    run.derivation = (what, func, more)  # type: ignore[attr-defined]
    return _symbol(run, f"{_identifier(name)}_{what}", None, (f"opaque_{what}", func, *more))


def derived_symbol(what: str, func: Any, more: tuple[Any, ...]) -> Symbol:
    """Return the operation that runs a function derived from `func`, given the `derivation` of that function."""
    made = {"vjp": _vjp_symbol, "jvp": _jvp_symbol, "vmap": _vmap_symbol, "autocast": _autocast_symbol}[what]
    return made(func, *more)  # type: ignore[no-any-return]


# -- structures -------------------------------------------------------------------------------------------------------
def _tensors_in(x: Any) -> list[torch.Tensor]:
    if isinstance(x, torch.Tensor):
        return [x]
    if isinstance(x, dict):
        x = list(x.values())
    return [t for i in x for t in _tensors_in(i)] if isinstance(x, (tuple, list)) else []


def _map_tensors(x: Any, fn: Callable[[torch.Tensor], Any]) -> Any:
    if isinstance(x, torch.Tensor):
        return fn(x)
    if isinstance(x, (tuple, list)):
        items = [_map_tensors(i, fn) for i in x]
        if type(x) in (tuple, list, torch.Size):
            return tuple(items) if isinstance(x, tuple) else items
        return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)
    return {k: _map_tensors(v, fn) for k, v in x.items()} if isinstance(x, dict) else x
