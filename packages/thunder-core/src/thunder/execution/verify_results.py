# SPDX-License-Identifier: Apache-2.0
"""Checks of what executors really return, for programs that are compiled while `THUNDER_VERIFY` is set.

- `THUNDER_VERIFY=1`: each result of an executor other than torch has the dtype, shape and device that the meta function
  returned. It is contiguous if the operation declares contiguous results (`Facts.layout`), and shares memory only with
  the arguments that the executor named (`Executor.memory`).
- `THUNDER_VERIFY=2`: the same for torch's own results. In addition, the values that an executor returns are compared
  with those that torch computes from the same inputs.

`with_checks` adds the checks to the trace that is compiled, not to the traces that users see. Operations with effects
(e.g. random draws, collectives) run only once, so their values are not compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder.core.devices import to_device
from thunder.core.dtypes import to_dtype
from thunder.core.errors import ResultVerificationError, way_out
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import Trace
from thunder.execution.excerpt import distinct, reference_of

__all__ = ["allowed_difference", "difference_of_values", "with_checks"]

# The largest difference from torch's result, relative to the largest value of that result.
_TOLERANCES = {torch.float64: 1e-8, torch.complex128: 1e-8, torch.float32: 1e-4, torch.complex64: 1e-4,
               torch.float16: 1e-2, torch.bfloat16: 5e-2}  # fmt: skip
_OF_SMALL_FLOATS = 0.25  # the tolerance of float8 and smaller dtypes


def with_checks(trace: Trace, level: int) -> Trace:
    """Return the trace with a check after each operation that an executor runs, or `trace` if there is none."""
    lines: list[BoundSymbol] = []
    for bsym in trace.bound_symbols:
        executor = bsym.sym.executor
        if executor is None or not bsym.out_names or (executor.is_fallback and level < 2):
            lines.append(bsym)
            continue
        check = _Check(bsym)
        if level >= 2 and not executor.is_fallback:
            check.find_reference()
        inputs = [p for p in distinct(bsym.flat_args) if isinstance(p, TensorProxy)]
        hidden = [p for p in inputs if p.name in check.hidden]
        if hidden:
            lines.append(_call(check.remember, hidden))
        if check.reference is not None:
            lines.append(_call(check.before, inputs))
        lines += [bsym, _call(check.after, [p for p in distinct(bsym.flat_outs) if p.name in bsym.out_names])]
    if len(lines) == len(trace.bound_symbols):
        return trace
    out = trace.derive()
    out.provenance = trace.provenance
    out.bound_symbols[:] = lines
    return out


def _memory_of(x: torch.Tensor) -> int:
    """Return the address of a tensor's memory; 0 if it has none."""
    return x.untyped_storage().data_ptr() if x.layout is torch.strided and x.numel() else 0


def _call(function: Any, values: Sequence[Proxy]) -> BoundSymbol:
    """Return a line that calls `function` with values of the trace."""

    def printer(bsym: BoundSymbol, context: Any) -> list[str]:
        return [f"{context.name_of(function, 'check')}({', '.join(p.name for p in bsym.args)})"]

    return BoundSymbol(Symbol("check", lambda *args: None, is_prim=True, printer=printer), tuple(values), {}, None)


