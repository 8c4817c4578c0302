# SPDX-License-Identifier: Apache-2.0
"""Claims by measurement: time the executors that accept an operation, and let the fastest claim it.

An implementation that is registered with `measured=` takes part. The candidates are all executors that support the
call, also where `profitable` rejects it: that is a rule, which a measurement replaces. The default is the executor that
claims the call without measurements. An operation that is differentiated is timed with its backward, as a choice of its
own, because the executor that claims it also provides its gradient rule. In this compilation, the same executor then
claims all calls of this class: the forward program, recomputation in backward, and calls that need no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.core import prims
from thunder.core.dtypes import is_float_dtype
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol, OpTags, Symbol
from thunder.core.trace import Trace
from thunder.execution.claim import choose, supports, transform_for_execution
from thunder.extend import Compilation, Executor, ExecutorList, compiling
from thunder.extend.choice_store import digest
from thunder.extend.measuring import Candidate, Measurements, example_tensor, measured_choice, shape_class_of
from thunder.passes.dce import dce
from thunder.passes.deletion import delete_last_used
from thunder.passes.split import Split

__all__ = ["MeasuredClaims", "with_measured_claims"]

_UNREPEATABLE = (OpTags.RANDOM_OP, OpTags.GENERATOR_STATE_OP)


def with_measured_claims(executors: ExecutorList, compilation: Compilation) -> ExecutorList:
    """Return the executors, in the order of which measurements decide where an implementation asks for them."""
    if compilation.measurements is None:
        return executors
    return ExecutorList(executors, named=executors.named, preferred=MeasuredClaims(executors, compilation))


class MeasuredClaims:
    """Finds the executor that claims a call. `executors` are those without measurements."""

    def __init__(self, executors: ExecutorList, compilation: Compilation):
        self.executors = executors
        self.measurements: Measurements | None = compilation.measurements
        self.compilation = Compilation(compilation.options)  # the candidates are compiled without measurements
        self._with_gradient: dict[str, ExecutorList] = {}  # by operation and shape class
        self._ids = {id for ex in executors for id, found in ex.implmap.items() if found.measured is not None}

    def concerns(self, sym: Symbol) -> bool:
        """Check whether an implementation of an operation asks for measurements."""
        return sym.id in self._ids

    def __call__(self, bsym: BoundSymbol, *, differentiated: bool = False) -> ExecutorList | None:
        """Return the executors to which a call is offered: the fastest, and those that end every list.

        Return None if measurements do not decide.
        """
        if not self.concerns(bsym.sym) or bsym.has_effect or any(tag in bsym.sym.tags for tag in _UNREPEATABLE):
            return None
        tensors = [p for p in bsym.flat_args if isinstance(p, TensorProxy)]
        contenders = {ex.name: ex for ex in self.executors if supports(ex, bsym)}
        shape_class = self._class_of(bsym, contenders.values())
        default = self._default(bsym, differentiated)
        if len(contenders) < 2 or not tensors or shape_class is None or default is None:
            return None
        if default.name not in contenders:
            return None
        kind = digest(str(bsym.sym.id), shape_class)
        if not differentiated and kind in self._with_gradient:
            return self._with_gradient[kind]
        order = [default, *[ex for ex in contenders.values() if ex is not default]]
        wrt = _differentiable(tensors) if differentiated else []
        candidates = [Candidate(ex.name, self._prepare(bsym, ex, wrt), _version(ex)) for ex in order]
        operation = f"{bsym.sym.id} and its gradient" if differentiated else str(bsym.sym.id)
        key = [shape_class, [p.name in {w.name for w in wrt} for p in tensors]]
        name = measured_choice(operation, key, candidates, tensors[0].device, measurements=self.measurements)
        found = self._only(contenders[name])
        if differentiated:
            self._with_gradient[kind] = found
        return found

    def _class_of(self, bsym: BoundSymbol, contenders: Any) -> Any:
        """Return the shape class of a call. Implementations that do not accept the call have no say."""
        found = {}
        for ex in contenders:
            implementation = ex.implmap.get(bsym.sym.id)
            if implementation is not None and implementation.measured is not None:
                of = shape_class_of if implementation.measured is True else implementation.measured
                found[ex.name] = of(*bsym.args, **bsym.kwargs)
        return None if not found or None in found.values() else found

    def _default(self, bsym: BoundSymbol, differentiated: bool) -> Executor | None:
        """Return the executor that claims a call without measurements."""
        if not differentiated:
            return choose(bsym, self.executors).executor
        named = self.executors.named
        for ex in self.executors:
            if ex.is_fallback or ex.grad_rule(bsym, named=named) is not None or ex.takes(bsym, named=named):
                return ex
        return None

    def _only(self, executor: Executor) -> ExecutorList:
        ending = [ex for ex in self.executors if ex.is_fallback]
        return ExecutorList(dict.fromkeys([executor, *ending]), named=True)

    def _prepare(
        self, bsym: BoundSymbol, executor: Executor, wrt: Sequence[TensorProxy]
    ) -> Callable[[], Callable[[], Any]]:
        """Return a function that compiles a call for one executor."""

        def prepare() -> Callable[[], Any]:
            trace = _alone(bsym)
            executors = self._only(executor)
            with compiling(self.compilation):
                if not wrt:
                    return _bound(_compiled(trace, executors), [example_tensor(p) for p in trace.args])
                split = Split(trace, executors, wrt)
                every = (True,) * split.returned + (False,) * (len(split.outputs) - split.returned)
                backward = split.backward(every, (True,) * len(split.wrt), boxed=False)
                forward, gradients = _compiled(split.forward, executors), _compiled(backward, executors)
            inputs = [example_tensor(p) for p in split.forward.args]
            cotangents = [example_tensor(p) for p in split.outputs[: split.returned]]

            def step() -> Any:
                _, saved = forward(*inputs)
                return gradients(*saved, *cotangents)

            return step

        return prepare


def _differentiable(tensors: Sequence[TensorProxy]) -> list[TensorProxy]:
    """Return the arguments that a call is differentiated with respect to; all floats if none is marked."""
    floats = list({p.name: p for p in tensors if is_float_dtype(p.dtype)}.values())
    return [p for p in floats if p.requires_grad] or floats


def _alone(bsym: BoundSymbol) -> Trace:
    """Return the program that consists of one call."""
    inputs = {p.name: p for p in bsym.flat_args if isinstance(p, Proxy)}
    trace = Trace("measured", args=list(inputs.values()))
    trace.names.update(p.name for op in _all_levels([bsym]) for p in (*op.flat_args, *op.flat_outs))
    trace.bound_symbols[:] = [bsym]
    with tracectx(trace):
        prims.python_return(bsym.output)
    return trace


def _all_levels(operations: Sequence[BoundSymbol]) -> list[BoundSymbol]:
    return [found for op in operations for found in (op, *_all_levels(op.subsymbols))]


def _compiled(trace: Trace, executors: Sequence[Executor]) -> Callable[..., Any]:
    claimed = transform_for_execution(dce(trace), executors)[-1]
    return delete_last_used(claimed).python_callable(decorators=False)


def _bound(program: Callable[..., Any], inputs: list[torch.Tensor]) -> Callable[[], Any]:
    return lambda: program(*inputs)


def _version(executor: Executor) -> str:
    return f"{executor.plugin or ''} {executor.version or ''}".strip()
