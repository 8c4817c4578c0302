# SPDX-License-Identifier: Apache-2.0
"""`python -m thunder ops`: what an executor says it can run."""

from __future__ import annotations

import json

import pytest

import thunder.plugins
from thunder.cli import main, ops
from thunder.extend import FusionExecutor, OperatorExecutor, deregister_executor, register_executor


@pytest.fixture
def acme():
    """An executor with one of each."""
    executor = FusionExecutor("acme_of_test_ops", version="3")
    mul = executor.register_operator("acme_mul", like=lambda a, b: a * b, fn=lambda a, b: a * b)

    executor.register_operator("acme_two", like=lambda a: a * 2, fn=lambda a: a * 2)

    def to_acme(a, b):
        return mul(a, b)

    def rule(a):
        return a

    executor.register_implementation("torch.mul", mul, checker=lambda a, b: True)
    executor.register_implementation("torch.add", execution_transform=to_acme, grad_transform=rule, priority=7)
    executor.register_implementation("torch.sin", grad_transform=rule)
    executor.register_supported("torch.exp", lambda a: True)
    register_executor(executor)
    yield executor
    deregister_executor(executor)


def test_claims(acme) -> None:
    """Operators, implementations, gradients and fusions, each with how."""
    assert sorted(ops.claims_of(acme)) == [
        ops.Claim("acme_of_test_ops.acme_two", "operator", "acme_two", False, False, None),
        ops.Claim("torch.add", "implementation", "to_acme", False, True, 7),
        ops.Claim("torch.exp", "fusion", "", True, False, None),
        ops.Claim("torch.mul", "implementation", "acme_mul", True, False, None),
        ops.Claim("torch.sin", "gradient", "", False, True, None),
    ]


def test_ids_that_hold_functions(acme) -> None:
    """What thunder does not look into is called by the function's name, the same in every process."""
    acme.register_implementation(("opaque", len), execution_transform=len)
    assert "opaque.len" in {each.id for each in ops.claims_of(acme)}


def test_a_table(acme, capsys) -> None:
    """A line an operation, and the sum."""
    assert main(["ops", "--executor", "acme_of_test_ops"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["operation", "kind", "runs", "checks", "gradient", "priority"]
    assert ["torch.add", "implementation", "to_acme", "yes", "7"] in [line.split() for line in lines]
    assert lines[-1] == "acme_of_test_ops 3 claims 5 operations"


def test_json(acme, capsys) -> None:
    """The same for programs."""
    assert main(["ops", "--executor", "acme_of_test_ops", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["executor"], told["version"], len(told["operations"])) == ("acme_of_test_ops", "3", 5)
    assert told["operations"][1]["priority"] == 7


def test_cores_own(capsys) -> None:
    """The torch executor derives what it runs from each operation; ids that are no strings are told as text."""
    assert main(["ops", "--executor", "torch", "--json"]) == 0
    operations = json.loads(capsys.readouterr().out)["operations"]
    assert all(isinstance(each["id"], str) for each in operations)
    assert "PrimIDs.ADD" in {each["id"] for each in operations}


def test_an_unknown_executor(capsys) -> None:
    """The known ones are listed."""
    assert main(["ops", "--executor", "no_such_executor"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("thunder ops: there is no executor 'no_such_executor'")
    assert "torch" in told


def test_broken_torch(monkeypatch, capsys) -> None:
    """Executors need torch; why there is none is said."""
    env = thunder.plugins.Env()
    env.__dict__["_torch"] = (None, "ImportError: libtorch.so")
    monkeypatch.setattr(thunder.plugins, "_manager", thunder.plugins.PluginManager(env=env))
    assert main(["ops", "--executor", "torch"]) == 1
    assert "cannot be imported: ImportError: libtorch.so" in capsys.readouterr().err


def test_operators_only() -> None:
    """An operator executor has no fusions to list."""
    executor = OperatorExecutor("plain_of_test_ops")
    assert list(ops.claims_of(executor)) == []
