# SPDX-License-Identifier: Apache-2.0
"""Strides, found when somebody asks.

Proxies have no strides. Where the program observes them (`stride()`, `is_contiguous()`, an in-place write through
`reshape`), the operations that led to the value are run by torch on the meta device, which gives exactly torch's
strides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from thunder.core.devices import Device
from thunder.core.dtypes import dtype, to_torch_dtype
from thunder.core.numbers import SymbolicNumber, specialized
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, map_proxies, proxies_in
from thunder.torch.private import DisableTorchFunction

if TYPE_CHECKING:
    from thunder.frontend.handle import Handle, View
    from thunder.frontend.tracer import Tracer

__all__ = ["check_view", "is_view", "meta_of", "meta_tensor"]


def meta_tensor(tracer: Tracer, value: TensorProxy) -> torch.Tensor:
    """A tensor on the meta device with the strides that torch gives `value`."""
    known = tracer.meta_tensors
    producers: dict[str, BoundSymbol] = {}
    program = [bsym for scope in tracer.trace.scopes for bsym in scope]
    for bsym in program:
        for name in bsym.out_names:
            producers.setdefault(name, bsym)
    # Oldest first, so that a long program needs no recursion.
    wanted, stack = [], [value]
    seen: set[str] = set()
    while stack:
        p = stack.pop()
        specialized(p.shape)  # strides are told of a program for these sizes
        if p.name in seen or p.name in known:
            continue
        seen.add(p.name)
        wanted.append(p)
        if p.name in producers:
            stack += [q for q in producers[p.name].flat_args if isinstance(q, TensorProxy)]
    position = {id(b): i for i, b in enumerate(program)}
    needed = {id(producers[p.name]): producers[p.name] for p in wanted if p.name in producers}
    for p in wanted:
        if p.name in tracer.stand_ins:
            known[p.name] = _stand_in(tracer, *tracer.stand_ins[p.name])
        elif p.name not in producers:
            known[p.name] = _contiguous(p)
    for bsym in sorted(needed.values(), key=lambda b: position[id(b)]):
        _run(bsym, known)
    return known.get(value.name, _contiguous(value))


def _stand_in(tracer: Tracer, outer: TensorProxy, batch_dim: int | None) -> torch.Tensor:
    whole = meta_tensor(tracer, outer)
    with torch.no_grad(), DisableTorchFunction():
        return whole if batch_dim is None else whole.select(batch_dim, 0)


def _contiguous(p: TensorProxy) -> torch.Tensor:
    return torch.empty(specialized(p.shape), dtype=to_torch_dtype(p.dtype), device="meta")


def _run(bsym: BoundSymbol, known: dict[str, torch.Tensor]) -> None:
    outs = [p for p in proxies_in(bsym.output) if isinstance(p, TensorProxy)]
    fn = _torch_function(bsym)
    if fn is None and bsym.subsymbols:  # what torch has no function for, such as the property x.T
        for sub in bsym.subsymbols:
            _run(sub, known)
        for p in outs:
            known.setdefault(p.name, _contiguous(p))
        return
    try:
        if fn is None:
            raise TypeError
        with torch.no_grad(), DisableTorchFunction():
            args = map_proxies(bsym.args, lambda p: known.get(p.name, p))
            kwargs = map_proxies(bsym.kwargs, lambda p: known.get(p.name, p))
            result = fn(*_on_meta(args), **_on_meta(kwargs))
        found = [t for t in _flat(result) if isinstance(t, torch.Tensor)]
        for p, t in zip(outs, found):
            known[p.name] = t if tuple(t.shape) == p.shape else _contiguous(p)
    except Exception:
        # Torch cannot run it on the meta device: its result is taken to be laid out in the usual way.
        for p in outs:
            known[p.name] = _contiguous(p)


def _torch_function(bsym: BoundSymbol) -> Any:
    """The function that runs an operation on real tensors, for a primitive that of the torch executor."""
    sym = bsym.sym
    if sym.reference is not None or sym.fn is not None or not sym.is_prim:
        return sym.reference or sym.fn
    from thunder.executors import TORCH

    found = TORCH.implementation(bsym)
    return None if found is None or found.op is None else found.op.fn


def _on_meta(x: Any) -> Any:
    if isinstance(x, dict):
        return {k: torch.device("meta") if k == "device" else _on_meta(v) for k, v in x.items()}
    if isinstance(x, (tuple, list)):
        return type(x)(_on_meta(i) for i in x)
    if isinstance(x, SymbolicNumber):
        return specialized(x)
    if isinstance(x, dtype):
        return to_torch_dtype(x)
    if isinstance(x, (Device, torch.device)):
        return torch.device("meta")
    return x


def _flat(x: Any) -> list[Any]:
    return [y for i in x for y in _flat(i)] if isinstance(x, (tuple, list)) else [x]


def meta_of(handle: Handle) -> torch.Tensor:
    """A tensor on the meta device with the strides of a handle's memory, whatever has been written to it since."""
    value = _base(handle)
    for view in handle._views:
        value = _apply(handle, view, value)
    return value


def is_view(handle: Handle) -> bool:
    """Whether the last step to a handle, a `reshape`, `contiguous` or the like, gave it its base's memory or a copy."""
    value = _base(handle)
    for view in handle._views[:-1]:
        value = _apply(handle, view, value)
    out = _apply(handle, handle._views[-1], value)
    return bool(out.untyped_storage()._cdata == value.untyped_storage()._cdata)


def check_view(handle: Handle, shape: tuple[int, ...]) -> None:
    """Raises torch's error where the memory of a handle cannot be seen in that shape without a copy.

    Memory that the program made is first taken to be laid out in the usual way; only where that says no is it found
    out how it really is. Where sizes are symbolic torch says so itself, at the call.
    """
    steps = [(view.args, view.kwargs) for view in handle._views]
    if any(not isinstance(p, TensorProxy) for p in proxies_in((handle._storage.origin.shape, steps))):
        return
    known = handle._tracer.meta_tensors
    origin = handle._storage.origin
    value = known.get(origin.name)
    usual = value is None
    value = _contiguous(origin) if value is None else value
    for view in handle._views:
        value = _apply(handle, view, value)
    try:
        value.view(shape)
    except RuntimeError:
        if not usual:
            raise
        meta_of(handle).view(shape)


def _base(handle: Handle) -> torch.Tensor:
    return meta_tensor(handle._tracer, handle._storage.origin)


def _apply(handle: Handle, view: View, value: torch.Tensor) -> torch.Tensor:
    def on_meta(x: Any) -> Any:
        return _on_meta(map_proxies(x, lambda p: meta_tensor(handle._tracer, p)))  # type: ignore[arg-type]

    with torch.no_grad(), DisableTorchFunction():
        out = _function_of(view)(value, *on_meta(view.args), **on_meta(view.kwargs))
    return out if view.part is None else out[view.part]  # type: ignore[no-any-return]


def _function_of(view: View) -> Any:
    """The function of torch that takes a step; of a property (`x.T`) what reads it."""
    found = view.sym.reference or view.sym.fn or getattr(torch.Tensor, view.sym.name)
    return found if callable(found) else found.__get__
