# SPDX-License-Identifier: Apache-2.0
"""`thunder.examine.profile`: lines, limits and the timeline. Nothing depends on how fast the machine is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import thunder
from thunder.examine.lines import lines_of
from thunder.examine.profiles import Machine, TimedLine
from thunder.examine.program import compile_call
from thunder.examine.timeline import CALLS, from_events
from thunder.execution.flops import bytes_moved, flops_of


def test_a_profile(tmp_path: Path) -> None:
    """A time for each line of both programs, the page and the JSON for Perfetto."""
    net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.BatchNorm1d(16))
    found = thunder.examine.profile(net, torch.randn(4, 8), rounds=2)
    assert {line.program for line in found.lines} == {"forward", "backward"}
    assert all(line.seconds > 0 for line in found.lines) and found.timeline.seconds > 0
    linear = found.lines[0]
    assert (linear.computes, linear.flops, linear.bytes) == (["linear"], 2 * 4 * 8 * 16, 4 * (32 + 128 + 16 + 64))
    assert str(found).splitlines()[0].startswith(f"{len(found.lines)} lines take ")
    page = found.html(tmp_path / "profile.html")
    assert 'id="time"' in page and "Timeline of a call" in page and "slowest" in str(found)
    found.chrome_trace(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert json.loads(json.dumps(found.to_dict()))["lines"][0]["where"]["module"] == "Linear"
    assert int(net[2].num_batches_tracked) == 0 and all(p.grad is None for p in net.parameters())
    assert found._repr_html_().startswith("<iframe")


def test_limits() -> None:
    """The larger of both times is the limit; views have none."""
    ((_, trace),) = compile_call(lambda x: (x @ x).t(), (torch.ones(64, 64),), {}).programs
    product, view = lines_of("forward", trace)
    slow_memory, slow_compute = Machine("m", 1e3, 1e12), Machine("m", 1e12, 1e3)
    assert TimedLine(product, 2.0, slow_memory).limit == "memory"
    by_compute = TimedLine(product, 2.0, slow_compute)
    assert by_compute.limit == "compute" and by_compute.share == pytest.approx(2 * 64**3 / 1e3 / 2.0)
    assert TimedLine(view, 1.0, slow_memory).limit is None


@pytest.mark.parametrize(
    ("f", "flops"),
    [
        (lambda x: x.sin(), 64),
        (lambda x: x.sum(), 64),
        (lambda x: x @ x, 2 * 8 * 64),
        (lambda x: x.t(), 0),
        (lambda x: torch.nn.functional.conv1d(x[None], torch.ones(3, 8, 2)), 2 * 3 * 7 * 8 * 2),
        (lambda x: x.softmax(-1), 64 + 64 + 64 + 64 + 64),
    ],
)
def test_flops(f, flops: int) -> None:
    """Counted from the decomposition."""
    ((_, trace),) = compile_call(f, (torch.ones(8, 8),), {}).programs
    assert sum(flops_of(line.op) for line in lines_of("forward", trace)) == flops


def test_bytes() -> None:
    """Distinct inputs and results count once, and views move nothing."""
    ((_, trace),) = compile_call(lambda x: (x + x).t(), (torch.ones(8, 8),), {}).programs
    assert [bytes_moved(line.op) for line in lines_of("forward", trace)] == [2 * 256, 0]


def test_the_timeline() -> None:
    """The last call, in lanes of threads and streams; events inside others are deeper."""

    def event(name: str, start: float, duration: float, category: str = "cpu_op", tid: int = 1) -> dict:
        return {"ph": "X", "name": name, "ts": start, "dur": duration, "cat": category, "tid": tid, "pid": 0}

    events = [
        event("call 1", 0, 100, "user_annotation"),
        event("warm", 10, 5),
        event(f"call {CALLS}", 200, 100, "user_annotation"),
        event("outer", 210, 50),
        event("inner", 220, 10),
        event("next", 240, 5),
        event("other thread", 215, 5, tid=2),
        event("kernel", 230, 20, "kernel", tid=7),
        {"ph": "i", "name": "instant", "ts": 220},
    ]
    timeline = from_events({"traceEvents": events}, 1e-4)
    assert [lane.name for lane in timeline.lanes] == ["host, thread 0", "host, thread 1", "GPU, stream 2"]
    spans = timeline.lanes[0].spans
    assert [(s.name, s.start, s.end, s.depth) for s in spans] == [
        ("outer", 10, 60, 0),
        ("inner", 20, 30, 1),
        ("next", 40, 45, 1),
    ]
    assert timeline.lanes[0].depth == 2 and timeline.microseconds == 100
    assert json.loads(timeline.to_json()) == {"traceEvents": events}
