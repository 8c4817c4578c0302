# SPDX-License-Identifier: Apache-2.0
"""Processes that compile at the same time and are measured in turns, each with empty caches of kernels.

A benchmark starts a `Child` for each candidate. The child's process calls `serve`, which builds a `Measured` function,
says that it is ready, and then measures what the parent asks for, while no other child runs.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

__all__ = ["Child", "Measured", "serve"]


class Measured:
    """A function whose first calls were made, and which is measured when somebody asks."""

    RECORDED = 3  # calls whose kernels are recorded
    WARMING = 0.5  # seconds of calls, after which the GPU runs at its full clock rate

    def __init__(self, function: Callable[[], Any], cuda: bool) -> None:
        self.function, self.cuda, self.warm = function, cuda, False
        self.profile: Any = None
        self.report: Callable[[], Any] = lambda: None  # what else to say about the function at the end
        start = time.perf_counter()
        function()
        self.wait()
        self.first = time.perf_counter() - start
        for _ in range(2):
            function()
        self.wait()

    def wait(self) -> None:
        """Wait for the GPU."""
        if self.cuda:
            torch.cuda.synchronize()

    def round(self, calls: int) -> dict[str, float]:
        """Return the time of a call and the host's part of it, in milliseconds."""
        if not self.warm:  # now, because no other candidate runs
            start = time.perf_counter()
            while time.perf_counter() - start < self.WARMING:
                for _ in range(12):
                    self.function()
                self.wait()
            self.warm = True
        self.wait()
        start = time.perf_counter()
        for _ in range(calls):
            self.function()
        self.wait()
        whole = (time.perf_counter() - start) / calls
        host = []
        for _ in range(3):
            start = time.perf_counter()
            self.function()
            host.append(time.perf_counter() - start)
            self.wait()
        return {"time": whole * 1e3, "host": min(host) * 1e3}

    def record(self) -> dict[str, float]:
        """Record the kernels of some calls, and return what else is measured once."""
        found = {"first": self.first}
        if self.cuda:
            from torch.profiler import ProfilerActivity, profile

            found["memory"] = torch.cuda.max_memory_reserved() / 2**30
            with profile(activities=[ProfilerActivity.CUDA]) as self.profile:
                for _ in range(self.RECORDED):
                    self.function()
                self.wait()
        return found

    def kernels(self) -> dict[str, Any]:
        """Return the time of the recorded kernels and copies, their number, and the longest of them by name.

        This takes the host seconds, so that all children do it at the same time.
        """
        if self.profile is None:
            return {}
        events = [e for e in self.profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
        times: dict[str, list[float]] = {}
        for event in events:
            times.setdefault(event.name[:120], []).append(event.device_time_total / self.RECORDED / 1e3)
        longest = sorted(times.items(), key=lambda item: -sum(item[1]))[:40]
        return {
            "report": self.report(),
            "GPU": sum(e.device_time_total for e in events) / self.RECORDED / 1e3,
            "kernels": round(len(events) / self.RECORDED),
            "longest": [[name, round(sum(found), 4), round(len(found) / self.RECORDED)] for name, found in longest],
        }


def serve(build: Callable[[], Measured], calls: int) -> None:
    """Measure what the parent process asks for, line by line."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what models print does not mix with the answers
    measured = build()
    print("ready", file=answer, flush=True)
    for line in sys.stdin:
        what = line.strip()
        found = measured.round(calls) if what == "round" else getattr(measured, what)()
        print(json.dumps(found), file=answer, flush=True)


class Child:
    """A process that builds a candidate."""

    def __init__(self, options: Sequence[str], log: Path) -> None:
        self.log, self.start, self.caches = log, time.monotonic(), tempfile.mkdtemp(prefix="caches-")
        names = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME")
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **{name: f"{self.caches}/{name}" for name in names}},
            )

    def ready(self, seconds: float) -> bool:
        """Wait until the candidate was called, `seconds` after its start at most, and return whether it ran."""
        assert self.process.stdout is not None
        left = self.start + seconds - time.monotonic()
        if not select.select([self.process.stdout], [], [], max(left, 0))[0]:
            self.process.kill()  # before the next candidates are measured
        return self.process.stdout.readline() == "ready\n"

    def ask(self, what: str) -> None:
        """Ask for a method of `Measured`."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # a process that has failed: there will be no answer
            self.process.stdin.write(what + "\n")
            self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return the answer to the last question, or nothing if the process has failed."""
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline() or "{}")
        return found

    def end(self) -> None:
        """End the process, and remove its caches."""
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.caches, ignore_errors=True)
