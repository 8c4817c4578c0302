# SPDX-License-Identifier: Apache-2.0
"""Compare simulated training steps (`thunder.examine.distributed`) with measured ones.

    python packages/thunder-core/benchmarks/simulation.py [--ranks 2] [--backend gloo|nccl] [--layers N] [--width N]
        [--tokens N] [--steps N] [--hardware cpu|h100|h200]

Starts one process for each rank on this machine. The step is that of `distributed.py` with DistributedDataParallel, as
one program. It is simulated from the data sheet, with measured collectives, and with the measured times of its lines.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from typing import Any

import torch
import torch.distributed as dist
from distributed import Candidate, data_parallel, join, model_of, run_ranks, step_of

import thunder


def on_rank(args: argparse.Namespace, rank: int) -> None:
    """Measure and simulate on one rank, and print the table on rank 0."""
    device = join(args, rank)
    model = model_of(args, device)
    x = torch.randn(2, args.tokens // 2, args.width, device=device, dtype=next(model.parameters()).dtype)
    candidate = Candidate(lambda model, device: thunder.jit(step_of(data_parallel(model))), model, device)
    times = [candidate.timed(x)[0] for _ in range(4 + args.steps)][4:]
    machine = thunder.examine.HARDWARE[args.hardware]
    curves = thunder.examine.measure_collectives()
    profile = thunder.examine.profile(candidate.step, x, rounds=2)
    simulated = {
        "data sheet": thunder.examine.distributed(candidate.step, x, hardware=machine),
        "measured collectives": thunder.examine.distributed(candidate.step, x, hardware=machine.with_curves(curves)),
        "profile": thunder.examine.distributed(candidate.step, x, hardware=machine, profile=profile),
    }
    if rank == 0:
        print(table(args, statistics.median(times), simulated, profile))
    dist.barrier()
    os._exit(0)


def table(args: argparse.Namespace, measured: float, simulated: dict[str, Any], profile: Any) -> str:
    one_by_one = f"{len(profile.lines)} lines one by one: {profile.seconds * 1e3:.2f} ms"
    lines = [
        f"{args.ranks} ranks, {args.backend}, {args.layers} blocks of {args.width}, {args.tokens} tokens a rank",
        f"measured step: {measured * 1e3:.2f} ms; {one_by_one}",
        "",
        "| simulated from | step, ms | of measured | range, ms | exposed, ms |",
        "|---|---|---|---|---|",
    ]
    for name, found in simulated.items():
        lines.append(
            f"| {name} | {found.seconds * 1e3:.2f} | {found.seconds / measured:.2f} "
            f"| {found.low * 1e3:.2f} to {found.high * 1e3:.2f} | {found.exposed * 1e3:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--backend", choices=["gloo", "nccl"], default="nccl" if cuda else "gloo")
    parser.add_argument("--layers", type=int, default=8 if cuda else 2)
    parser.add_argument("--width", type=int, default=2048 if cuda else 256)
    parser.add_argument("--tokens", type=int, default=8192 if cuda else 256)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--hardware", default="h200" if cuda else "cpu")
    parser.add_argument("--rank", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--store", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        on_rank(args, args.rank)
        return
    sys.exit(run_ranks(args.ranks))


if __name__ == "__main__":
    main()
