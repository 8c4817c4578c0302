# SPDX-License-Identifier: Apache-2.0
"""Ranges of compiled programs in profiles: program, module and line, and no other code while no profiler runs."""

from __future__ import annotations

import torch
from torch.profiler import profile

import thunder
from thunder.core import profiling


class Net(torch.nn.Module):
    """Two layers and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())

    def forward(self, x):
        """Apply the layers."""
        return self.layers(x).sum()


def ranges(run) -> list[str]:
    """Return the labels of thunder's ranges in a profile of `run()`."""
    with profile() as found:
        run()
    return [event.key for event in found.key_averages() if event.key.startswith("thunder.jit(")]


def codes() -> list[object]:
    return [p.function().__code__ for p in profiling._programs.values() if p.function() is not None]  # type: ignore[union-attr]


def test_ranges_name_program_module_and_line() -> None:
    """Of the forward and of the backward program; results and gradients are the same."""
    net, x = Net(), torch.randn(2, 4, requires_grad=True)
    jitted = thunder.jit(net)
    jitted(x).backward()
    expected, x.grad = x.grad, None
    found = ranges(lambda: jitted(x).backward())
    assert all(code is not profiling._run_ranged.__code__ for code in codes())
    torch.testing.assert_close(x.grad, expected)
    assert thunder.cache_misses(jitted) == 1
    title, module, line = next(r for r in found if "Linear" in r and "backward" not in r).split(" | ")
    assert (title, module) == ("thunder.jit(Net)", "layers.0 (Linear)")
    assert line.startswith("test_profiling.py:")
    assert any(r.startswith("thunder.jit(Net) backward | layers.0 (Linear)") for r in found)
    assert any("layers.1 (GELU)" in r for r in found)
    x.grad = None
    jitted(x).backward()
    torch.testing.assert_close(x.grad, expected)


def test_programs_that_are_compiled_under_a_profiler() -> None:
    """They have ranges at once, and none afterwards."""
    jitted = thunder.jit(lambda x: x.sin())
    assert any("test_profiling.py" in r for r in ranges(lambda: jitted(torch.ones(3))))
    assert all(code is not profiling._run_ranged.__code__ for code in codes())


def test_an_error_under_a_profiler_names_the_line() -> None:
    """The program with ranges has the same lines."""

    def f(table, i):
        return torch.nn.functional.embedding(i, table)

    jitted = thunder.jit(f)
    jitted(torch.ones(2, 2), torch.tensor([0]))
    notes: list[str] = []

    def fails() -> None:
        try:
            jitted(torch.ones(2, 2), torch.tensor([5]))
        except IndexError as error:
            notes.extend(error.__notes__)  # type: ignore[attr-defined]

    ranges(fails)
    assert "torch.nn.functional.embedding(i, table)" in notes[0]


def test_a_staged_backward_under_a_profiler() -> None:
    """A generator: ranges do not span a `yield`."""
    net = torch.nn.Sequential(*[torch.nn.Linear(600, 600) for _ in range(3)])
    jitted = thunder.jit(net)
    x = torch.ones(2, 600)
    jitted(x).sum().backward()
    expected = [p.grad for p in net.parameters()]
    net.zero_grad()
    assert ranges(lambda: jitted(x).sum().backward())
    for p, grad in zip(net.parameters(), expected):
        torch.testing.assert_close(p.grad, grad)
