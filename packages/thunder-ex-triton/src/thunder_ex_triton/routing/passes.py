# SPDX-License-Identifier: Apache-2.0
"""The pass that finds routing: the sort of experts' ids, and what is computed from it.

It runs before differentiation. A sort of the indices of `topk`, which are numbers below the number of experts, becomes
`triton_route`. The inverse order that a program scatters, and the ends of the experts' parts that it counts and adds
up, are results of the same operator. Rows in the order of experts, and the sums of the rows of each token, become
operations of their own (`sent`, `returned`). Each is the gradient of the other, and both consist of gathers, which
fusions contain. (torch would sort the indices once more, to add up the rows with equal ones.)

The option `triton_routing=False` turns this off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import thunder.torch as ltorch
from thunder.extend import BoundSymbol, Symbol, TensorProxy, Trace, dtypes, get_grad, put_grad, rewrite
from thunder_ex_triton.probe import unusable_device
from thunder_ex_triton.routing import counting_sort

__all__ = ["OPTION", "register", "returned", "sent"]

OPTION = "triton_routing"
_MOST_CHOICES = 16  # of more experts for each token, torch adds up the rows
_SORTS = ("torch.sort", "torch.argsort")
_SAME = ("torch.reshape", "torch.view", "torch.flatten", "torch.contiguous", "torch.ravel")
_CASTS = ("torch.to", "torch.int", "torch.float", "torch.long", "torch.type_as")
_GATHERS = ("torch.getitem", "torch.index_select")


# -- rows of tokens ----------------------------------------------------------------------------------------------------
def _sent(x: TensorProxy, order: TensorProxy, inverse: TensorProxy, choices: int) -> Any:
    """Return the rows of tokens in the order of experts. Each token has `choices` experts."""
    return ltorch.index_select(x, 0, order if choices == 1 else ltorch.floor_divide(order, choices))


def _returned(
    y: TensorProxy, weights: TensorProxy | None, order: TensorProxy, inverse: TensorProxy, choices: int
) -> Any:
    """Return the sum of the rows of each token, times their weights. Rows are in the order of experts."""
    places = inverse if choices == 1 else ltorch.reshape(inverse, (-1, choices))
    total: Any = None
    for i in range(choices):
        index = places if choices == 1 else places[:, i]
        rows = ltorch.index_select(y, 0, index)
        if weights is not None:
            rows = rows * ltorch.index_select(weights, 0, index)
        dtype = rows.dtype
        if choices > 1 and dtype in (dtypes.float16, dtypes.bfloat16):
            rows = ltorch.to(rows, dtypes.float32)  # torch's sums of half precision round once, too
        total = rows if total is None else total + rows
    return ltorch.to(total, dtype)


sent = Symbol("sent", _sent, id="triton.sent")
returned = Symbol("returned", _returned, id="triton.returned")


@sent.grad
def _(x: Any, order: Any, inverse: Any, choices: int) -> Any:
    out = sent(x, order, inverse, choices)
    put_grad(x, returned(get_grad(out), None, order, inverse, choices))
    return out


@returned.grad
def _(y: Any, weights: Any, order: Any, inverse: Any, choices: int) -> Any:
    out = returned(y, weights, order, inverse, choices)
    g = sent(get_grad(out), order, inverse, choices)
    if weights is None:
        put_grad(y, g)
    else:
        put_grad(y, ltorch.to(g * weights, y.dtype))
        total = ltorch.sum(g * y, tuple(range(1, y.ndim)), keepdim=True)
        put_grad(weights, ltorch.to(total, weights.dtype))
    return out


# -- the pass ----------------------------------------------------------------------------------------------------------
class _Routing(NamedTuple):
    """The results of `triton_route`, and how many experts there are."""

    experts: int
    order: TensorProxy
    inverse: TensorProxy
    ends: TensorProxy

    @property
    def places(self) -> int:
        """The number of ids."""
        return int(self.order.shape[0])


class _Known(NamedTuple):
    """What is known about a value.

    `what` is "ids", "order", "inverse", "divided" (the order, divided by `choices`), "counts" (of ids of each expert),
    "returned" (rows in the order of tokens; `rows` are those in the order of experts), or "choices" (the same as a
    matrix of rows for each token).
    """

    what: str
    routing: _Routing
    choices: int = 1
    rows: Any = None


class _Router:
    """Replaces the operations of one trace. Values are known by their names."""

    def __init__(self, route: Any):
        self.route = route
        self.experts: dict[str, int] = {}  # of ids: all are below this number
        self.known: dict[str, _Known] = {}
        self.made_by: dict[str, BoundSymbol] = {}

    def __call__(self, op: BoundSymbol) -> Any:
        for name in op.out_names:
            self.made_by[name] = op
        first = op.args[0] if op.args and isinstance(op.args[0], TensorProxy) else None
        if first is None:
            return None
        name = str(op.sym.id)
        if name == "torch.topk":
            return self._topk(op)
        if name in _SORTS:
            return self._sorted(op, first)
        if first.name in self.experts and name in (*_SAME, *_CASTS) and not dtypes.is_boolean_dtype(op.output.dtype):
            self.experts[op.output.name] = self.experts[first.name]
        known = self.known.get(first.name)
        if name in _GATHERS:
            return self._gathered(op, first)
        if name == "torch.setitem":
            return self._scattered(op, first)
        if known is None:
            return None
        if known.what == "order" and name == "torch.floor_divide":
            choices = op.args[1]
            if type(choices) is int and choices > 0 and known.routing.places % choices == 0:
                self.known[op.output.name] = _Known("divided", known.routing, choices)
        elif known.what in ("ids", "counts") and name in _CASTS and not dtypes.is_boolean_dtype(op.output.dtype):
            self.known[op.output.name] = known
        elif known.what == "ids" and op.sym.name == "histc":
            bins, low, high = _options(op, ("bins", "min", "max"), (100, 0, 0))
            if (bins, low, high) == (known.routing.experts, 0, known.routing.experts - 1):
                self.known[op.output.name] = _Known("counts", known.routing)
        elif known.what == "counts" and name == "torch.cumsum":
            return ltorch.to(known.routing.ends, op.output.dtype)
        elif known.what in ("returned", "choices"):
            return self._summed(op, name, known)
        return None

    def _topk(self, op: BoundSymbol) -> None:
        a, _, dim = (*op.args, *[-1] * 3)[:3]
        size = a.shape[op.kwargs.get("dim", dim)] if a.ndim else 1
        if type(size) is int:
            self.experts[op.output[1].name] = size

    def _sorted(self, op: BoundSymbol, ids: TensorProxy) -> Any:
        """Replace the sort of ids."""
        experts = self.experts.get(ids.name, 0)
        dim, descending = _options(op, ("dim", "descending"), (-1, False))
        if not 1 < experts <= counting_sort.MOST_EXPERTS or ids.ndim != 1 or dim not in (0, -1) or descending:
            return None
        if type(ids.shape[0]) is not int or ids.dtype not in (dtypes.int64, dtypes.int32):
            return None
        if ids.shape[0] < 2 or unusable_device(ids.device) is not None:
            return None
        found, order, inverse, ends = self.route(ids, experts)
        # The results get the names of those that they replace.
        whole = isinstance(op.output, tuple)
        routing = _Routing(experts, op.output[1] if whole else op.output, inverse, ends)
        for what, p in (("ids", op.output[0] if whole else found), ("order", routing.order), ("inverse", inverse)):
            self.known[p.name] = _Known(what, routing)
        return (found, order) if whole else order

    def _gathered(self, op: BoundSymbol, x: TensorProxy) -> Any:
        """Replace the gather of rows by the order, or by its inverse."""
        index, *rest = op.args[-1] if isinstance(op.args[-1], tuple) else (op.args[-1],)
        if op.sym.id == "torch.index_select":
            rest = [] if _options(op, ("dim",), (0,))[0] in (0, -x.ndim) else [None]
        known = self.known.get(index.name) if isinstance(index, TensorProxy) and not rest else None
        if known is None or type(x.shape[0]) is not int or not dtypes.is_float_dtype(x.dtype):
            return None
        routing = known.routing
        if x.shape[0] * known.choices != routing.places:
            return None
        if known.what in ("order", "divided"):
            return sent(x, routing.order, routing.inverse, known.choices)
        if known.what != "inverse":
            return None
        self.known[op.output.name] = _Known("returned", routing, rows=x)
        return returned(x, None, routing.order, routing.inverse, 1)

    def _scattered(self, op: BoundSymbol, base: TensorProxy) -> Any:
        """Replace positions that are scattered by the order: they are its inverse."""
        key, value = op.args[1:3]
        key = key[0] if isinstance(key, tuple) and len(key) == 1 else key
        known = self.known.get(key.name) if isinstance(key, TensorProxy) else None
        if known is None or known.what != "order" or not isinstance(value, TensorProxy):
            return None
        made = self.made_by.get(value.name)
        shape = (known.routing.places,)
        if made is None or made.sym.id != "torch.arange" or base.dtype is not dtypes.int64:
            return None
        if tuple(base.shape) != shape or tuple(value.shape) != shape or not _counts_from_zero(made):
            return None
        return known.routing.inverse

    def _summed(self, op: BoundSymbol, name: str, known: _Known) -> Any:
        """Replace the sum of the rows of each token."""
        count, shape = known.routing.places, op.output.shape
        if known.what == "returned" and name in _SAME:
            if len(shape) > 1 and shape[0] * shape[1] == count and tuple(shape[2:]) == tuple(known.rows.shape[1:]):
                self.known[op.output.name] = known._replace(what="choices", choices=shape[1])
        elif known.what == "choices" and name == "torch.sum" and 1 < known.choices <= _MOST_CHOICES:
            dim, keepdim, dtype = _options(op, ("dim", "keepdim", "dtype"), (None, False, None))
            dim = dim[0] if isinstance(dim, (tuple, list)) and len(dim) == 1 else dim
            if dim in (1, 1 - op.args[0].ndim) and not keepdim and dtype is None:
                rows = self._weighted(known.rows)
                return returned(*rows, known.routing.order, known.routing.inverse, known.choices)
        return None

    def _weighted(self, rows: TensorProxy) -> tuple[TensorProxy, TensorProxy | None]:
        """Return rows and their weights if `rows` is their product; else `rows`, and None."""
        made = self.made_by.get(rows.name)
        if made is None or made.sym.id != "torch.mul" or rows.ndim < 2:
            return rows, None
        if not all(isinstance(a, TensorProxy) and dtypes.is_float_dtype(a.dtype) for a in made.args):
            return rows, None
        shape = (rows.shape[0], *[1] * (rows.ndim - 1))
        for y, weights in (made.args, made.args[::-1]):
            if y.shape == rows.shape and weights.shape == shape:
                return y, weights
        return rows, None


def _options(op: BoundSymbol, names: Sequence[str], defaults: Sequence[Any]) -> list[Any]:
    """Return the arguments behind the first one."""
    given = dict(zip(names, op.args[1:]))
    return [op.kwargs.get(name, given.get(name, default)) for name, default in zip(names, defaults)]


def _counts_from_zero(made: BoundSymbol) -> bool:
    """Check whether a range begins at 0 and has steps of 1."""
    numbers = [a for a in made.args if a is not None]
    return numbers in ([made.output.shape[0]], [0, made.output.shape[0]], [0, made.output.shape[0], 1])


def register(registry: Any, executor: str) -> None:
    """Register the operator, the option and the pass."""
    registry.register_option(OPTION, type=bool, default=True, help="whether tokens are routed to experts by one sort")
    route = counting_sort.register(registry, executor)

    def replace(trace: Trace, context: Any) -> Trace:
        if not context.options.get(OPTION, True):
            return trace
        if not {"torch.topk"} & {op.sym.id for op in trace.bound_symbols}:
            return trace
        return rewrite(trace, "Routing", _Router(route), drops_dead_code=True)

    registry.register_transform(OPTION, replace, phase="before_grad", executor=executor)
