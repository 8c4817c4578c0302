# SPDX-License-Identifier: Apache-2.0
"""Run all that needs several processes of one machine: the tests of ranks, then `distributed.py` and `simulation.py`.

    python packages/thunder-core/benchmarks/ranks.py [--ranks 2] [--backend gloo|nccl] [--only TEXT] [--seconds N]

With NCCL, each rank needs a GPU. Tests that need more ranks than there are GPUs are skipped. The output of each part
goes to the screen; a table of all parts comes last.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
TESTS = ("tests/capture/dispatch/test_dtensors.py", "tests/frontend/test_fully_sharded.py",
         "tests/frontend/test_sharded_steps.py")  # fmt: skip
BENCHMARKS = ("benchmarks/distributed.py", "benchmarks/simulation.py")


def run(command: list[str], backend: str, seconds: float) -> tuple[str, float]:
    """Run a command in the package's folder. Return how it ended, and how long it took."""
    start = time.perf_counter()
    try:
        ended = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "THUNDER_RANKS_BACKEND": backend}, timeout=seconds, check=False
        )
        status = "passed" if ended.returncode == 0 else f"exit {ended.returncode}"
    except subprocess.TimeoutExpired:
        status = "timeout"
    return status, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--backend", choices=["gloo", "nccl"], default="nccl" if torch.cuda.is_available() else "gloo")
    parser.add_argument("--only", default="", help="only parts whose name contains this")
    parser.add_argument("--seconds", type=float, default=600, help="the limit of each part")
    args = parser.parse_args()
    parts = {name: [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", name] for name in TESTS}
    for name in BENCHMARKS:
        parts[name] = [sys.executable, name, "--ranks", str(args.ranks), "--backend", args.backend]
    chosen = {name: command for name, command in parts.items() if args.only in name}
    found = {name: run(command, args.backend, args.seconds) for name, command in chosen.items()}
    print(f"\n{args.ranks} ranks, {args.backend}\n\n| part | result | seconds |\n|---|---|---|")
    for name, (status, taken) in found.items():
        print(f"| {name} | {status} | {taken:.0f} |")
    sys.exit(any(status != "passed" for status, _ in found.values()))


if __name__ == "__main__":
    main()
