# SPDX-License-Identifier: Apache-2.0
"""Sixteen models on a GPU: training steps, gradients and inference of eager mode, `torch.compile` and thunder.

    python packages/thunder-ex-triton/benchmarks/suite.py [--models GPT-2,ViT] [--programs step] [--json FILE]
    python packages/thunder-ex-triton/benchmarks/suite.py --device cpu --tiny      # to try it

The models and their batches are those of `packages/thunder-core/benchmarks/base_models.py`. The programs:

- step: forward, loss, backward and AdamW (torch's default, with multi-tensor kernels). `torch.compile` compiles the
  model. thunder compiles the model (`module`) or the whole step as one program (`thunder`).
- gradients: forward, loss and backward.
- inference: forward and loss in evaluation mode, without gradients.

Each candidate runs each program in a process of its own, which starts with empty caches of kernels. The processes of a
model compile at the same time, and are measured in turns, so that nothing else runs meanwhile.

- time: median time of a call in milliseconds, with the GPU synchronized after ten of them.
- GPU: the sum of the times of its kernels and copies in milliseconds; kernels: their number.
- host: the time until a call returns to the caller, when the GPU was idle before it.
- memory: peak of the memory that torch has reserved on the device, in GiB.
- first: seconds of the first call, while other candidates compile, too.

With `--json`, the measurements are added to those in the file, with the longest kernels and what became of CUDA graphs
in thunder's programs, and the tables show all of them. `--profile N` prints
the longest kernels of thunder's calls.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from turns import Child, Measured, serve

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "thunder-core" / "benchmarks"))
from base_models import MODELS, for_eager
from measuring import machine

Found = dict[str, dict[str, dict[str, dict[str, Any]]]]  # by program, model and candidate: the measures
MODES = {"compile": "default", "reduce-overhead": "reduce-overhead", "max-autotune": "max-autotune-no-cudagraphs"}
TITLES = {
    "eager": "eager",
    "compile": "torch.compile",
    "reduce-overhead": "its reduce-overhead",
    "max-autotune": "its max-autotune-no-cudagraphs",
    "module": "thunder.jit(model)",
    "never": "thunder without CUDA graphs",
    "thunder": "thunder",
}
PROGRAMS = {
    "step": ["eager", "compile", "reduce-overhead", "module", "thunder"],
    "gradients": ["eager", "compile", "reduce-overhead", "max-autotune", "never", "thunder"],
    "inference": ["eager", "compile", "reduce-overhead", "max-autotune", "thunder"],
}
MEASURES = {
    "time": "time, ms",
    "GPU": "GPU, ms",
    "kernels": "kernels",
    "host": "host, ms",
    "memory": "memory, GiB",
    "first": "first, s",
}
FORMATS = {"kernels": "{:.0f}", "first": "{:.1f}"}
# what is compared by which measure, the peers of which the best counts, and the targets: geometric mean, each model
BARS: list[tuple[str, str, list[str], float, float]] = [
    ("step", "time", ["compile", "reduce-overhead"], 0.8, 1.0),
    ("gradients", "GPU", ["compile"], 0.85, 1.0),
    ("gradients", "GPU", ["max-autotune"], 1.0, 1.0),
    ("inference", "time", ["compile", "reduce-overhead"], 0.8, 1.0),
    ("inference", "GPU", ["compile"], 0.85, 1.0),
    ("inference", "GPU", ["max-autotune"], 1.0, 1.0),
]


def model_of(name: str, given: argparse.Namespace, *, training: bool) -> torch.nn.Module:
    """Return a model, with the same weights in each process."""
    torch.manual_seed(0)
    model = MODELS[name].build(given.tiny).to(device=given.device, dtype=getattr(torch, given.dtype))
    return model.train(training)


def batch_of(name: str, given: argparse.Namespace) -> dict[str, torch.Tensor]:
    """Draw a batch for a model."""
    dtype = getattr(torch, given.dtype)
    return {
        key: x.to(device=given.device, dtype=dtype if x.is_floating_point() else None)
        for key, x in MODELS[name].batch(given.tiny).items()
    }


def loss_of(found: Any) -> torch.Tensor:
    """Return the loss that a model has returned, maybe among other results."""
    result: torch.Tensor = found if isinstance(found, torch.Tensor) else found.loss
    return result


def function(program: str, candidate: str, name: str, given: argparse.Namespace) -> tuple[Callable[[], Any], Any]:
    """Return a function that calls a program of a model as a candidate runs it, and what it has jitted or compiled."""
    model = model_of(name, given, training=program != "inference")
    batch = batch_of(name, given)
    run: Any = model
    if candidate == "eager":
        for_eager(model)
    elif candidate in MODES:
        run = torch.compile(model, mode=MODES[candidate])
    elif candidate != "thunder" or program != "step":
        import thunder

        run = thunder.jit(model, cuda_graphs="never" if candidate == "never" else "auto")

    def loss() -> torch.Tensor:
        return loss_of(run(**batch))

    def gradients() -> torch.Tensor:
        for parameter in model.parameters():
            parameter.grad = None
        result = loss()
        result.backward()
        return result.detach()

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        result = loss()
        result.backward()
        optimizer.step()
        return result.detach()

    if program == "inference":
        return torch.no_grad()(loss), run
    if program == "gradients":
        return gradients, run
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    if candidate == "thunder":
        import thunder

        jitted = thunder.jit(step)
        return jitted, jitted
    return step, run


def build(program: str, candidate: str, name: str, given: argparse.Namespace) -> Measured:
    """Return a program that has been called."""
    run, jitted = function(program, candidate, name, given)
    if candidate == "reduce-overhead":
        return Measured(lambda: (torch.compiler.cudagraph_mark_step_begin(), run()), given.device == "cuda")
    measured = Measured(run, given.device == "cuda")
    if candidate in ("module", "thunder"):
        measured.report = partial(graphs, jitted)
    return measured


def graphs(jitted: Any) -> list[str]:
    """Return what became of the parts of a program that can be CUDA graphs."""
    import thunder

    return [line.strip() for line in thunder.explain(jitted).splitlines() if "CUDAGraph" in line]


def start(program: str, candidate: str, name: str, given: argparse.Namespace) -> Child:
    """Start a process for a candidate."""
    options = [__file__, "--programs", program, "--models", name, "--candidate", candidate, "--device", given.device]
    options += ["--dtype", given.dtype, "--calls", str(given.calls), *(["--tiny"] if given.tiny else [])]
    return Child(options, Path(given.logs) / f"{name}-{program}-{candidate}.log")


def measure(children: dict[str, Child], rounds: int) -> dict[str, dict[str, Any]]:
    """Return the measures of each candidate that is ready, in turns. Those that fail are left out."""

    def ask(what: str, child: Child) -> dict[str, Any]:
        child.ask(what)
        return child.answer()

    times = [{candidate: ask("round", child) for candidate, child in children.items()} for _ in range(rounds)]
    found = {candidate: ask("record", child) for candidate, child in children.items()}
    for candidate, measures in found.items():
        if measures:
            for key in ("time", "host"):
                measures[key] = statistics.median(turn[candidate][key] for turn in times)
    return {candidate: measures for candidate, measures in found.items() if measures}


def run_group(names: list[str], given: argparse.Namespace, results: Found) -> None:
    """Measure some models, whose processes compile at the same time."""
    wanted = given.candidates.split(",") if given.candidates else list(TITLES)
    started = {
        (program, name): {c: start(program, c, name, given) for c in PROGRAMS[program] if c in wanted}
        for program in given.programs.split(",")
        for name in names
    }
    ready = {
        key: {c: child for c, child in children.items() if child.ready(given.patience)}
        for key, children in started.items()
    }
    measured = {key: measure(children, given.rounds) for key, children in ready.items()}
    for children in ready.values():  # now, because it takes the host seconds
        for child in children.values():
            child.ask("kernels")
    for (program, name), children in started.items():
        found = measured[program, name]
        for candidate, measures in found.items():
            measures.update(ready[program, name][candidate].answer())
        results.setdefault(program, {}).setdefault(name, {}).update(found)
        for candidate, child in children.items():
            child.end()
            if candidate not in found:
                print(f"{name}, {program}, {candidate}: see {child.log}", flush=True)
        short = {c: {k: round(v, 2) for k, v in f.items() if isinstance(v, float | int)} for c, f in found.items()}
        print(program, name, json.dumps(short), flush=True)
        if given.json:
            given.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


def table(program: str, measure: str, results: Found) -> list[str]:
    """Return a table with a row for each model."""
    candidates = [c for c in PROGRAMS[program] if any(c in found for found in results[program].values())]
    lines = [f"| {program}: {MEASURES[measure]} | " + " | ".join(TITLES[c] for c in candidates) + " |"]
    lines += ["|" + "---|" * (len(candidates) + 1)]
    for name in (name for name in MODELS if name in results[program]):
        found = results[program][name]
        values = [found.get(c, {}).get(measure) for c in candidates]
        cells = ["-" if value is None else FORMATS.get(measure, "{:.3g}").format(value) for value in values]
        title = f"{name}, {MODELS[name].about}" if measure == "time" else name
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def bars(results: Found) -> list[str]:
    """Return how thunder compares with the best of its peers, and which targets are missed."""
    lines = []
    for program, measure, peers, mean, each in BARS:
        ratios = {}
        for name, found in results.get(program, {}).items():
            others = [found[peer][measure] for peer in peers if measure in found.get(peer, {})]
            if others and measure in found.get("thunder", {}):
                ratios[name] = found["thunder"][measure] / min(others)
        if ratios:
            average = math.exp(statistics.fmean(map(math.log, ratios.values())))
            missed = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items() if ratio > each)
            what = f"{program}, {MEASURES[measure].partition(',')[0]}, of {' or '.join(TITLES[p] for p in peers)}"
            verdict = "" if average <= mean else " — NOT MET"
            lines.append(
                f"- {what}: {average:.2f} in geometric mean of {len(ratios)} models, at most {mean}{verdict}; "
                f"above {each}: {missed or 'none'}"
            )
    return [*lines, ""]


def profiles(results: Found, count: int) -> list[str]:
    """Return the longest kernels of thunder's programs."""
    lines = []
    for program, models in results.items():
        for name, found in models.items():
            lines.append(f"{program}, {name}: milliseconds, number, and name of kernels")
            longest = found.get("thunder", {}).get("longest", [])[:count]
            lines += [f"    {time:7.3f} {number:5} {kernel}" for kernel, time, number in longest]
    return lines


