# SPDX-License-Identifier: Apache-2.0
"""Tilings of a fusion as a measured choice: with `triton_timed`, and with `measured`. The clock is not a real one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder
from thunder.toolkit.testing import deterministic_algorithms, measured_times, new_process
from thunder_ex_triton.fusion import autotune

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TIMED: dict[str, Any] = {"triton_timed": True}
FIRST: dict[str, Any] = {"measured": "first call"}


def clock(times: dict[int, float]) -> Callable[[str], float]:
    """Times of tilings by the number of elements of a tile."""
    return lambda name: times[int(name.partition(",")[0].removeprefix("tile "))]


FASTEST_1024 = clock({512: 5.0, 1024: 2.0, 2048: 4.0, 4096: 3.0})


def function(x: Any, w: Any) -> Any:
    return torch.sigmoid(x) * w + x


def launched(jitted: Any) -> list[Any]:
    """The constants that kernels of a jitted function are launched with."""
    regions = [found.fn for found in thunder.examine.fusions(jitted)]
    return [step[3] for region in regions for program in region._programs.values() for step in program.steps]


def called(times: int = 1, **options: Any) -> Any:
    """Constants of the launches of a new jitted function that was called; its results are those of eager."""
    jitted = thunder.jit(function, executors=["triton"], **options)
    x, w = torch.linspace(-1, 1, 6000, device=DEVICE).reshape(2, 3000), torch.ones(3000, device=DEVICE)
    for _ in range(times):
        torch.testing.assert_close(jitted(x, w), function(x, w))
    return launched(jitted)


@pytest.mark.parametrize("options", [TIMED, FIRST])
def test_the_fastest_is_used_at_once(options: dict[str, Any]) -> None:
    """Also by other functions of the process, and by the next process, without asking the clock."""
    with measured_times(FASTEST_1024) as timed:
        assert called(**options) == [(1024,)] and len(timed) == 15
        assert called(**options) == [(1024,)]
        new_process()
        assert called(**options) == called(**TIMED, measured=True) == [(1024,)] and len(timed) == 15


def test_off_the_first_call() -> None:
    """The process that measures keeps the default, and the next one uses what was measured."""
    with measured_times(FASTEST_1024) as timed:
        assert called(2, measured=True) == [(2048,)] and not timed
        assert called(3, measured=True) == [(2048,)] and len(timed) == 15
        assert called(measured=True) == [(2048,)]
        new_process()
        assert called(3, measured=True) == [(1024,)] and len(timed) == 15


def test_the_rule_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the options, for what is hardly faster, and where nothing can be stored."""

    def refuses(*args: Any, **how: Any) -> Any:
        raise OSError

    with measured_times(clock({1024: 3.96, 2048: 4.0, 4096: 3.97})) as timed:
        assert called() == called(triton_timed=False) == [(2048,)] and not timed
        assert called(**TIMED) == [(2048,)] and timed
    with measured_times(FASTEST_1024) as timed:
        called()  # kernels are written to files
        monkeypatch.setattr(tempfile, "mkstemp", refuses)
        assert called(**TIMED) == [(2048,)] and timed


def test_nothing_is_timed_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is used then, and for the rest of the process."""
    with measured_times(FASTEST_1024) as timed, monkeypatch.context() as patch:
        patch.setattr("thunder.extend.measuring.can_measure", lambda device: False)
        assert called(**TIMED) == [(2048,)]
        patch.undo()
        assert called(**TIMED) == [(2048,)] and not timed
        new_process()
        assert called(**TIMED) == [(1024,)]


def test_nothing_is_timed_with_deterministic_algorithms() -> None:
    """The default is taken, whatever was faster before; what was chosen is taken again afterwards."""
    with measured_times(FASTEST_1024) as timed:
        assert called(**TIMED) == [(1024,)]
        with deterministic_algorithms():
            assert called(**TIMED) == [(2048,)]
        assert called(**TIMED) == [(1024,)] and len(timed) == 15


def test_updates_in_place() -> None:
    """Candidates write to memory of their own, so the input is updated once."""

    def update(x: Any, y: Any) -> Any:
        x.add_(y * 2)
        return x + 1

    with measured_times(FASTEST_1024) as timed:
        x, y = torch.zeros(6000, device=DEVICE), torch.ones(6000, device=DEVICE)
        result = thunder.jit(update, executors=["triton"], **FIRST)(x, y)
        assert timed and torch.equal(x, torch.full_like(x, 2)) and torch.equal(result, x + 1)


def test_names_of_candidates() -> None:
    """The version of a candidate has the kernels' text and Triton's version, and its name the tile."""

    class Launch:
        source = type("Source", (), {"text": "kernel"})
        grid, numbers, warps = (4, 1), (2, 1024), 4

    (candidate,) = autotune.candidates_of([[Launch]], lambda i: lambda: i)  # type: ignore[list-item]
    assert candidate.name == "tile 2x1024, 4x1 programs, 4 warps"
    assert "kernel" in candidate.version and candidate.prepare()() == 0
