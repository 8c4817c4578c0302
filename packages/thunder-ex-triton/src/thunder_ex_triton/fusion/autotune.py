# SPDX-License-Identifier: Apache-2.0
"""Which of a few ways to launch a region's kernels is the fastest: timed once, and kept on disk.

What is on disk counts, and who writes it first: kernels whose tiles differ may differ in the last bit of a sum, so all
processes of a machine, and all later runs, take the same. Where nothing can be kept the rule stands, which is always
the first candidate.
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

_GAIN = 0.98  # of the rule's time, which another candidate has to undercut
_TURNS, _CALLS = 5, 4


def register(registry: Any) -> None:
    """Bring the option."""
    registry.register_option(
        OPTION,
        type=bool,
        default=False,
        help="whether the first call of a fusion times a few ways to cut it into tiles",
    )


def digest(*parts: Any) -> str:
    """Return a name for what a choice depends on; Triton's version is part of it."""
    return hashlib.sha256(repr((triton.__version__, *parts)).encode()).hexdigest()[:24]


def _file(name: str) -> str:
    return f"choice_{name}.txt"


def known(name: str, ways: int) -> int | None:
    """Return the choice that was made, if one was; a file that holds no choice is none."""
    try:
        found = int((folder() / _file(name)).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return found if 0 <= found < ways else None


def chosen(name: str, ways: int, find: Callable[[], int]) -> int:
    """Return the choice that was made, by whichever process; `find` makes it where there is none. Else the rule's."""
    with contextlib.suppress(OSError):
        path = folder() / _file(name)
        if path.exists() and known(name, ways) is None:
            path.unlink(missing_ok=True)  # damaged: files are whole from the beginning
        kept(_file(name), lambda: str(find()))
    return known(name, ways) or 0


def can_time(device: torch.device) -> bool:
    """Check whether kernels can be timed now: on a GPU that does not record a graph."""
    return device.type == "cuda" and not torch.cuda.is_current_stream_capturing()


def took(run: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> float:
    """Return milliseconds of a call's kernels. They wait behind a kernel that idles until all are queued."""
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
    """Return the number of the candidate that takes least time on a device; the first unless another is clearly faster.

    They write to memory of their own, and have no effects. One that the device has no room for is none.
    """
    if device is not None and device.type == "cuda":
        with torch.cuda.device(device):  # events are of the current one
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
