# SPDX-License-Identifier: Apache-2.0
"""Training steps with AdamW of sixteen models: time, time of the kernels, of the host, memory, and first calls.

    python packages/thunder-core/benchmarks/train_step.py [--models GPT-2,ViT] [--markdown FILE] [--json FILE]
    python packages/thunder-core/benchmarks/train_step.py --device cpu --tiny      # to try it

The candidates are eager mode, `torch.compile` in its default mode and with `reduce-overhead` (the model is compiled,
the optimizer is torch's own, with its default of multi-tensor kernels), `thunder.jit(model)`, and `thunder.jit(step)`:
one program of forward, loss, backward and optimizer. `--candidates step:never` runs it without CUDA graphs. Each runs
in a process of its own. The processes of a model start together, and measure in turns, so that nothing else runs
meanwhile.

- step: median time of a step, with the GPU synchronized after ten of them.
- GPU: the sum of the times of its kernels and copies.
- host: the time until a step returns to the caller, when the GPU was idle before it.
- memory: peak of the memory that torch has reserved on the device.
- first: seconds of the first three steps, while the other candidates compile, too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from base_models import MODELS, for_eager
from measuring import machine

CANDIDATES = ["eager", "compile", "reduce-overhead", "module", "step"]
CUDA_GRAPHS: dict[str, Any] = {
    f"{name}{suffix}": graphs
    for name in ("module", "step")
    for suffix, graphs in (("", "auto"), (":always", "always"), (":never", "never"))
}
TITLES = {
    "eager": "eager",
    "compile": "torch.compile",
    "reduce-overhead": "its reduce-overhead",
    "module": "thunder.jit(model)",
    "step": "thunder.jit(step)",
    "module:always": 'its cuda_graphs="always"',
    "module:never": 'its cuda_graphs="never"',
    "step:always": 'its cuda_graphs="always"',
    "step:never": 'its cuda_graphs="never"',
}
MEASURES = ["step", "GPU", "host", "memory", "first"]


def training_step(candidate: str, name: str, given: argparse.Namespace) -> Callable[[], Any]:
    """Return a function that runs one step of a model as a candidate does."""
    torch.manual_seed(0)
    model = MODELS[name].build(given.tiny).to(device=given.device, dtype=getattr(torch, given.dtype)).train()
    batch = {
        key: x.to(device=given.device, dtype=getattr(torch, given.dtype) if x.is_floating_point() else None)
        for key, x in MODELS[name].batch(given.tiny).items()
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    run: Any = model
    if candidate == "eager":
        for_eager(model)
    elif candidate in ("compile", "reduce-overhead"):
        run = torch.compile(model, mode="default" if candidate == "compile" else candidate)
    elif candidate.startswith("module"):
        import thunder

        run = thunder.jit(model, cuda_graphs=CUDA_GRAPHS[candidate])

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        found = run(**batch)
        loss = found if isinstance(found, torch.Tensor) else found.loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    if candidate.startswith("step"):
        import thunder

        return thunder.jit(step, cuda_graphs=CUDA_GRAPHS[candidate])
    return step


class Measured:
    """A candidate's steps of one model, which are timed when the parent process asks for it."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.cuda = given.device == "cuda"
        step = training_step(given.candidate, given.models, given)
        start = time.perf_counter()
        if given.candidate == "reduce-overhead":
            self.step: Callable[[], Any] = lambda: (torch.compiler.cudagraph_mark_step_begin(), step())
        else:
            self.step = step
        for _ in range(3):
            self.step()
        self.wait()
        self.first = time.perf_counter() - start
        self.warm = False

    def wait(self) -> None:
        """Wait for the GPU."""
        if self.cuda:
            torch.cuda.synchronize()

    def round(self, steps: int) -> dict[str, float]:
        """Return a round of times, in milliseconds."""
        if not self.warm:  # now, because no other candidate runs
            for _ in range(12):
                self.step()
            self.warm = True
        self.wait()
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        self.wait()
        whole = (time.perf_counter() - start) / steps
        host = []
        for _ in range(3):
            start = time.perf_counter()
            self.step()
            host.append(time.perf_counter() - start)
            self.wait()
        return {"step": whole * 1e3, "host": min(host) * 1e3}

    def last(self) -> dict[str, float]:
        """Return what is measured once."""
        found = {"first": self.first, "memory": 0.0, "GPU": 0.0}
        if self.cuda:
            from torch.profiler import ProfilerActivity, profile

            found["memory"] = torch.cuda.max_memory_reserved() / 2**30
            with profile(activities=[ProfilerActivity.CUDA]) as profiled:
                for _ in range(3):
                    self.step()
                self.wait()
            events = [e for e in profiled.events() if e.device_type == torch.autograd.DeviceType.CUDA]
            found["GPU"] = sum(e.device_time_total for e in events) / 3e3
            found["kernels"] = len(events) / 3
        if hasattr(self.step, "_stats"):
            import thunder

            print(thunder.explain(self.step), file=sys.stderr)
        return found


