# SPDX-License-Identifier: Apache-2.0
"""Tests on several processes: `reports(script, size, folder)` runs a script on each rank and returns what they print.

The script calls `main(run)`, which joins the process group and prints the JSON of `run(rank, size)` as its last line.
The backend is gloo on the CPU. With `THUNDER_RANKS_BACKEND=nccl`, the ranks run on GPUs: scripts use `DEVICE`, or let
`main` set it as the default device. Results are compared to the bit, so the ranks load no plugins.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

BACKEND = os.environ.get("THUNDER_RANKS_BACKEND", "gloo")
DEVICE = "cuda" if BACKEND == "nccl" else "cpu"
TIMEOUT = 600  # seconds; two idle cores need a twentieth of it


def reports(script: str, size: int, folder: Path, *options: str) -> list[Any]:
    """Run a script of this folder on `size` ranks, and return the report of each rank."""
    skip_without_devices(size)
    settings = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OMP_NUM_THREADS": "1",
        "THUNDER_CHECK_RANKS": "1",
        "THUNDER_DISABLE_PLUGINS": "*",
    }
    command = [sys.executable, str(Path(__file__).with_name(script)), str(size), str(folder / "store"), *options]
    ranks = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**settings, "RANK": str(rank)}
        )
        for rank in range(size)
    ]
    try:
        printed = [rank.communicate(timeout=TIMEOUT) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    ended = [rank.returncode for rank in ranks]
    # The rank that waited for a failed one says little, so the errors of all ranks are shown.
    assert not any(ended), "".join(
        f"rank {r}, exit {ended[r]}:\n{errors[-4000:]}" for r, (_, errors) in enumerate(printed)
    )
    return [json.loads(out.splitlines()[-1]) for out, _ in printed]


def skip_without_devices(size: int) -> None:
    """Skip a test that needs more GPUs than there are."""
    if DEVICE == "cuda":
        import pytest
        import torch

        if torch.cuda.device_count() < size:
            pytest.skip(f"{size} ranks need as many GPUs")


def main(run: Callable[[int, int], Any], *, on_device: bool = False, blocking: bool = False) -> None:
    """Join a process group, and print the report of this rank.

    on_device: create tensors on `DEVICE` by default.
    blocking: let a wait for NCCL raise an error at a timeout, as with gloo. By default, NCCL ends the process then.
    """
    import torch
    import torch.distributed as dist

    warnings.simplefilter("ignore")
    rank, size, store = int(os.environ["RANK"]), int(sys.argv[1]), sys.argv[2]
    timeout = datetime.timedelta(seconds=30)
    if DEVICE == "cuda":
        torch.cuda.set_device(rank)
        if on_device:
            torch.set_default_device(DEVICE)
        if blocking:
            os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
    dist.init_process_group(BACKEND, init_method=f"file://{store}", rank=rank, world_size=size, timeout=timeout)
    print(json.dumps(run(rank, size)), flush=True)
    dist.barrier()
    os._exit(0)  # the exit would destroy the works that eager runs left without a wait, at times after gloo's threads
