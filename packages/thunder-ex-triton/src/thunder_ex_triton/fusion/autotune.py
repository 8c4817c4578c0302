# SPDX-License-Identifier: Apache-2.0
"""Autotuning: time a few tilings of a region's kernels once, and store the choice on disk.

The first choice written to disk is final. Kernels with other tilings may differ in the last bit of a sum, so all
processes of a machine, and all later runs, use the same tiling. If the choice cannot be written, the default tiling of
`tiles` is used. The default is always the first candidate. With `torch.use_deterministic_algorithms` nothing is timed.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton

from thunder_ex_triton.disk_cache import folder, kept

__all__ = ["OPTION", "can_time", "chosen", "digest", "fastest", "known", "register", "took"]

OPTION = "triton_timed"

_GAIN = 0.98  # another candidate must take less than this fraction of the default's time
_TURNS, _CALLS = 5, 4


def register(registry: Any) -> None:
    """Register the option."""
    registry.register_option(
        OPTION,
        type=bool,
        default=False,
        help="whether the first call of a fusion times a few tilings of its kernels and selects the fastest",
    )


def digest(*parts: Any) -> str:
    """Return a hash of everything that a choice depends on, including Triton's version."""
    return hashlib.sha256(repr((triton.__version__, *parts)).encode()).hexdigest()[:24]


def _file(name: str) -> str:
    return f"choice_{name}.txt"


def known(name: str, ways: int) -> int | None:
    """Return the choice stored on disk; None if there is no file or the file is invalid."""
    try:
        found = int((folder() / _file(name)).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return found if 0 <= found < ways else None


def chosen(name: str, ways: int, find: Callable[[], int]) -> int:
    """Return the choice stored on disk.

    If there is none, call `find` and store its result; return 0 if it cannot be stored.
    """
    with contextlib.suppress(OSError):
        path = folder() / _file(name)
        if path.exists() and known(name, ways) is None:
            path.unlink(missing_ok=True)  # The file is damaged. Writes are atomic, so no process is still writing it.
        kept(_file(name), lambda: str(find()))
    return known(name, ways) or 0


def can_time(device: torch.device) -> bool:
    """Check whether kernels can be timed now: on a GPU, outside of the capture of a CUDA graph."""
    return device.type == "cuda" and not torch.cuda.is_current_stream_capturing()


def took(run: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> float:
    """Return the milliseconds of a call's kernels. A sleep kernel delays them until all are in the queue."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(2_000_000)
    begin.record()
    for _ in range(_CALLS):
        run(*inputs)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / _CALLS


def fastest(
    candidates: Sequence[Callable[..., Any]], inputs: Sequence[torch.Tensor], device: torch.device | None = None
) -> int:
    """Return the index of the fastest candidate; 0 (the default) unless another candidate is clearly faster.

    Candidates write only to memory that they allocate, and have no side effects. Candidates that run out of resources
    are skipped.
    """
    if device is not None and device.type == "cuda":
        with torch.cuda.device(device):  # events record on the current device
            return fastest(candidates, inputs)
    fit = []
    for n, run in enumerate(candidates):
        try:
            for _ in range(3):
                run(*inputs)
            fit.append(n)
        except (triton.runtime.errors.OutOfResources, torch.OutOfMemoryError):
            continue
    if fit[:1] != [0] or len(fit) < 2:
        return 0
    times = {n: min(took(candidates[n], inputs) for _ in range(_TURNS)) for n in fit}
    best = min(fit, key=lambda n: times[n])
    return best if times[best] < _GAIN * times[0] else 0
