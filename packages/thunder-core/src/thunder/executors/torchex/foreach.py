# SPDX-License-Identifier: Apache-2.0
"""`torch._foreach_*`: operations on lists of tensors, which run as one kernel on a GPU.

In eager mode on a GPU, kernels for lists may round differently from the functions of one tensor. A trace therefore
contains calls for lists, e.g. `foreach_div([x], [0.3])`, which decompose into the operations of one tensor. The capture
records a call for each tensor, and `join_foreach.py` joins calls into longer lists behind all other passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from thunder.core import prims
from thunder.core.proxies import TensorProxy
from thunder.core.strides import Strides
from thunder.core.symbol import BoundSymbol, OpTags, Symbol
from thunder.executors.torchex.base import MODULE, ex, torch_impl
from thunder.passes.postponing import innermost
from thunder.runtime.kernels.foreach import NAMES
from thunder.runtime.kernels.table import kernels
from thunder.torch.base import torch_function_map

__all__ = [
    "FOREACH", "FUNCTIONS", "foreach_in_place", "is_elementwise_foreach", "is_foreach", "of_one_tensor",
    "strides_of_foreach", "updates_foreach",
]  # fmt: skip

# The function of one tensor that each `torch._foreach_…` calls for every tensor of a list.
_OTHER: dict[str, Any] = {
    "maximum": torch.clamp_min,  # by tensors or numbers
    "minimum": torch.clamp_max,
    "norm": torch.linalg.vector_norm,
}
FUNCTIONS: dict[str, Any] = {name: _OTHER.get(name) or getattr(torch, name) for name in NAMES}

FOREACH: dict[str, Symbol] = {}  # the operations by the names of FUNCTIONS
_RUNNING: dict[Symbol, str] = {}  # the torch executor's operators for them
_IN_PLACE: dict[str, Symbol] = {}
_UPDATING: dict[Symbol, str] = {}


def of_one_tensor(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of one tensor, called with the arguments of `torch._foreach_…` of this name."""
    if name in ("addcdiv", "addcmul"):
        return lambda x, a, b, value=1: function(x, a, b, value=value)
    if name == "norm":
        return lambda x, ord=2, dtype=None: function(x, ord, dtype=dtype)
    return function


def _declare(name: str, function: Any) -> None:
    one = of_one_tensor(name, torch_function_map()[function])

    def meta(xs: Any, *args: Any, **kwargs: Any) -> list[Any]:
        lists = xs if isinstance(xs, list) else args[0]  # a number to the power of tensors
        return [
            one(*[_item(a, i) for a in (xs, *args)], **{k: _item(a, i) for k, a in kwargs.items()})
            for i in range(len(lists))
        ]

    meta.__doc__ = f"Compute `torch.{function.__name__}` of each tensor of a list."
    run = kernels[f"foreach_{name}"]
    sym = FOREACH[name] = Symbol(run.__name__, meta, id=("torchex.foreach", name))
    torch_impl(sym)(run)
    operator = ex.implmap[sym.id].op
    assert operator is not None
    _RUNNING[operator] = name
    writing = kernels.get(f"foreach_{name}_")
    if writing is not None:
        _declare_in_place(name, sym, writing)


def _declare_in_place(name: str, sym: Symbol, run: Callable[..., Any]) -> None:
    def meta(xs: Any, *args: Any, **kwargs: Any) -> list[Any]:
        return [prims.copy_(new, x) for new, x in zip(sym(xs, *args, **kwargs), xs)]

    id = ("torchex.foreach", name, "in place")
    op = Symbol(run.__name__, meta, id=id, module=MODULE, executor=ex, fn=run, tags=(OpTags.IN_PLACE_OP,))
    _IN_PLACE[name] = op
    _UPDATING[op] = name


def _item(x: Any, i: int) -> Any:
    return x[i] if isinstance(x, list) else x


for _name, _function in FUNCTIONS.items():
    if f"foreach_{_name}" in kernels:
        _declare(_name, _function)


_DECLARED = frozenset(FOREACH.values())


def is_foreach(op: BoundSymbol) -> bool:
    """Check whether the torch executor runs an operation for lists of tensors, whose results are new tensors."""
    return op.sym in _RUNNING


def is_elementwise_foreach(op: BoundSymbol) -> bool:
    """Check whether an operation of a program computes each element of lists of tensors separately."""
    return op.sym in _DECLARED and _is_elementwise(op)


def updates_foreach(op: BoundSymbol) -> bool:
    """Check whether the torch executor runs an operation for lists of tensors, and writes to those of the first."""
    return op.sym in _UPDATING


def strides_of_foreach(op: BoundSymbol, known: Mapping[str, Strides]) -> dict[str, Strides]:
    """Return the strides of results as far as they are known."""
    if not _is_elementwise(op) or not isinstance(op.args[0], list):
        return {}
    found: dict[str, Strides] = {}
    for i, out in enumerate(op.output):
        if any(type(n) is not int for n in out.shape):
            continue
        operands = [x for a in op.args if isinstance(a, list) and isinstance(x := a[i], TensorProxy)]
        layouts = {known.get(x.name) for x in operands}
        if len(layouts) == 1 and all(tuple(x.shape) == tuple(out.shape) for x in operands):
            (strides,) = layouts
            if strides is not None:
                found[out.name] = strides
    return found


def foreach_in_place(op: BoundSymbol, target: TensorProxy, whole: frozenset[str]) -> BoundSymbol | None:
    """Return the operation that updates the target itself, which must be the only tensor of the first list."""
    sym = _IN_PLACE.get(_RUNNING[op.sym])
    xs = op.args[0]
    if sym is None or not isinstance(xs, list) or len(xs) != 1 or not _is_elementwise(op):
        return None
    if xs[0].name not in whole or xs[0].dtype is not target.dtype:
        return None
    return op.replace(sym=sym)


def _is_elementwise(op: BoundSymbol) -> bool:
    return all(OpTags.ELEMENTWISE_OP in part.sym.tags or part.sym in _SPREAD for part in innermost(op))


# Operations that only spread numbers over all elements.
_SPREAD = frozenset({prims.broadcast_in_dim, prims.full})