def serve(given: argparse.Namespace) -> None:
    """Measure what the parent process asks for, line by line."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what models print does not mix with the answers
    measured = Measured(given)
    print("ready", file=answer, flush=True)
    for line in sys.stdin:
        found = measured.last() if line == "last\n" else measured.round(given.steps)
        print(json.dumps(found), file=answer, flush=True)


class Child:
    """A process that runs a candidate."""

    def __init__(self, name: str, candidate: str, given: argparse.Namespace) -> None:
        options = ["--models", name, "--candidate", candidate, "--device", given.device, "--dtype", given.dtype]
        options += ["--steps", str(given.steps), *(["--tiny"] if given.tiny else [])]
        self.log = Path(given.logs) / f"{name}-{candidate}.log"
        self.process = subprocess.Popen(
            [sys.executable, __file__, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            text=True,
        )

    def ready(self) -> bool:
        """Wait until the candidate has compiled, and return whether it did."""
        assert self.process.stdout is not None
        return self.process.stdout.readline() == "ready\n"

    def ask(self, what: str) -> dict[str, float]:
        """Return what the process measures."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        found: dict[str, float] = json.loads(self.process.stdout.readline() or "{}")
        return found


def measure(name: str, children: dict[str, Child], ready: set[str], rounds: int) -> dict[str, dict[str, float]]:
    """Return the measures of each candidate that is ready, in turns."""
    times: dict[str, list[dict[str, float]]] = {}
    found: dict[str, dict[str, float]] = {}
    alive = {candidate: child for candidate, child in children.items() if candidate in ready}
    for _ in range(rounds):
        for candidate, child in alive.items():
            times.setdefault(candidate, []).append(child.ask("round"))
    for candidate, child in alive.items():
        found[candidate] = {
            key: statistics.median(r[key] for r in times[candidate]) for key in times[candidate][0]
        } | child.ask("last")
    for child in children.values():
        child.process.kill()
        child.process.wait()
    for candidate in children.keys() - alive.keys():
        print(f"{name}, {candidate}: see {children[candidate].log}", flush=True)
    return found


def table(results: dict[str, dict[str, dict[str, float]]], candidates: list[str]) -> str:
    """Return a table with a row for each model."""
    lines = [f"On a {machine()}.", "", "| model | measure | " + " | ".join(TITLES[c] for c in candidates) + " |"]
    lines += ["|" + "---|" * (len(candidates) + 2)]
    units = {"step": "step, ms", "GPU": "GPU, ms", "host": "host, ms", "memory": "memory, GiB", "first": "first, s"}
    for name, found in results.items():
        for measure in MEASURES:
            cells = [f"{found[c][measure]:.2f}" if c in found else "-" for c in candidates]
            title = f"{name}, {MODELS[name].about}" if measure == "step" else ""
            lines.append(f"| {title} | {units[measure]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure the requested models."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--candidates", default=",".join(CANDIDATES))
    parser.add_argument("--candidate", help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tiny", action="store_true", help="models of tiny sizes")
    parser.add_argument("--steps", type=int, default=10, help="steps of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--group", type=int, default=1, help="number of models that compile at the same time")
    parser.add_argument("--logs", default=tempfile.gettempdir(), help="folder for what candidates write to stderr")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.candidate:
        serve(given)
        return
    names, candidates = given.models.split(","), given.candidates.split(",")
    results: dict[str, dict[str, dict[str, float]]] = {}
    for first in range(0, len(names), given.group):
        group = {
            name: {candidate: Child(name, candidate, given) for candidate in candidates}
            for name in names[first : first + given.group]
        }
        ready = {name: {c for c, child in children.items() if child.ready()} for name, children in group.items()}
        for name, children in group.items():
            results[name] = measure(name, children, ready[name], given.rounds)
            print(name, json.dumps(results[name]), flush=True)
            if given.json:
                given.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    text = table(results, candidates)
    print(text)
    if given.markdown:
        given.markdown.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
