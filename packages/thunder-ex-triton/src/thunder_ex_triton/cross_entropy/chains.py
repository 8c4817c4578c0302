# SPDX-License-Identifier: Apache-2.0
"""What the logits of a loss were computed from, through casts and reshapes that nothing else reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from thunder.extend import Trace, dtypes, proxies_in
from thunder.toolkit.claiming import loss_reduction

__all__ = ["Chains", "loss_arguments"]


class Chains:
    """Finds the tensors that logits of a trace were computed from."""

    def __init__(self, trace: Trace):
        self.made_by = {name: op for op in trace.bound_symbols for name in op.out_names}
        works = [op for op in trace.bound_symbols if op.out_names or op.sym.must_stay]  # others have no effect
        self.uses = Counter(name for op in works for name in op.arg_names)
        self.returned = {p.name for p in proxies_in(trace.output)}

    def is_read_once(self, p: Any) -> bool:
        """Check whether one operation reads a value, and the program does not return it."""
        return self.uses[p.name] == 1 and p.name not in self.returned

    def of(self, logits: Any) -> Iterator[Any]:
        """Yield the logits, and the tensors that they are a reshape and at most one widening cast of."""
        p, cast = logits, False
        while True:
            yield p
            op = self.made_by.get(p.name)
            if op is None or not op.args or not self.is_read_once(p):
                return
            source = op.args[0]
            if op.sym.facts.casts and not cast and _is_widening(source, p):
                cast = True
            elif not op.sym.facts.keeps_order or not _keeps_rows(source, p):
                return
            p = source


def loss_arguments(
    input: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> tuple[Any, Any, int, str, float]:  # fmt: skip
    """Return `target`, `weight`, `ignore_index`, `reduction` and `label_smoothing` of a call of cross-entropy."""
    return target, weight, ignore_index, loss_reduction(reduction, size_average, reduce), label_smoothing


def _is_widening(source: Any, result: Any) -> bool:
    wider = result.dtype is dtypes.float32 and source.dtype.bytes < result.dtype.bytes
    return source.shape == result.shape and (wider or result.dtype is source.dtype)


def _keeps_rows(source: Any, result: Any) -> bool:
    return source.ndim > 0 and result.ndim > 0 and source.shape[-1] == result.shape[-1]
