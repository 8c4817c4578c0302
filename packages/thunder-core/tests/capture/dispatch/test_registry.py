# SPDX-License-Identifier: Apache-2.0
"""The registry of handlers: what it takes, and that nothing that registers is left unimported."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
import torch

import thunder
from thunder.capture import handlers
from thunder.capture.dispatch import registry
from thunder.capture.dispatch.registry import (
    gives,
    handler_of,
    handles,
    handles_property,
    methods,
    property_handler,
    result_of,
)

CAPTURE = Path(handlers.__file__).parent


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    """What a test registers is gone afterwards."""
    for table in ("_HANDLERS", "_PROPERTIES", "_RESULTS"):
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))


def test_a_handler_takes_the_place_of_a_function():
    @handles(torch.sinc)
    def _sinc(tracer, x):
        return x + 1

    assert handler_of(torch.sinc) is _sinc
    x = torch.randn(3)
    assert torch.equal(thunder.jit(lambda x: torch.sinc(x))(x), x + 1)


def test_a_handler_may_leave_a_call_to_others():
    @handles(torch.sinc)
    def _sinc(tracer, x):
        return NotImplemented

    x = torch.randn(3)
    assert torch.equal(thunder.jit(lambda x: torch.sinc(x))(x), torch.sinc(x))


def test_what_a_traced_handler_calls_is_part_of_the_program():
    parameter = torch.randn(3)

    @handles(torch.sinc, traced=True)
    def _sinc(tracer, x):
        return x + torch.exp(parameter) + torch.zeros(3)

    x = torch.randn(3)
    jitted = thunder.jit(lambda x: torch.sinc(x))
    assert torch.equal(jitted(x), x + torch.exp(parameter))
    names = {op.sym.name for op in thunder.last_traces(jitted)[0].bound_symbols}
    assert {"exp", "zeros"} <= names


def test_properties_are_read_and_assigned_by_their_handlers():
    assert property_handler("grad") is not property_handler("grad", assigned=True)
    assert property_handler("nothing") is None

    @handles_property("nothing")
    def _nothing(tracer, x):
        return None

    assert property_handler("nothing") is _nothing
    assert property_handler("nothing", assigned=True) is None


def test_a_rule_says_what_an_opaque_operation_gives():
    def function(x):
        return x

    @gives(function, draws=lambda x: x > 1)
    def _rule(x):
        return 2 * x

    rule = result_of(function)
    assert rule.result(3) == 6 and rule.draws(3) and not rule.draws(1)
    assert not result_of(torch.ctc_loss).draws()
    assert result_of(torch.add) is None


def test_methods_are_those_that_there_are():
    assert methods("add", "no_such_method") == [torch.Tensor.add]


def _registers(path: Path) -> bool:
    names = {"handles", "handles_property", "gives"}
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    return any(isinstance(call.func, ast.Name) and call.func.id in names for call in calls)


def test_every_module_that_registers_is_imported():
    found = [path for path in sorted(CAPTURE.rglob("*.py")) if path.name != "registry.py" and _registers(path)]
    assert len(found) > 12
    listed = ast.parse(Path(handlers.__file__).read_text(encoding="utf-8"))
    imported = {alias.name for node in listed.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    missing = [path.name for path in found if path.stem not in imported]
    assert not missing, f"capture/handlers.py does not import {missing}"
    for path in found:
        assert f"thunder.capture.{path.parent.name}.{path.stem}" in sys.modules