def main() -> None:
    """Measure the requested programs of the requested models."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    parser.add_argument("--candidates", default="", help="which of " + ",".join(TITLES))
    parser.add_argument("--candidate", help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tiny", action="store_true", help="models of tiny sizes")
    parser.add_argument("--calls", type=int, default=10, help="calls of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--group", type=int, default=1, help="number of models that compile at the same time")
    parser.add_argument("--patience", type=float, default=600, help="seconds that a first call may take")
    parser.add_argument("--profile", type=int, default=0, help="print so many of the longest kernels of thunder")
    parser.add_argument("--logs", default=tempfile.gettempdir(), help="folder for what candidates write to stderr")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    names = given.models.split(",")
    if given.candidate:
        serve(partial(build, given.programs, given.candidate, names[0], given), given.calls)
        return
    results: Found = json.loads(given.json.read_text(encoding="utf-8")) if given.json and given.json.exists() else {}
    for first in range(0, len(names), given.group):
        run_group(names[first : first + given.group], given, results)
    lines = [f"On a {machine()}.", ""]
    for program in (program for program in PROGRAMS if program in results):
        measured = {key for found in results[program].values() for c in found.values() for key in c}
        for measure in (measure for measure in MEASURES if measure in measured):
            lines += table(program, measure, results)
    text = "\n".join([*lines, *bars(results), *profiles(results, given.profile)])
    print(text)
    if given.markdown:
        given.markdown.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
