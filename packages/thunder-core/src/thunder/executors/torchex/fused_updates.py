# SPDX-License-Identifier: Apache-2.0
"""torch's fused optimizer kernels (`torch._fused_adam_` and others), which update all parameters in one call, and the
kernels of `GradScaler`.

A trace contains them in functional form: new tensors are the results. A pass then lets them write to the memory of
their arguments (`in_place.py`), as in eager mode; until then they write to copies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, OpTags, Symbol, map_proxies
from thunder.executors.torchex.base import ex
from thunder.runtime.kernels.fused_updates import ALL, updating

__all__ = [
    "FUSED_UPDATES", "fused_update", "is_fused_update", "may_update_in_place", "operands", "updated_in_place",
]  # fmt: skip

# Kernels that fail for no values, and have no other results than the arguments that they write to.
FUSED_UPDATES = frozenset(
    {f"aten::_fused_{name}_" for name in ("adam", "adamw", "sgd", "adagrad")}
    | {"aten::_amp_foreach_non_finite_check_and_unscale_", "aten::_amp_update_scale_"}
)


@functools.cache
def fused_update(func: Any, written: tuple[str, ...], *, in_place: bool = False) -> Symbol:
    """Return the operation that runs the kernel `func`, an overload in `torch.ops`.

    Its argument is a dict of the kernel's arguments; its results are the new tensors of the arguments `written`. The
    operation with `in_place` has a second argument, the positions of the tensors that are written themselves, or `ALL`.
    """

    def meta(given: dict[str, Any], reused: Mapping[str, Any] | None = None) -> list[Any]:
        return [map_proxies(given[name], _new_like) for name in written]

    meta.__doc__ = f"Run {func._schema.name}, and return its new {', '.join(written)}."
    name = func._schema.name.removeprefix("aten::_").removesuffix("_")
    tags = (OpTags.REDUCTION_OP, OpTags.NON_DIFFERENTIABLE, *((OpTags.IN_PLACE_OP,) if in_place else ()))
    id = ("torchex", func, written, in_place)
    return Symbol(name + "_" * in_place, meta, id=id, is_prim=True, executor=ex, fn=updating(func, written), tags=tags)


def _new_like(p: Any) -> TensorProxy:
    return TensorProxy(like=p)


def is_fused_update(op: BoundSymbol) -> bool:
    """Check whether an operation is a fused update in functional form."""
    id = op.sym.id
    return type(id) is tuple and len(id) == 4 and isinstance(id[1], torch._ops.OpOverload) and not id[3]


def operands(op: BoundSymbol) -> dict[str, TensorProxy]:
    """Return the argument of which each result is the new tensor."""
    key: Any = op.sym.id
    pairs = [(_listed(ps), _listed(op.args[0][name])) for name, ps in zip(key[2], op.output)]
    return {p.name: x for ps, xs in pairs for p, x in zip(ps, xs)}


def _listed(x: Any) -> Any:
    return [x] if isinstance(x, TensorProxy) else x


def may_update_in_place(op: BoundSymbol) -> Callable[[str, TensorProxy, frozenset[str]], bool]:
    """Return a function that checks whether a target is the argument of which a result is the new tensor."""
    old = operands(op)
    return lambda result, target, whole: old[result].name == target.name and whole == {target.name}


def updated_in_place(op: BoundSymbol, targets: Mapping[str, tuple[TensorProxy, frozenset[str]]]) -> BoundSymbol | None:
    """Return a fused update that writes to those of its arguments that are the targets, or None for other targets."""
    may_write = may_update_in_place(op)
    if not all(may_write(result, *target) for result, target in targets.items()):
        return None
    key: Any = op.sym.id
    _, func, written, _ = key
    (given,) = op.args
    places = {name: [i for i, p in enumerate(_listed(ps)) if p.name in targets] for name, ps in zip(written, op.output)}
    reused = {name: ALL if len(ps) == len(_listed(given[name])) else ps for name, ps in places.items() if ps}
    return op.replace(sym=fused_update(func, written, in_place=True), args=(given, reused))
