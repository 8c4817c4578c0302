# SPDX-License-Identifier: Apache-2.0
"""What a program returns is written once: a transform that changes it is followed by every later trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder
import thunder.torch as ltorch
from thunder.core import prims
from thunder.core.errors import ThunderError
from thunder.core.langctx import set_langctx
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import Trace, construct
from thunder.transforms.base import PassContext, Transform

STAGES = {"before_grad": "transform_computation", "before_execution": "transform_execution",
          "after_execution": "transform_claimed"}  # fmt: skip


def doubling(phase: str, write: Any) -> Transform:
    """A transform that returns twice the first result of the forward program, in the way of `write(out, new)`."""

    def rewrite(self: Transform, trace: Trace, context: PassContext) -> Trace:
        twice = context.executors[-1].register_operator(
            "twice_for_test", meta=lambda a: TensorProxy(like=a), fn=lambda a: a * 2
        )
        if trace.name != "computation":
            return trace
        with construct(trace, "Doubled") as out, tracectx(out), set_langctx("torch"):
            *body, last = trace.bound_symbols
            out.bound_symbols[:] = body
            differentiated = isinstance(trace.output, tuple)  # (output, saved)
            value = trace.output[0] if differentiated else trace.output
            double = twice(value) if phase == "after_execution" else ltorch.mul(value, 2)
            write(out, last, (double, *trace.output[1:]) if differentiated else double)
        return out

    return type("Doubled", (Transform,), {STAGES[phase]: rewrite})()


def returned_only(out: Trace, last: BoundSymbol, new: Any) -> None:
    """Records a return of something else and says nothing of `Trace.output`."""
    prims.python_return(new)


def assigned_only(out: Trace, last: BoundSymbol, new: Any) -> None:
    """Keeps the old return and assigns the output afterwards."""
    out.record(last)
    out.output = new


def both(out: Trace, last: BoundSymbol, new: Any) -> None:
    """Says it twice."""
    out.output = new
    prims.python_return(new)


@pytest.mark.parametrize("write", [returned_only, assigned_only, both], ids=lambda f: f.__name__)
@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
@pytest.mark.parametrize("phase", list(STAGES))
def test_a_transform_changes_the_output(phase: str, grad: bool, write: Any) -> None:
    """In each phase, in each way of writing it, every later trace and the result follow."""
    a = torch.randn(3, requires_grad=grad)
    f = thunder.jit(lambda a: a.sin(), transforms=[doubling(phase, write)])
    result = f(a)
    torch.testing.assert_close(result, a.sin() * 2)
    traces = thunder.last_traces(f)
    position = next(i for i, t in enumerate(traces) if t.provenance and t.provenance.name == "Doubled")
    for trace in traces[position:]:
        last = trace.bound_symbols[-1]
        assert last.sym is prims.python_return
        assert trace.output is last.args[0]
    if grad:  # what changes results after differentiation is no part of the gradient
        result.sum().backward()
        factor = 2 if phase == "before_grad" else 1
        torch.testing.assert_close(a.grad, a.detach().cos() * factor)


def test_an_output_that_the_return_does_not_return() -> None:
    """Assigned first, and then the old return recorded: which of both is meant cannot be known."""

    def assigned_first(out: Trace, last: BoundSymbol, new: Any) -> None:
        out.output = new
        out.record(last)

    f = thunder.jit(lambda a: a.sin(), transforms=[doubling("before_grad", assigned_first)])
    with pytest.raises(ThunderError, match=r"output of computation was set to .* returns .* Record the return first"):
        f(torch.randn(3))


def test_outputs_that_do_not_fit_the_gradients() -> None:
    """After differentiation results keep their number and order; before it they may change."""

    class Twice(Transform):
        def transform_execution(self, trace: Trace, context: PassContext) -> Trace:
            if trace.name != "computation":
                return trace
            with construct(trace, "Twice") as out:
                out.bound_symbols[:] = trace.bound_symbols
                out.output = ((trace.output[0], trace.output[0]), trace.output[1])
            return out

    f = thunder.jit(lambda a: a.sin(), transforms=[Twice()])
    with pytest.raises(ThunderError, match=r"number, their order.* Make other changes in transform_computation"):
        f(torch.randn(3, requires_grad=True))
