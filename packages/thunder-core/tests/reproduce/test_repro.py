# SPDX-License-Identifier: Apache-2.0
"""`thunder.repro`: the cause of a difference from eager mode, and a script that shows it."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import thunder
import thunder.torch as ltorch
from thunder.extend import OperatorExecutor, deregister_executor, register_executor


@pytest.fixture
def wrong() -> Iterator[OperatorExecutor]:
    """An executor whose `tanh` is slightly wrong, and whose `exp` is right."""
    executor = OperatorExecutor("wrong")
    register_executor(executor)
    tanh = executor.register_operator("wrong_tanh", like=ltorch.tanh, fn=lambda a: torch.tanh(a) * 1.01)
    exp = executor.register_operator("right_exp", like=ltorch.exp, fn=torch.exp)
    executor.register_implementation(ltorch.tanh, tanh)
    executor.register_implementation(ltorch.exp, exp)
    yield executor
    deregister_executor(executor)


class Net(nn.Module):
    """A module with an operation that the executor `wrong` claims."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Any, scale: float = 2.0) -> Any:
        return self.layer(x).exp().tanh().sum(-1) * scale


def test_the_executor_and_the_operation_are_found(wrong: OperatorExecutor, tmp_path: Path) -> None:
    """The script contains this operation only, and fails."""
    torch.manual_seed(0)
    found = thunder.repro(thunder.jit(Net(), executors=[wrong]), torch.randn(3, 4), file=tmp_path / "r.py")
    assert found.failure is not None and "result 0 differs from eager mode" in found.failure
    assert found.executors == ["wrong"]
    assert (
        found.operation is not None and found.operation.startswith("tanh, at ") and "test_repro.py" in found.operation
    )
    assert found.pass_name == "Transform for execution"
    assert found.script_fails
    script = (tmp_path / "r.py").read_text()
    assert script == found.script
    assert "ltorch.tanh(" in script and "linear" not in script and "executors=['wrong']" in script
    assert "# operation: tanh, at" in script
    assert str(found).splitlines()[-1] == f"script: {tmp_path / 'r.py'} (fails)"


def test_a_program_that_agrees(tmp_path: Path) -> None:
    """No script is written, and neither the module nor the arguments are changed."""
    net, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.randn(3, 4)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    found = thunder.repro(net, x, file=tmp_path / "r.py")
    assert found.failure is None and found.script is None and not (tmp_path / "r.py").exists()
    assert str(found) == "the compiled program and eager mode agree"
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())


def test_errors_of_eager_mode_are_no_failures() -> None:
    """A call that fails in eager mode fails in the same way."""
    found = thunder.repro(Net(), torch.randn(3, 5), file=None)
    assert found.failure is None
    assert "eager mode raises RuntimeError" in str(found)


def test_random_numbers_are_the_same_in_all_runs() -> None:
    """Those of Python and of NumPy, too. The caller's random states do not change."""
    random.seed(5)
    numpy.random.seed(5)
    before = random.getstate(), numpy.random.get_state()[1].tolist()
    jitted = thunder.jit(lambda x: x * random.random() + float(numpy.random.rand()), sharp_edges="allow")
    assert thunder.repro(jitted, torch.randn(3), file=None).failure is None
    assert before == (random.getstate(), numpy.random.get_state()[1].tolist())


def test_wrong_gradients(tmp_path: Path) -> None:
    """A rule of an executor whose forward is right."""
    executor = OperatorExecutor("wrong_gradient")
    register_executor(executor)
    try:
        sin = executor.register_operator("sin_", like=ltorch.sin, fn=torch.sin)

        def rule(a: Any) -> Any:
            from thunder.extend import get_grad, put_grad

            out = sin(a)
            put_grad(a, get_grad(out) * ltorch.cos(a) * 2)
            return out

        executor.register_implementation(ltorch.sin, sin, grad_transform=rule)
        x = torch.randn(3, 4, requires_grad=True)
        found = thunder.repro(lambda x: (x * 2).sin().exp(), x, file=None)
        assert found.failure is None  # the executor is not used
        jitted = thunder.jit(lambda x: (x * 2).sin().exp(), executors=[executor])
        found = thunder.repro(jitted, x, file=tmp_path / "r.py")
        assert found.failure is not None and "the gradient of input 0 differs" in found.failure
        assert found.executors == ["wrong_gradient"] and str(found.operation).startswith("sin")
        assert (found.pass_program, found.pass_name) == ("backward", "Backward") and found.script_fails
    finally:
        deregister_executor(executor)