class _Check:
    """The check of one operation: `before` receives its inputs, and `after` receives its results."""

    def __init__(self, bsym: BoundSymbol):
        self.bsym = bsym
        self.outputs = [p for p in distinct(bsym.flat_outs) if p.name in bsym.out_names]
        self.contiguous = {p.name for p in self.outputs if _is_promised_contiguous(bsym, p)}
        shared = None if bsym.has_effect else bsym.sym.executor.memory.may_share(bsym)  # type: ignore[union-attr]
        self.hidden = set() if shared is None else {*bsym.arg_names} - {*shared}  # share no memory with results
        self.memory: set[int] = set()
        self.reference: Any = None
        self.inputs: list[Any] = []
        # Bound methods are made anew at each access, and traces name objects by identity.
        self.remember, self.before, self.after = self._remember, self._before, self._after

    def find_reference(self) -> None:
        """Compile torch's implementation of the operation, if its values can be compared."""
        found = reference_of(self.bsym)
        self.reference = None if found is None else found.python_callable(decorators=False)

    def _remember(self, *hidden: Any) -> None:
        self.memory = {_memory_of(x) for x in hidden} - {0}

    def _before(self, *inputs: Any) -> None:
        self.inputs = [x.detach().clone() for x in inputs]

    def _after(self, *results: Any) -> None:
        for p, x in zip(self.outputs, results):
            problem = self._difference(p, x)
            if problem is not None:
                raise ResultVerificationError(self._message(f"{p.name} is {problem}"))
            if isinstance(x, torch.Tensor) and _memory_of(x) in self.memory:
                why = "has the memory of an argument, which the executor rules out (`Executor.memory`)"
                raise ResultVerificationError(self._message(f"{p.name} {why}"))
        inputs, self.inputs = self.inputs, []
        if self.reference is None or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
            return
        with torch.no_grad():
            for p, x, expected in zip(self.outputs, results, self.reference(*inputs)):
                problem = difference_of_values(x, expected)
                if problem is not None:
                    raise ResultVerificationError(self._message(f"{p.name} differs from torch's result: {problem}"))

    def _difference(self, p: Proxy, x: Any) -> str | None:
        """Return how a result differs from its proxy, or None."""
        if not isinstance(p, TensorProxy):
            return None
        if not isinstance(x, torch.Tensor):
            return f"a {type(x).__name__}, but the meta function returns a {p.type_string()}"
        found = f"a {x.device} {str(x.dtype).removeprefix('torch.')} tensor of shape {tuple(x.shape)}"
        same_shape = len(p.shape) == x.dim() and all(type(n) is not int or n == m for n, m in zip(p.shape, x.shape))
        if not same_shape or to_dtype(x.dtype) is not p.dtype or to_device(x.device) is not p.device:
            return f"{found}, but the meta function returns a {p.type_string()}"
        if p.name in self.contiguous and not x.is_contiguous():
            return f"{found} with strides {x.stride()}, but the operation promises contiguous results"
        return None

    def _message(self, problem: str) -> str:
        bsym = self.bsym
        assert bsym.sym.executor is not None
        parts = [op.sym.name for op in bsym.subsymbols]
        of = f", which runs {', '.join(parts)}," if parts and parts != [bsym.sym.name] else ""
        at = bsym.source or next((op.source for op in bsym.subsymbols if op.source), None)
        return (
            f"wrong result of {bsym.sym.name}{of} of the executor {bsym.sym.executor.name!r}: {problem}"
            + (f"\n  at {at}" if at else "")
            + way_out(bsym.sym.executor)
        )


def _is_promised_contiguous(bsym: BoundSymbol, p: Proxy) -> bool:
    if not isinstance(p, TensorProxy):
        return False
    source = next((op for op in (*bsym.subsymbols, bsym) if p.name in op.out_names), bsym)
    if source.kwargs.get("memory_format") not in (None, torch.contiguous_format):
        return False
    layout = source.sym.facts.layout
    return layout == "contiguous" or (layout == "contiguous on gpu" and p.device.type != "cpu")


def allowed_difference(dtype: torch.dtype) -> float:
    """Return the largest difference from torch's result, relative to the largest value of that result."""
    return _TOLERANCES.get(dtype, _OF_SMALL_FLOATS)


def difference_of_values(found: Any, expected: Any, tolerance: float | None = None) -> str | None:
    """Return how a result differs from torch's result, or None.

    `tolerance` is relative to the largest value of torch's result. By default it depends on the dtype.
    """
    if not isinstance(found, torch.Tensor):
        return None if found == expected else f"{found} instead of {expected}"
    if not (found.is_floating_point() or found.is_complex()):
        wrong = int((found != expected).sum())
        return f"{wrong} of {found.numel()} elements" if wrong else None
    wide = torch.complex128 if found.is_complex() else torch.float64
    a, b = found.to(wide), expected.to(wide)
    finite = torch.isfinite(b)
    same = (a == b) | (torch.isnan(a) & torch.isnan(b))
    if not bool((same | finite).all()):
        return "other elements are infinite or NaN"
    scale = float(b[finite].abs().max()) if bool(finite.any()) else 0.0
    difference = torch.where(finite & ~same, (a - b).abs(), torch.zeros((), dtype=torch.float64, device=a.device))
    largest = float(difference.max()) if difference.numel() else 0.0
    relative = allowed_difference(found.dtype) if tolerance is None else tolerance
    allowed = relative * max(scale, torch.finfo(torch.float32).tiny)
    return None if largest <= allowed else f"by {largest:.3g}, and {allowed:.3g} is allowed"
