# SPDX-License-Identifier: Apache-2.0
"""What `thunder.jit` makes of the options and passes that a plugin brings. (Executors: test_wheels.py.)"""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

import thunder
from thunder import plugins
from thunder.core.errors import ThunderError

SOURCE = """
    from thunder.plugins import PHASES

    calls = []

    def note(trace, context):
        calls.append((context.phase, dict(context.options), [ex.name for ex in context.executors], str(trace)))
        if context.options.get("acme_level") == 13:
            raise ValueError("no thirteenth level")
        return trace

    @hookimpl
    def thunder_register_options(registry):
        registry.register_option("acme_level", type=int, default=1)

    @hookimpl
    def thunder_register_transforms(registry):
        for phase in PHASES:
            registry.register_transform(f"acme_{phase}", note, phase=phase)
    """


@pytest.fixture
def calls(plugin, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The calls of the passes of a plugin that is installed for this test alone."""
    record = plugin("acme", SOURCE)
    manager = plugins.PluginManager(scan=lambda: [record])
    monkeypatch.setattr(plugins, "_manager", manager)
    manager.load_all()
    assert record.ready, record.reason
    yield sys.modules[record.entry_point.value].calls
    manager.reset()


def test_a_pass_of_an_executor(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass runs only in programs that use the executor."""
    source = """
    from thunder.extend import OperatorExecutor

    ran = []

    @hookimpl
    def thunder_register_executors(registry):
        registry.register_executor(OperatorExecutor("acme", version="1"))

    @hookimpl
    def thunder_register_transforms(registry):
        registry.register_transform("acme_fold", note, phase="before_grad", executor="acme")

    def note(trace, context):
        ran.append([ex.name for ex in context.executors])
        return trace
    """
    record = plugin("acme", source)
    manager = plugins.PluginManager(scan=lambda: [record])
    monkeypatch.setattr(plugins, "_manager", manager)
    manager.load_all()
    assert record.ready, record.reason
    ran = sys.modules[record.entry_point.value].ran
    try:
        thunder.jit(torch.sin)(torch.ones(3))
        assert ran == []
        thunder.jit(torch.sin, executors=["acme"])(torch.ones(3))
        assert ran == [["acme", "torch", "python"]]
    finally:
        manager.reset()


def test_phases(calls: list[Any]) -> None:
    """Each phase sees the program at its stage, with the user's options and the executors in order."""
    f = thunder.jit(lambda a: torch.sin(a) * a, acme_level=2)
    a = torch.randn(3, dtype=torch.float64)
    assert torch.equal(f(a), torch.sin(a) * a)
    assert [phase for phase, *_ in calls] == [
        "before_grad", "before_execution", "after_execution", "final", "prologue",
    ]  # fmt: skip
    for _, options, executors, _ in calls:
        assert options == {"acme_level": 2}
        assert executors[-2:] == ["torch", "python"]
    before, _, after, _, prologue = (trace for *_, trace in calls)
    assert "ltorch.sin" in before and "= torch.sin(" not in before
    assert "= torch.sin(" in after and "del " not in after
    assert "def prologue(" in prologue
    f(a)
    assert len(calls) == 5, "passes run when a program is compiled, not when it is called"


def test_both_directions(calls: list[Any]) -> None:
    """With gradients, the phases of execution see the forward and the backward program."""
    f = thunder.jit(lambda a: torch.sin(a) * a)
    a = torch.randn(3, dtype=torch.float64, requires_grad=True)
    f(a).sum().backward()
    assert sorted(phase for phase, *_ in calls) == [
        "after_execution",
        "after_execution",
        "before_execution",
        "before_execution",
        "before_grad",
        "final",
        "final",
        "prologue",
    ]
    assert all(options == {} for _, options, *_ in calls)


def test_a_pass_that_fails(calls: list[Any]) -> None:
    """The plugin is named, and nothing of the failed compilation stays."""
    f = thunder.jit(lambda a: a + 1, acme_level=13)
    with pytest.raises(ThunderError, match="the pass 'acme_before_grad' of plugin 'acme' failed: ValueError: no thirt"):
        f(torch.ones(2))
    assert torch.equal(thunder.jit(lambda a: a + 1)(torch.ones(2)), torch.full((2,), 2.0))


def test_options_are_checked(calls: list[Any]) -> None:
    """When they are given: a wrong value, an option that nobody has."""
    with pytest.raises(TypeError, match="option 'acme_level' of plugin 'acme' must be int, but it is 'high'"):
        thunder.jit(lambda a: a, acme_level="high")
    with pytest.raises(TypeError, match="unknown compile option 'acme_lvl', did you mean 'acme_level'"):
        thunder.jit(lambda a: a, acme_lvl=3)
    assert calls == []


def test_gradients_inside_a_program(calls: list[Any]) -> None:
    """The passes before differentiation see what `backward()` differentiates, too."""

    def step(a: torch.Tensor) -> torch.Tensor:
        loss = torch.sin(w * a).sum()
        loss.backward()
        return loss.detach()

    w = torch.randn(3, requires_grad=True)
    thunder.jit(step)(torch.ones(3))
    first, second = (trace for phase, *_, trace in calls if phase == "before_grad")
    assert "ltorch.sin" in first and "cos" not in first
    assert "cos" in second
