# SPDX-License-Identifier: Apache-2.0
"""The timeline of a call: what the host and the GPU do when, as torch's profiler records it."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

__all__ = ["Lane", "Span", "Timeline", "timeline_of"]

CALLS = 3  # of which the last is shown
_MAX_SPANS = 4000


class Span(NamedTuple):
    """An event: its name, start and end in microseconds, and its depth in events that contain it."""

    name: str
    start: float
    end: float
    depth: int


class Lane(NamedTuple):
    """The events of a thread of the host, or of a stream of the GPU."""

    name: str
    spans: list[Span]

    @property
    def depth(self) -> int:
        """The number of levels of events."""
        return 1 + max((span.depth for span in self.spans), default=0)


class Timeline:
    """The lanes of one call, and the recorded events of all calls as the JSON that Perfetto reads."""

    def __init__(self, lanes: list[Lane], microseconds: float, seconds: float, events: dict[str, Any]):
        self.lanes = lanes
        self.microseconds = microseconds  # of the recorded call
        self.seconds = seconds  # of a call that is not recorded
        self._events = events

    def to_json(self) -> str:
        """Return the recorded calls in Chrome's trace format."""
        return json.dumps(self._events)


def timeline_of(step: Callable[[], Any], device: torch.device) -> Timeline:
    """Record calls of a function. The first calls compile and warm up, and are not recorded."""
    for _ in range(CALLS):
        step()
    seconds = min(seconds_of(step, device) for _ in range(CALLS))
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as recorded:
        for number in range(CALLS):
            with record_function(f"call {number + 1}"):
                step()
                if on_gpu:
                    torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))
    return from_events(events, seconds)


def seconds_of(step: Callable[[], Any], device: torch.device) -> float:
    """Return the duration of a call, including the work that it leaves to the GPU."""
    start = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def from_events(events: dict[str, Any], seconds: float) -> Timeline:
    """Return the lanes of the last call among events in Chrome's trace format."""
    spans = [e for e in events["traceEvents"] if e.get("ph") == "X" and "dur" in e]
    last = next(e for e in reversed(spans) if e["name"] == f"call {CALLS}" and e.get("cat") != "gpu_user_annotation")
    begin, end = float(last["ts"]), float(last["ts"]) + float(last["dur"])
    inside = [e for e in spans if begin <= float(e["ts"]) < end and e is not last]
    lanes: dict[tuple[bool, Any], list[Any]] = {}
    for event in inside:
        on_gpu = event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
        if on_gpu or event.get("cat") in ("cpu_op", "user_annotation", "cuda_runtime"):
            lanes.setdefault((on_gpu, event["tid"]), []).append(event)
    ordered = sorted(lanes.items(), key=lambda item: (item[0][0], -len(item[1])))
    found = [
        Lane(_lane_name(on_gpu, number), _nested(lane[:_MAX_SPANS], begin))
        for number, ((on_gpu, _), lane) in enumerate(ordered)
    ]
    return Timeline(found, end - begin, seconds, events)


def _lane_name(on_gpu: bool, number: int) -> str:
    return f"GPU, stream {number}" if on_gpu else f"host, thread {number}"


def _nested(events: Sequence[dict[str, Any]], begin: float) -> list[Span]:
    """Return events with their depths: an event is one level below the innermost event that contains it."""
    found: list[Span] = []
    open_until: list[float] = []
    for event in sorted(events, key=lambda e: (float(e["ts"]), -float(e["dur"]))):
        start = float(event["ts"])
        end = start + float(event["dur"])
        while open_until and open_until[-1] <= start:
            open_until.pop()
        found.append(Span(event["name"], start - begin, end - begin, len(open_until)))
        open_until.append(end)
    return found
