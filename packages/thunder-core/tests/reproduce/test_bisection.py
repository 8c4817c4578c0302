# SPDX-License-Identifier: Apache-2.0
"""`thunder.bisect`: the transform, executor, operation, region or pass that makes a call wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from faulty import fuser, operator_executor

import thunder
import thunder.torch as ltorch
from thunder.core.trace import Trace


def chains(x: torch.Tensor) -> torch.Tensor:
    """Two fusions of `faulty.Fuser`, with a matrix product between them."""
    y = x.sin().sin() @ x
    return (y.sin().exp()) @ x  # the wrong line


def test_a_call_that_is_right() -> None:
    """Nothing is found, and nothing changes."""
    net = torch.nn.BatchNorm1d(4)
    found = thunder.bisect(net, torch.randn(3, 4))
    assert found.failure is None and str(found) == "the compiled program and eager mode agree"
    assert int(net.num_batches_tracked) == 0
    passed = thunder.bisect(net, torch.randn(3, 4), check=lambda y: y.isfinite().all())
    assert str(passed) == "the compiled program passes the check"


@pytest.mark.parametrize("gradients", [False, True])
def test_a_fusion(gradients: bool) -> None:
    """The region, what it computes and the user's line, among several fusions of the executor."""
    with fuser(1.01) as wrong:
        found = thunder.bisect(thunder.jit(chains, executors=[wrong]), torch.randn(4, 4, requires_grad=gradients))
        assert found.executors == ["chains"]
        assert str(found.operation).startswith("exp, at ")
        assert found.region is not None
        assert found.region.startswith("chain of executor 'chains' in the forward program, which computes sin, exp, at")
        assert "the wrong line" in found.region
        assert (found.pass_program, found.pass_name) == ("forward", "Chains")
    with fuser(1.0) as right:
        assert thunder.bisect(thunder.jit(chains, executors=[right]), torch.randn(4, 4)).failure is None


def test_a_check_of_the_user() -> None:
    """The whole call is searched. The check may return False, or raise an error."""

    def f(x: torch.Tensor) -> dict[str, Any]:
        return {"y": x.cos().tanh(), "n": 3}

    def check(found: dict[str, Any]) -> bool:
        return bool(found["y"].isfinite().all()) and found["n"] == 3

    def raising(found: dict[str, Any]) -> None:
        torch.testing.assert_close(found["y"], found["y"].nan_to_num())

    with operator_executor(tanh=lambda a: torch.tanh(a) / 0, cos=torch.cos) as wrong:
        jitted = thunder.jit(f, executors=[wrong])
        found = thunder.bisect(jitted, torch.ones(3), check=check)
        assert found.failure == "the check of the result fails"
        assert found.executors == ["wrong"] and found.program is None
        assert found.region is not None and found.region.startswith("wrong_tanh of executor 'wrong'")
        assert (found.pass_program, found.pass_name) == ("forward", "Transform for execution")
        again = thunder.bisect(jitted, torch.ones(3), check=raising)
        assert str(again.failure).startswith("the check raises AssertionError")
        assert again.region == found.region
        assert found.to_dict()["executors"] == ["wrong"]


def test_a_check_that_eager_mode_fails() -> None:
    """thunder is not to blame, so that nothing is searched."""
    found = thunder.bisect(lambda x: x.log(), -torch.ones(2), check=lambda y: not y.isnan().any())
    assert found.executors is None and str(found) == "the check of the result fails, in eager mode, too"


def test_one_of_several_transforms() -> None:
    """Only the wrong one is named."""

    class Right(thunder.Transform):
        pass

    class Wrong(thunder.Transform):
        def transform_computation(self, trace: Trace, context: Any) -> Trace:
            out = trace.derive("Wrong")
            out.bound_symbols[:] = [
                op.replace(sym=ltorch.sin) if op.sym is ltorch.exp else op for op in trace.bound_symbols
            ]
            return out

    jitted = thunder.jit(lambda x: x.exp() + 1, transforms=[Right(), Wrong()])
    assert thunder.bisect(jitted, torch.ones(3)).notes == ["transforms: it agrees without Wrong"]


def test_an_error_of_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error appears while the call is compiled: the pass that raises it is named."""
    from thunder.frontend import pipeline

    def merge_views(trace: Trace) -> Trace:
        raise ZeroDivisionError("in a pass")

    monkeypatch.setattr(pipeline, "merge_views", merge_views)
    found = thunder.bisect(lambda x: x.sin(), torch.ones(2))
    assert found.failure == "it raises ZeroDivisionError: in a pass"
    assert found.executors == [] and found.pass_name == "merge_views"
    checked = thunder.bisect(lambda x: x.sin(), torch.ones(2), check=lambda y: True)
    assert checked.executors == [] and checked.pass_name == "merge_views"


def test_a_wrong_kernel_of_backward() -> None:
    """The line is in the backward program."""
    with operator_executor("back", neg=lambda a: -a * 1.5) as wrong:
        x = torch.randn(4, requires_grad=True)
        found = thunder.bisect(thunder.jit(lambda x: x.cos(), executors=[wrong]), x)
        assert found.failure is not None and "gradient of input 0" in found.failure
        assert found.executors == ["back"]
        assert found.region is not None and "in the backward program" in found.region
        assert found.pass_program == "backward" and found.pass_name == "Transform for execution"


def test_a_call_that_runs_eagerly() -> None:
    """There is no compiled program, which the report says."""

    @thunder.disable
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    found = thunder.bisect(thunder.jit(lambda x: inner(x), sharp_edges="allow"), torch.ones(2))
    assert found.failure is None and "thunder compiles no program of this call, which is partly eager: " in str(found)
