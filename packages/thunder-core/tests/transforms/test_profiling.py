# SPDX-License-Identifier: Apache-2.0
"""Each line is a range of the profiler."""

from __future__ import annotations

import pytest
import torch

import thunder
from thunder.transforms import ProfileTransform


def test_ranges() -> None:
    """With the operation, what it makes and the user's line; forward and backward."""
    f = thunder.jit(lambda a: torch.exp(torch.sin(a)) * 2, transforms=[ProfileTransform()])
    a = torch.randn(3, requires_grad=True)
    expected = (a.sin().exp() * 2).detach()
    f(a)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        found = f(a)
        found.sum().backward()
    torch.testing.assert_close(found.detach(), expected)
    torch.testing.assert_close(a.grad, expected * a.cos().detach())
    names = [event.name for event in profile.events()]
    ranges = [name for name in names if " -> " in name]
    assert [name.partition(" at ")[0] for name in ranges[:3]] == ["sin -> t0", "exp -> t1", "mul -> t2"]
    assert " at test_profiling.py:" in ranges[0]
    assert len(ranges) > 3, "backward too"


def test_the_trace_shows_what_runs() -> None:
    """The operation itself stands below its range, and the text runs."""
    f, a = thunder.jit(lambda a: a.sin(), transforms=[ProfileTransform(nvtx=False)]), torch.randn(3)
    expected, trace = f(a), thunder.last_traces(f)[-1]
    assert 't0 = profiled_sin(a)  # t0: "cpu f32[3]"\n    # t0 = torch.sin(a)' in str(trace)
    namespace = trace.python_ctx()
    exec(str(trace), namespace)
    assert torch.equal(namespace["computation"](a), expected)


def test_nvtx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of NVIDIA's tools besides, closed also by an operation that raises."""
    pushed: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", pushed.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: pushed.append("pop"))
    f = thunder.jit(lambda a, i: a.sin()[i], transforms=[ProfileTransform(nvtx=True)])
    a = torch.randn(3)
    f(a, torch.tensor([1]))
    assert pushed[1::2] == ["pop", "pop"]
    assert pushed[0].startswith("sin -> t")
    pushed.clear()
    with pytest.raises(IndexError):
        f(a, torch.tensor([7]))
    assert len(pushed) == 4 and pushed[-1] == "pop"