def test_inputs_have_the_metadata_and_no_data(wrong: OperatorExecutor) -> None:
    """Shapes, strides, dtypes and the bounds of integers are kept."""
    table, index = torch.randn(5, 6).t(), torch.tensor([3, 1, 4])
    jitted = thunder.jit(lambda t, i: t[i].tanh().cumsum(0), executors=[wrong])
    found = thunder.repro(jitted, table, index, file=None)
    assert found.script is not None and "tensor((3, 5), (" in found.script
    whole = thunder.repro(thunder.jit(lambda t, i: t.tanh()[i], executors=[wrong]), table, index, file=None)
    assert whole.script is not None and "tensor((6, 5), (1, 6), torch.float32)" in whole.script


def test_a_failing_pass(tmp_path: Path) -> None:
    """A transform of the user that makes results wrong."""

    def break_exp(trace: Any, executors: Any) -> Any:
        out = trace.derive("Breaking")
        out.bound_symbols[:] = [
            op.replace(sym=ltorch.sin) if op.sym is ltorch.exp else op for op in trace.bound_symbols
        ]
        return out

    jitted = thunder.jit(lambda x: x.exp() + 1, transforms=[break_exp])
    found = thunder.repro(jitted, torch.ones(3), file=tmp_path / "r.py")
    assert found.failure is not None
    assert "transforms: it agrees without" in str(found)
    assert found.script is not None and "# " in found.script and "x.exp() + 1" in found.script
    assert found.script_fails is None and "replace each" in str(found)


def test_a_kernel_that_raises(tmp_path: Path) -> None:
    """The error and the operation are named."""
    executor = OperatorExecutor("raising")
    register_executor(executor)

    def fails(a: Any) -> Any:
        raise RuntimeError("no kernel image")

    try:
        executor.register_implementation(ltorch.cos, executor.register_operator("fails", like=ltorch.cos, fn=fails))
        found = thunder.repro(thunder.jit(lambda x: x.sin().cos(), executors=[executor]), torch.ones(3), file=None)
        assert found.failure is not None and "it raises RuntimeError: no kernel image" in found.failure
        assert found.executors == ["raising"] and str(found.operation).startswith("cos") and found.script_fails
        assert "test_repro.py" in str(found)
    finally:
        deregister_executor(executor)


def test_the_script_stands_alone(wrong: OperatorExecutor, tmp_path: Path) -> None:
    """Another process runs it; with an executor that the process has, nothing is missing."""
    found = thunder.repro(thunder.jit(Net(), executors=[wrong]), torch.randn(3, 4), file=tmp_path / "r.py")
    assert found.path is not None
    script = found.path.read_text().replace("executors=['wrong']", "executors=['torch']")
    found.path.write_text(script)
    ran = subprocess.run([sys.executable, str(found.path)], capture_output=True, text=True, check=False)
    assert ran.stdout == "no difference\n", ran.stderr


def shifted(x: Any, by: Any = None) -> Any:
    """A function whose source is known."""
    return torch.cos(x) + 1


def test_the_source_of_the_program(tmp_path: Path) -> None:
    """Where no trace contains the difference, the script contains the user's function with its imports."""

    def wrong(trace: Any, executors: Any) -> Any:
        out = trace.derive("Breaking")
        out.bound_symbols[:] = [
            op.replace(sym=ltorch.sin) if op.sym is ltorch.cos else op for op in trace.bound_symbols
        ]
        return out

    found = thunder.repro(thunder.jit(shifted, transforms=[wrong]), torch.ones(3), file=None)
    assert found.script is not None and "def shifted(x: Any" in found.script
    assert "computation = shifted" in found.script and "import torch as torch" in found.script
    given = thunder.repro(thunder.jit(shifted, transforms=[wrong]), torch.ones(3), by=object(), file=None)
    assert given.script_fails is None and "{'by': ...}" in str(given.script)
