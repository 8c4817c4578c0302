# SPDX-License-Identifier: Apache-2.0
"""Measured choices: the default, the rule of a process, what is timed when, and candidates that cannot run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thunder.core.events import EventLog
from thunder.extend import Compilation, TensorProxy, compiling, measuring
from thunder.extend.measuring import Candidate, MeasuredChoice, Measurements, measured_choice, time_run
from thunder.toolkit.measuring import example_tensor, shape_class_of, size_class
from thunder.toolkit.testing import deterministic_algorithms, measured_times, new_process

TIMES = {"rule": 2.0, "other": 1.0, "third": 1.5}


@pytest.fixture(autouse=True)
def timed() -> Iterator[list[str]]:
    """The names whose time was asked for."""
    with measured_times(TIMES) as found:
        yield found


def nothing() -> None:
    pass


def candidate(name: str, prepare: Callable[[], Callable[[], Any]] = lambda: nothing, version: str = "1") -> Candidate:
    return Candidate(name, prepare, version)


RULE, OTHER, THIRD = candidate("rule"), candidate("other"), candidate("third")


def choose(measurements: Measurements | None, *candidates: Candidate, shape: Any = (2, 3)) -> str:
    with compiling(Compilation(measurements=measurements)):
        return measured_choice("operation", shape, candidates or (RULE, OTHER), "cpu")


def now() -> Measurements:
    return Measurements("first call", EventLog("test"))


def later() -> Measurements:
    return Measurements("later", EventLog("test"))


def test_without_the_option(timed: list[str]) -> None:
    """The first candidate is the default, outside of a compilation too."""
    assert choose(None) == measured_choice("operation", (), (RULE, OTHER), "cpu") == "rule"
    assert choose(now(), RULE) == "rule" and not timed


def test_at_the_first_call(timed: list[str]) -> None:
    assert choose(now(), RULE, THIRD, OTHER) == "other" and len(timed) == 15
    assert choose(now(), RULE, THIRD, OTHER) == choose(later(), RULE, THIRD, OTHER) == "other"
    new_process()
    assert choose(later(), RULE, THIRD, OTHER) == "other" and len(timed) == 15


def test_candidates_take_turns(timed: list[str]) -> None:
    choose(now())
    assert timed == ["rule", "other"] * 5


def test_later(timed: list[str]) -> None:
    """The process that measures keeps the default, in every function; the next process uses the fastest."""
    measurements = later()
    assert choose(measurements) == "rule" and not timed
    measurements.measure_pending()
    assert len(timed) == 10 and not measurements.pending
    assert choose(measurements) == choose(now()) == choose(later()) == "rule"
    new_process()
    again = later()
    assert choose(again) == "other" and not again.pending


@pytest.mark.parametrize("faster, chosen", [(1.98, "rule"), (1.9, "other")])
def test_the_default_wins_unless_another_is_clearly_faster(
    faster: float, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TIMES, "other", faster)
    assert choose(now()) == chosen


def test_what_a_choice_depends_on(timed: list[str]) -> None:
    """Another operation, shape class, version or order of the candidates is another choice."""
    choose(now())
    for candidates, shape in (
        ((RULE, OTHER), (2, 4)),
        ((RULE, candidate("other", version="2")), (2, 3)),
        ((OTHER, RULE), (2, 3)),
    ):
        before = len(timed)
        choose(now(), *candidates, shape=shape)
        assert len(timed) == before + 10


def refuses() -> Any:
    raise torch.OutOfMemoryError("too large\nin detail")


@pytest.mark.parametrize("prepare", [refuses, lambda: refuses])
def test_candidates_that_cannot_run(prepare: Callable[[], Any]) -> None:
    """They are skipped with the reason. If the default cannot run, nothing is stored."""
    measurements = now()
    assert choose(measurements, RULE, candidate("other", prepare), THIRD) == "third"
    (event,) = measurements.log.of("choice")
    assert event.details["failures"] == {"other": "OutOfMemoryError: too large"}
    assert "other failed (OutOfMemoryError: too large)" in event.reason
    assert choose(now(), candidate("rule", prepare), OTHER) == "rule"
    new_process()
    assert choose(now(), candidate("rule"), OTHER) == "other"


def test_nothing_is_timed_while_a_graph_is_captured(timed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    measurements = later()
    with monkeypatch.context() as patch:
        patch.setattr(measuring, "can_measure", lambda device: False)
        assert choose(now()) == choose(measurements) == "rule"
        measurements.measure_pending()
        assert measurements.pending and not timed
    measurements.measure_pending()
    assert timed and not measurements.pending


def test_deterministic_algorithms(timed: list[str]) -> None:
    choose(now())
    with deterministic_algorithms():
        assert choose(now()) == choose(later()) == "rule"
        assert choose(later(), shape=(5,)) == "rule" and len(timed) == 10
    assert choose(now()) == "other"


def test_where_nothing_can_be_stored(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All processes have to choose the same, so the default is used."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("THUNDER_CACHE_DIR", str(tmp_path / "file"))
    measurements = now()
    assert choose(measurements) == "rule"
    assert "cannot be stored" in measurements.log.of("choice")[0].reason


def test_one_thread_times_at_a_time(timed: list[str]) -> None:
    """Another thread goes on with its call, and its candidates stay pending."""
    found: list[int] = []
    second = later()
    choose(second, shape=(7,))

    def prepare() -> Callable[[], Any]:
        thread = threading.Thread(target=second.measure_pending)
        thread.start()
        thread.join()
        found.append(len(second.pending))
        return nothing

    first = later()
    choose(first, RULE, candidate("other", prepare))
    first.measure_pending()
    assert found == [1] and not first.pending


def test_the_program_is_not_disturbed() -> None:
    """Candidates run without gradients and autocast, and draw no random numbers of the program."""
    states: list[tuple[bool, bool]] = []

    def run() -> None:
        torch.rand(3)
        states.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))

    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        choose(now(), RULE, candidate("other", lambda: run))
    assert torch.equal(torch.rand(2), expected) and set(states) == {(False, False)}


def test_expected(timed: list[str]) -> None:
    """What is expected is never timed, and decides nothing."""
    measurements = now()
    args: Any = "operation", (2, 3), (RULE, OTHER), "cpu"
    assert measurements.expect(*args) == "rule" and not timed
    assert choose(measurements) == measurements.expect(*args) == "other"
    new_process()
    assert measurements.expect(*args) == "other"


def test_reports() -> None:
    measurements = now()
    choose(measurements)
    (event,) = measurements.log.of("choice")
    assert event.reason == "operation: other (the default is rule), measured: other 1 ms, rule 2 ms"
    assert str(MeasuredChoice.of_details(event.details)) == event.reason


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="different names"):
        choose(now(), RULE, RULE)
    with pytest.raises(TypeError, match=r"pass its name, e\.g\. str\(dtype\)"):
        choose(now(), shape=(torch.float32,))


def test_the_clock() -> None:
    calls: list[None] = []
    assert time_run("a", lambda: calls.append(None), torch.device("cpu")) >= 0 and len(calls) == 4


@given(st.integers(1, 1 << 40))
def test_size_classes(size: int) -> None:
    """A class is at most half as large again, and keeps what divides the size."""
    bound, aligned = size_class(size)
    assert size <= bound < size * 1.5 and size_class(bound)[0] == bound
    assert size % aligned == 0 and (aligned == 16 or size % (2 * aligned))
    assert bound == size or size > 16


def test_shape_classes() -> None:
    def proxy(*shape: Any, dtype: Any = torch.float32) -> TensorProxy:
        return TensorProxy("x", shape=shape, device="cpu", dtype=dtype)

    assert shape_class_of(proxy(4, 33), None, scale=0.5) == shape_class_of(proxy(4, 47), None, scale=0.5)
    assert shape_class_of(proxy(4, 33)) != shape_class_of(proxy(4, 32))
    assert shape_class_of(proxy(4)) != shape_class_of(proxy(4, dtype=torch.float16)) != shape_class_of(proxy(4), 1)
    assert shape_class_of(proxy(4), [proxy(2), 1]) == shape_class_of(proxy(4), (proxy(2), 1))
    assert shape_class_of(proxy(4), object()) is None is shape_class_of((object(),))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.complex64])
def test_examples(dtype: torch.dtype) -> None:
    like = TensorProxy("x", shape=(2, 3), device="cpu", dtype=dtype)
    state = torch.get_rng_state()
    x = example_tensor(like, strides=(1, 2))
    assert (x.shape, x.stride(), x.dtype) == ((2, 3), (1, 2), dtype) and torch.equal(torch.get_rng_state(), state)
    assert (x.to(torch.complex64).abs() <= 1.5).all() and (x.to(torch.complex64) != 0).any()
    assert torch.equal(x.to(torch.complex64), example_tensor(like, strides=(1, 2)).to(torch.complex64))


def test_examples_of_whole_numbers() -> None:
    of = {d: example_tensor(TensorProxy("x", shape=(2,), device="cpu", dtype=d)) for d in (torch.bool, torch.int64)}
    assert of[torch.bool].all() and not of[torch.int64].any()
