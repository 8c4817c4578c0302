# SPDX-License-Identifier: Apache-2.0
"""Compare simulated training steps (`thunder.examine.distributed`) with measured ones.

    python packages/thunder-core/benchmarks/simulation.py [--ranks 2] [--backend gloo|nccl] [--layers N] [--width N]
        [--tokens N] [--steps N] [--hardware cpu|h100|h200] [--rows TEXT]

Starts one process for each rank on this machine. The steps are those of `distributed.py`, each as one program. They are
simulated from the data sheet, with measured collectives, and with the measured times of their lines. The measured time
is that of steps in a row, which a GPU runs without pauses: the simulator leaves out what Python needs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from distributed import CANDIDATES, Candidate, input_of, join, model_of, run_ranks

import thunder
from thunder.examine.distributed import simulate_programs
from thunder.examine.predictions import memory_of
from thunder.examine.program import compile_call

WHOLE_STEPS = ("DDP, thunder, whole step", "fully_shard, thunder, whole step")


def on_rank(args: argparse.Namespace, rank: int) -> None:
    """Measure and simulate on one rank, and print the table on rank 0."""
    device = join(args, rank)
    model = model_of(args, device)
    x = input_of(args, 1 + rank, device)
    curves = thunder.examine.measure_collectives(kinds=("all_reduce", "all_gather", "reduce_scatter"))
    rows = {name: row(args, Candidate(CANDIDATES[name], model, device), x, curves) for name in WHOLE_STEPS
            if args.rows in name}  # fmt: skip
    if rank == 0:
        print(table(args, rows))
    dist.barrier()
    os._exit(0)


def row(args: argparse.Namespace, candidate: Candidate, x: torch.Tensor, curves: Any) -> dict[str, Any]:
    """Return the measured time of a step, its profile, and its simulations."""
    for _ in range(4):  # the state of AdamW, and numbers that become inputs
        candidate.timed(x)
    measured = statistics.median([in_a_row(candidate, x, args.steps) for _ in range(3)])
    profile = thunder.examine.profile(candidate.step, x, rounds=3)
    call = compile_call(candidate.step, (x,), {})  # once, instead of once for each simulation
    machine, peak = thunder.examine.HARDWARE[args.hardware], memory_of(call.specialization).peak
    choices: dict[str, tuple[Any, Any]] = {
        "data sheet": (machine, {}),
        "measured collectives": (machine.with_curves(curves), {}),
        "profile": (machine.with_curves(curves), profile.times),
    }
    simulated = {name: simulate_programs(call.programs, *choice, peak) for name, choice in choices.items()}
    return {"measured": measured, "profile": profile, "simulated": simulated}


def in_a_row(candidate: Candidate, x: torch.Tensor, steps: int) -> float:
    """Return the time of a step among `steps` steps that follow each other."""
    dist.barrier()
    if x.is_cuda:
        torch.cuda.synchronize()
    start = perf_counter()
    for _ in range(steps):
        candidate.step(x)
    if x.is_cuda:
        torch.cuda.synchronize()
    return (perf_counter() - start) / steps


def table(args: argparse.Namespace, rows: dict[str, Any]) -> str:
    lines = [f"{args.ranks} ranks, {args.backend}, {args.layers} blocks of {args.width}, {args.tokens} tokens a rank"]
    for name, found in rows.items():
        measured, profile = found["measured"], found["profile"]
        one_by_one = f"{len(profile.lines)} lines one by one: {profile.seconds * 1e3:.2f} ms"
        lines += [
            "",
            f"{name}: measured {measured * 1e3:.2f} ms; {one_by_one}",
            "",
            "| simulated from | step, ms | of measured | range, ms | communication, ms | exposed, ms |",
            "|---|---|---|---|---|---|",
        ]
        for source, simulated in found["simulated"].items():
            lines.append(
                f"| {source} | {simulated.seconds * 1e3:.2f} | {simulated.seconds / measured:.2f} "
                f"| {simulated.low * 1e3:.2f} to {simulated.high * 1e3:.2f} | {simulated.communication * 1e3:.2f} "
                f"| {simulated.exposed * 1e3:.2f} |"
            )
    return "\n".join(lines)


def main() -> None:
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--backend", choices=["gloo", "nccl"], default="nccl" if cuda else "gloo")
    parser.add_argument("--layers", type=int, default=4 if cuda else 2)
    parser.add_argument("--width", type=int, default=2048 if cuda else 256)
    parser.add_argument("--tokens", type=int, default=8192 if cuda else 256)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--hardware", default="h200" if cuda else "cpu")
    parser.add_argument("--rows", default="", help="only steps whose name contains this")
    parser.add_argument("--rank", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--store", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        on_rank(args, args.rank)
        return
    sys.exit(run_ranks(args.ranks))


if __name__ == "__main__":
    main()
