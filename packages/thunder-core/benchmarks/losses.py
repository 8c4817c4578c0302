# SPDX-License-Identifier: Apache-2.0
"""Losses of training in bfloat16, with eager mode and `thunder.jit(step)`: their distance to eager mode in float32.

    python packages/thunder-core/benchmarks/losses.py [--long GPT-2,T5,ViT] [--models …] [--markdown FILE]
    python packages/thunder-core/benchmarks/losses.py --device cpu --tiny --steps 20 --long-steps 50    # to try it

Each model of `base_models.py` trains with AdamW on eight random batches in turns, which it learns by heart: 100 steps,
and 1,000 steps of the models named by `--long`. The float32 model starts with the same values of parameters, those of
the bfloat16 model. The distance is the mean of `|loss - float32 loss|` over all steps and seeds. `thunder.jit(step)`
runs in two processes, whose losses and final parameters must be equal to the bit with `--deterministic`, and in
general for models for which eager mode uses no kernels with atomic additions.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from base_models import MODELS, for_eager
from measuring import machine

CANDIDATES = ["float32", "bfloat16", "step", "step again"]


def losses(name: str, candidate: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Return the losses of one run, and a digest of the parameters at its end."""
    torch.use_deterministic_algorithms(given.deterministic, warn_only=True)
    torch.manual_seed(seed)
    dtype = torch.float32 if candidate == "float32" else torch.bfloat16
    model = MODELS[name].build(given.tiny).to(device=given.device, dtype=torch.bfloat16).to(dtype).train()
    if not candidate.startswith("step"):
        for_eager(model)
    batches = []
    for _ in range(8):
        batch = MODELS[name].batch(given.tiny)
        batches.append(
            {
                key: x[: max(1, len(x) // given.part)].to(
                    device=given.device, dtype=dtype if x.is_floating_point() else None
                )
                for key, x in batch.items()
            }
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        optimizer.zero_grad()
        found = model(**batch)
        loss = found if isinstance(found, torch.Tensor) else found.loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = step
    if candidate.startswith("step"):
        import thunder

        run = thunder.jit(step)
    found = [run(batches[i % 8]) for i in range(steps_of(name, given))]
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    return {"losses": torch.stack(found).double().tolist(), "digest": digest.hexdigest()}


def steps_of(name: str, given: argparse.Namespace) -> int:
    """Return the number of steps of a model."""
    return given.long_steps if name in given.long.split(",") else given.steps


def in_process(name: str, candidate: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the runs of all seeds, which another process does."""
    options = [sys.executable, __file__, "--models", name, "--candidate", candidate, "--seeds", str(given.seeds)]
    options += ["--device", given.device, "--long", given.long, "--steps", str(given.steps), "--part", str(given.part)]
    options += ["--long-steps", str(given.long_steps)]
    options += [f"--{option}" for option in ("tiny", "deterministic") if getattr(given, option)]
    run = subprocess.run(options, capture_output=True, text=True, check=False)
    if run.returncode:
        print(f"{name}, {candidate} failed:\n{run.stderr[-2000:]}", flush=True)
        return []
    found: list[dict[str, Any]] = json.loads(run.stdout.splitlines()[-1])
    return found


def distance(runs: list[dict[str, Any]], exact: list[dict[str, Any]]) -> float:
    """Return the mean distance of losses to those of float32."""
    each = [abs(a - b) for run, other in zip(runs, exact) for a, b in zip(run["losses"], other["losses"], strict=True)]
    return sum(each) / len(each)


def row(name: str, found: dict[str, list[dict[str, Any]]], given: argparse.Namespace) -> str:
    """Return a model's row of the table."""
    if not all(found[c] for c in CANDIDATES):
        return f"| {name} | " + " | ".join("-" for _ in range(6)) + " |"
    exact = found["float32"]
    eager, step = distance(found["bfloat16"], exact), distance(found["step"], exact)
    first = sum(run["losses"][0] for run in exact) / len(exact)
    last = sum(sum(run["losses"][-8:]) / 8 for run in exact) / len(exact)
    equal = "yes" if found["step"] == found["step again"] else "NO"
    return (
        f"| {name} | {steps_of(name, given)} | {first:.3f} to {last:.3f} | {eager:.2e} | {step:.2e} | "
        f"{step / eager if eager else float(step > 0):.2f} | {equal} |"
    )


def main() -> None:
    """Train the requested models, several at the same time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--long", default="GPT-2,T5,ViT", help="models that train for --long-steps")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--long-steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--part", type=int, default=4, help="train on this part of the base models' batches")
    parser.add_argument("--candidate", help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--tiny", action="store_true", help="models of tiny sizes")
    parser.add_argument("--deterministic", action="store_true", help="with torch.use_deterministic_algorithms")
    parser.add_argument("--workers", type=int, default=1, help="number of processes at the same time")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path, help="a file for the losses of all steps")
    given = parser.parse_args()
    names = given.models.split(",")
    if given.candidate:
        print(json.dumps([losses(names[0], given.candidate, seed, given) for seed in range(given.seeds)]))
        return
    names.sort(key=lambda name: -steps_of(name, given))
    found: dict[str, dict[str, list[dict[str, Any]]]] = {name: {} for name in names}
    rows = {}
    with concurrent.futures.ThreadPoolExecutor(given.workers) as pool:
        runs = {pool.submit(in_process, name, c, given): (name, c) for name in names for c in CANDIDATES}
        for run in concurrent.futures.as_completed(runs):
            name, candidate = runs[run]
            found[name][candidate] = run.result()
            if len(found[name]) == len(CANDIDATES):
                rows[name] = row(name, found[name], given)
                print(rows[name], flush=True)
    titles = "| model | steps | float32 loss | bfloat16 eager | thunder.jit(step) | ratio | two runs equal to the bit |"
    text = "\n".join([f"On a {machine()}.", "", titles, "|" + "---|" * 7, *(rows[n] for n in MODELS if n in rows)])
    print(text)
    if given.json:
        given.json.write_text(json.dumps(found), encoding="utf-8")
    if given.markdown:
        given.markdown.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
