# SPDX-License-Identifier: Apache-2.0
"""Ways to cut a fusion's work that are timed: once, kept on disk, the same for all. The clock is not a real one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import triton

import thunder
from thunder.toolkit.testing import deterministic_algorithms
from thunder_ex_triton.fusion import autotune

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where choices are kept."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return tmp_path / "thunder"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What candidates take, one after the other; what was asked for is taken from it."""
    times: list[float] = []
    monkeypatch.setattr(autotune, "can_time", lambda device: True)
    monkeypatch.setattr(autotune, "_TURNS", 1)
    monkeypatch.setattr(autotune, "took", lambda run, inputs: times.pop(0))
    return times


def function(x: Any, w: Any) -> Any:
    return torch.sigmoid(x) * w + x


def launched(jitted: Any) -> list[Any]:
    """The constants that kernels of a jitted function are launched with."""
    regions = [found.fn for found in thunder.examine.fusions(jitted)]
    return [step[3] for region in regions for program in region._programs.values() for step in program.steps]


def called(**options: Any) -> Any:
    """Constants of the launches of a new jitted function that was called; its results are those of eager."""
    jitted = thunder.jit(function, executors=["triton"], **options)
    x, w = torch.linspace(-1, 1, 6000, device=DEVICE).reshape(2, 3000), torch.ones(3000, device=DEVICE)
    torch.testing.assert_close(jitted(x, w), function(x, w))
    return launched(jitted)


def test_the_fastest_is_kept(folder: Path, clock: list[float]) -> None:
    """One is chosen, and the next function of that kind takes it without asking the clock."""
    clock += [4.0, 2.0, 3.0]
    assert called(triton_timed=True) == [(1024,)] and not clock
    assert len(list(folder.glob("choice_*.txt"))) == 1
    assert called(triton_timed=True) == [(1024,)]


def test_what_another_process_chose_counts(folder: Path, clock: list[float]) -> None:
    """Also where it was faster to write than this one."""
    clock += [4.0, 2.0, 3.0]

    def other_process(name: str, ways: int, find: Callable[[], int], chosen: Any = autotune.chosen) -> int:
        def later() -> int:
            found = find()
            assert chosen(name, ways, lambda: 2) == 2
            return found

        return int(chosen(name, ways, later))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(autotune, "chosen", other_process)
        assert called(triton_timed=True) == [(4096,)] and not clock
    assert called(triton_timed=True) == [(4096,)]


@pytest.mark.parametrize("text", ["", "7", "-1", "\x00\xff", "one"])
def test_damaged_files_are_written_anew(folder: Path, clock: list[float], text: str) -> None:
    """A file that holds no choice is no choice."""
    clock += [4.0, 2.0, 3.0]
    called(triton_timed=True)
    (file,) = folder.glob("choice_*.txt")
    file.write_text(text, encoding="latin-1")
    clock += [4.0, 5.0, 3.0]
    assert called(triton_timed=True) == [(4096,)] and not clock
    assert file.read_text() == "2" and len(list(folder.glob("choice_*"))) == 1


def test_the_rule_stands(folder: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the option, for what is hardly faster, and while a graph is recorded, after which it stays."""
    assert called() == called(triton_timed=False) == [(2048,)]
    assert not folder.exists() or not list(folder.glob("choice_*"))
    clock += [4.0, 3.96, 3.97]
    assert called(triton_timed=True) == [(2048,)]
    for file in folder.glob("choice_*"):
        file.unlink()
    monkeypatch.setattr(autotune, "can_time", lambda device: False)
    assert called(triton_timed=True) == [(2048,)]
    monkeypatch.setattr(autotune, "can_time", lambda device: True)
    clock += [4.0, 2.0, 3.0]
    assert called(triton_timed=True) == [(2048,)] and len(clock) == 3


def test_where_nothing_can_be_kept(folder: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule stands, so that every process does the same."""

    def refuses(*args: Any, **how: Any) -> Any:
        raise OSError

    thunder.jit(function, executors=["triton"])(torch.ones(2, 3000, device=DEVICE), torch.ones(3000, device=DEVICE))
    monkeypatch.setattr(tempfile, "mkstemp", refuses)
    clock += [4.0, 2.0, 3.0]
    assert called(triton_timed=True) == [(2048,)]
    assert not list(folder.glob("choice_*"))


def test_candidates_that_do_not_fit_are_none(clock: list[float]) -> None:
    """One for which the device has not the memory is left out; the rule's, which has to run, is then all there is."""

    def fits(x: Any) -> None:
        pass

    def does_not(x: Any) -> None:
        raise triton.runtime.errors.OutOfResources(300, 200, "shared memory")

    clock += [4.0, 2.0]
    assert autotune.fastest([fits, does_not, fits], [torch.ones(1)]) == 2 and not clock
    assert autotune.fastest([does_not, fits, fits], [torch.ones(1)]) == 0
    assert autotune.fastest([fits, does_not], [torch.ones(1)]) == 0


def test_names_of_choices() -> None:
    """Other kernels, devices and launches are other choices."""
    parts = [("H200", [("text", (4, 1), (1024,), 4)]), ("H100", [("text", (4, 1), (1024,), 4)]), ("H200", [("t",)])]
    assert len({autotune.digest(*p) for p in parts}) == 3


def test_nothing_is_timed_with_deterministic_algorithms(folder: Path, clock: list[float]) -> None:
    """The default is taken, whatever was faster before; what was chosen is taken again afterwards."""
    clock += [4.0, 2.0, 3.0]
    chosen = called(triton_timed=True)
    with deterministic_algorithms():
        default = called(triton_timed=True)
    assert default == called() != chosen
    assert called(triton_timed=True) == chosen and not clock
