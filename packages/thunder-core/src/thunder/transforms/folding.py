# SPDX-License-Identifier: Apache-2.0
"""Constant folding: compute expressions of constants once, when the program is compiled.

Contract: an operation is folded if it reads no input of the program and no random number, and its results are at most
`max_bytes` large (e.g. `torch.arange(…)`, a causal mask, the frequencies of a rotary embedding). The program stores the
results as constants. Values that escape to the caller, and values that are written to, are computed in each call.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch

from thunder.core.devices import Device
from thunder.core.dtypes import dtype
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol, OpTags, Symbol, map_proxies
from thunder.core.trace import Trace
from thunder.passes.cse import escaping_values
from thunder.transforms.base import check_option
from thunder.transforms.rewrite import RewritePass

__all__ = ["ConstantFoldingTransform", "is_literal"]

_numbers = itertools.count()
_LITERALS = (
    bool, int, float, complex, str, type(None), type(Ellipsis), Device, dtype, torch.dtype, torch.device,
    torch.memory_format, torch.layout,
)  # fmt: skip


def is_literal(x: Any) -> bool:
    """Check whether an argument is the same in each call, apart from proxies in it."""
    kind = type(x)
    if kind in (tuple, list, torch.Size):
        return all(is_literal(i) for i in x)
    if kind is dict:
        return all(is_literal(v) for v in x.values())
    if kind is slice:
        return is_literal((x.start, x.stop, x.step))
    return kind in _LITERALS or isinstance(x, Proxy) or (kind is type and x in (bool, int, float, complex))


class ConstantFoldingTransform(RewritePass):
    """Compute constants when the program is compiled. Results of more than `max_bytes` are not folded."""

    pass_name = "Constant Folding"
    phases = ("before_execution",)
    changes_results = False

    def __init__(self, *, max_bytes: int = 1 << 20):
        good = type(max_bytes) is int and max_bytes >= 0
        check_option("ConstantFoldingTransform", "max_bytes", max_bytes, good, "a number of bytes, at least 0")
        self.max_bytes = max_bytes

    def start(self) -> None:
        self.values = _constants(self.trace)
        self.folded = self._folded(self.trace, self.values)
        self.python = next(ex for ex in self.context.executors if ex.name == "python")

    def rewrite(self, op: BoundSymbol) -> Any:
        if self.folded.isdisjoint(op.out_names):
            return None
        for p in op.flat_outs:
            self.record(_constant(p, self.values[p.name], self.python))
        return op.output

    def _folded(self, trace: Trace, values: dict[str, Any]) -> set[str]:
        """Return the names of small constants that the rest of the program reads and does not return."""
        read: set[str] = set()
        left = escaping_values(trace)
        for bsym in trace.bound_symbols:
            if not all(name in values for name in bsym.out_names) or not bsym.out_names:
                read.update(name for name in bsym.arg_names if name in values)
            if OpTags.IN_PLACE_OP in bsym.sym.tags:
                left.update(bsym.arg_names)
        return {name for name in read - left if _bytes(values[name]) <= self.max_bytes}


def _constants(trace: Trace) -> dict[str, Any]:
    """Compute the values that depend only on literals."""
    values: dict[str, Any] = {}
    for bsym in trace.bound_symbols:
        if not bsym.out_names or bsym.has_effect or not is_literal((bsym.args, bsym.kwargs)):
            continue
        if not all(isinstance(p, TensorProxy) and _is_sized(p) for p in bsym.flat_outs):
            continue
        if all(name in values for name in bsym.arg_names):
            values.update(_run(bsym, values))
    return values


def _is_sized(p: TensorProxy) -> bool:
    return all(type(d) is int for d in p.shape) and p.device.type != "meta"


def _run(bsym: BoundSymbol, values: dict[str, Any]) -> dict[str, Any]:
    def value(p: Proxy) -> Any:
        return values[p.name]

    with tracectx(None), torch.no_grad():
        result = bsym.sym(*map_proxies(bsym.args, value), **map_proxies(bsym.kwargs, value))
    found: dict[str, Any] = {}
    _pair(bsym.output, result, found)
    return found


def _pair(output: Any, result: Any, found: dict[str, Any]) -> None:
    if isinstance(output, Proxy):
        found[output.name] = result
    elif isinstance(output, (tuple, list)):
        for one, other in zip(output, result):
            _pair(one, other, found)


def _bytes(x: torch.Tensor) -> int:
    return math.prod(x.shape) * x.element_size()


def _constant(p: Proxy, value: torch.Tensor, executor: Any) -> BoundSymbol:
    """Return an operation that returns `value`, which the program stores."""
    value = value.detach().clone()

    def meta() -> Any:
        return p

    sym = Symbol(
        f"constant_{p.name}", meta, id=("constant", next(_numbers)), is_prim=True, executor=executor, fn=lambda: value
    )
    return BoundSymbol(sym, (), {}, p)
