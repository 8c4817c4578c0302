# SPDX-License-Identifier: Apache-2.0
"""`thunder.examine.compare`: each line of a program beside torch and float64."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from faulty import fuser, operator_executor
from torch import nn

import thunder
from thunder.core.errors import ThunderError
from thunder.core.trace import Trace
from thunder.execution.float64 import distance


class Net(nn.Module):
    """A module with buffers, dropout and two matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))  # the wrong line


def test_a_program_that_is_right() -> None:
    """No line diverges, results and gradients have torch's errors, and the module is unchanged."""
    net = Net()
    before = {name: x.clone() for name, x in net.state_dict().items()}
    found = thunder.examine.compare(net, torch.randn(4, 8))
    assert found.first is None and str(found).splitlines()[0].endswith("lines: none diverges from torch")
    assert {line.program for line in found.lines} == {"forward", "backward"}
    assert [r.name for r in found.results][:2] == ["result 0", "gradient of t_first_weight"]
    assert all(r.error <= max(4 * r.torch_error, 1e-6) for r in found.results)
    assert all(torch.equal(x, before[name]) for name, x in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters()) and not found.notes


def test_a_wrong_kernel() -> None:
    """The line, its executor, what it computes, and the user's line and module. Later lines do not diverge."""
    with operator_executor(tanh=lambda a: torch.tanh(a) * 1.01) as wrong:
        found = thunder.examine.compare(Net(), torch.randn(4, 8), executors=[wrong])
    first = found.first
    assert first is not None and (first.program, first.executor, first.computes) == ("forward", "wrong", ["tanh"])
    assert first.source is not None and first.source.filename == __file__ and "the wrong line" in str(first)
    assert first.problem is not None and first.problem.startswith("its result is 1.0e-02 of the largest value away")
    assert first.error == pytest.approx(0.01, rel=1e-3) and first.torch_error is not None and first.torch_error < 1e-6
    assert [line for line in found.lines if line.diverges] == [first] == found.worst()[:1]
    assert found.results[0].error > 1e-3 > found.results[0].torch_error
    assert json.loads(json.dumps(found.to_dict()))["first"]["executor"] == "wrong"


def test_a_wrong_line_of_backward() -> None:
    """A kernel that only backward calls."""
    with operator_executor(neg=lambda a: -a * 1.5) as wrong:
        found = thunder.examine.compare(lambda x: x.cos(), torch.randn(4, requires_grad=True), executors=[wrong])
    assert found.first is not None and found.first.program == "backward" and found.first.computes == ["neg"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_fusion(dtype: torch.dtype) -> None:
    """The fusion that is wrong, and not the one that is right."""
    x = torch.randn(4, 4, dtype=dtype)
    with fuser(1.5) as wrong:
        found = thunder.examine.compare(lambda x: (x.sin().sin() @ x).exp() @ x, x, executors=[wrong])
    assert [line.computes for line in found.lines if line.diverges] == [["exp"]]


def test_rounding_is_no_divergence() -> None:
    """A kernel that rounds less than torch differs from torch, and float64 agrees with it."""

    def exact(a: torch.Tensor) -> torch.Tensor:
        return a.double().sum().to(a.dtype)

    x = torch.full((4096,), 1.001, dtype=torch.bfloat16)
    x[0] = 2048.0
    with operator_executor(sum=lambda a, *args, **kwargs: exact(a)) as better:
        assert thunder.examine.compare(lambda x: x.sum(), x, executors=[better]).first is None


INTEGERS: dict[str, Callable[..., Any]] = {
    "right": torch.gt,
    "wrong": lambda a, b: a <= b,
}


@pytest.mark.parametrize("kernel", INTEGERS)
def test_booleans(kernel: str) -> None:
    """They have to be equal."""
    with operator_executor(gt=INTEGERS[kernel]) as executor:
        found = thunder.examine.compare(lambda x: x > 0, torch.tensor([1.0, -1.0, 2.0]), executors=[executor])
    assert (found.first is None) == (kernel == "right")
    if found.first is not None:
        assert found.first.problem == "3 of 3 elements differ from torch's"


def test_other_metadata_and_errors() -> None:
    """A result of another dtype, which `THUNDER_VERIFY` rejects, and a kernel that raises, end the run."""

    def raises(a: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no kernel image")

    with operator_executor(cos=raises) as executor:
        found = thunder.examine.compare(lambda x: x.cos() + 1, torch.ones(2), executors=[executor])
    assert found.first is not None and found.first.problem == "it raises RuntimeError: no kernel image"
    assert found.notes == ["the lines after the error did not run"] and not found.results


def test_infinite_values() -> None:
    """Overflow in half precision is torch's too; a NaN that torch does not have diverges."""
    x = torch.full((2,), 300.0, dtype=torch.float16)
    assert thunder.examine.compare(lambda x: x * x, x).first is None
    with operator_executor(cos=lambda a: torch.full_like(a, torch.nan)) as executor:
        assert thunder.examine.compare(lambda x: x.cos(), torch.ones(2), executors=[executor]).first is not None


def test_random_numbers() -> None:
    """All programs receive the numbers that were drawn, and the results are not compared."""
    found = thunder.examine.compare(lambda x: torch.dropout(x, 0.5, True) @ x, torch.randn(8, 8, requires_grad=True))
    assert found.first is None and not found.results
    assert found.notes == ["the program draws random numbers, so that only lines are compared, not its results"]
    assert max(line.accumulated or 0.0 for line in found.lines) < 1e-5


def test_writes_to_inputs() -> None:
    """Arguments are copies."""
    x = torch.ones(3)
    assert thunder.examine.compare(lambda x: x.mul_(2).sum(), x).first is None
    assert torch.equal(x, torch.ones(3))


def test_a_wrong_pass() -> None:
    """No line diverges, so that the call as a whole is compared."""

    def break_exp(trace: Trace, executors: Any) -> Trace:
        import thunder.torch as ltorch

        out = trace.derive("Breaking")
        out.bound_symbols[:] = [
            op.replace(sym=ltorch.sin) if op.sym is ltorch.exp else op for op in trace.bound_symbols
        ]
        return out

    found = thunder.examine.compare(thunder.jit(lambda x: x.exp() + 1, transforms=[break_exp]), torch.ones(3))
    assert found.first is None and "a pass or tracing is wrong. thunder.bisect finds it" in str(found)


def test_changes_of_other_objects() -> None:
    """A training step does not run as a whole, so that the model and its gradients stay as they are."""
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    before = [p.detach().clone() for p in net.parameters()]
    found = thunder.examine.compare(step, torch.randn(3, 4))
    assert found.first is None
    assert found.notes == ["the function changes objects that are not its arguments, so that only lines are compared"]
    assert all(torch.equal(a, b) and b.grad is None for a, b in zip(before, net.parameters()))
    assert "the runs of this search change them again" in str(thunder.bisect(step, torch.randn(3, 4)))


def test_symbolic_sizes_and_several_results() -> None:
    """Symbolic numbers are inputs of the program."""
    jitted = thunder.jit(lambda x, n: {"a": x * n, "b": [x.sin(), 3]}, cache="symbolic values")
    found = thunder.examine.compare(jitted, torch.randn(3, requires_grad=True), 2.5)
    assert found.first is None and [r.name for r in found.results] == ["result 0", "result 1", "gradient of x"]


def test_calls_that_run_eagerly() -> None:
    """There is no program."""

    @thunder.disable
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    with pytest.raises(ThunderError, match="runs this call eagerly, so that there is no program to examine"):
        thunder.examine.compare(lambda x: inner(x), torch.ones(2))


def test_distance() -> None:
    """Relative to the largest value; infinity for other infinite elements; the share of other integers."""
    a = torch.tensor([1.0, 100.0])
    assert distance(a + 1, a) == pytest.approx(0.01)
    inf = torch.tensor([1.0, torch.inf])
    assert distance(inf, inf) == 0 and distance(a, inf) == distance(inf, a) == float("inf")
    nan = torch.tensor([torch.nan])
    assert distance(nan, nan) == 0 and distance(nan, torch.ones(1)) == float("inf")
    assert distance(torch.tensor([1, 2]), torch.tensor([1, 3])) == 0.5
    assert distance(torch.ones(2), torch.ones(3)) == float("inf") and distance(torch.ones(0), torch.ones(0)) == 0
    assert distance(2, 2) == 0 and distance(2, 3) == float("inf") and distance(float("nan"), float("nan")) == 0
