# SPDX-License-Identifier: Apache-2.0
"""The record of events: what it contains, that it is bounded, and that it is safe to append from several threads."""

from __future__ import annotations

import gc
import json
import weakref

import pytest
import torch
from outcomes import in_threads

import thunder
from thunder.core import events
from thunder.core.events import Event, EventLog, current_log, recent_events
from thunder.core.state import SourceLine


def kinds(jitted) -> list[str]:
    return [event.kind for event in thunder.compile_stats(jitted).events.of(*events.KINDS)]


def test_logs_are_bounded_and_recent_events_are_of_all() -> None:
    """A log keeps its last events only; the process keeps the last ones of all logs."""
    one, other = EventLog("one"), EventLog("other")
    for i in range(events.MAX_EVENTS + 10):
        one.add("guard", str(i))
    other.add("cache", "x", details={"dropped": 2})
    assert [e.reason for e in one.of("guard")] == [str(i) for i in range(10, events.MAX_EVENTS + 10)]
    assert [e.program for e in recent_events()[-2:]] == ["one", "other"]
    one.clear()
    assert not one.of(*events.KINDS)
    assert recent_events()[-2].program == "one"


def test_events_are_json() -> None:
    """With the line and the module; what is None is left out."""
    event = Event(
        "fallback", "thunder.jit(f)", "why", SourceLine("m.py", 3, "a (B)"), details={"scope": "call"}, time=1
    )
    assert json.loads(json.dumps(event.to_dict())) == {
        "kind": "fallback", "program": "thunder.jit(f)", "reason": "why", "time": 1, "scope": "call",
        "where": {"file": "m.py", "line": 3, "module": "a (B)"},
    }  # fmt: skip


def test_the_log_of_a_thread() -> None:
    """Nested, and restored after an error."""
    one, other = EventLog("one"), EventLog("other")
    outside = current_log()
    with one.active():
        with pytest.raises(ValueError, match="x"), other.active():
            assert current_log() is other
            raise ValueError("x")
        assert current_log() is one
    assert current_log() is outside
    assert outside.program == "thunder"


def test_listeners_see_each_event_of_each_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is lost."""
    seen: list[Event] = []
    monkeypatch.setattr(events, "listeners", [seen.append])
    log = EventLog("log")
    in_threads(lambda n: [log.add("guard", f"{n} {i}") for i in range(50)], [(n,) for n in range(4)])
    assert len({e.reason for e in seen}) == len(seen) == 200
    assert len(log.of("guard")) == 200


def test_what_a_function_records() -> None:
    """Compilations, also of backward programs, failed guards, fallbacks and dropped programs; not warm calls."""
    jitted = thunder.jit(lambda x, n: (x * n).sin())
    x = torch.ones(3, requires_grad=True)
    for _ in range(3):
        jitted(x, 2.0).sum().backward()
    assert kinds(jitted) == ["compile", "compile"]
    first, backward = thunder.compile_stats(jitted).events.of("compile")
    assert (first.reason, first.details["part"], first.details["executors"]) == (
        "no program was cached", "program", {"torch": first.details["operations"]},
    )  # fmt: skip
    assert first.details["guards"] > 3
    assert first.seconds is not None
    assert 0 < sum(seconds for _, seconds in first.details["passes"]) <= first.seconds
    assert backward.details["part"] == "backward"
    jitted(x, 3.0)
    assert kinds(jitted)[2:] == ["guard", "compile"]
    guard, again = thunder.compile_stats(jitted).events.of("guard", "compile")[2:]
    assert guard.reason == again.reason == "n was 2.0 and is 3.0"
    jitted._cache.clear()
    jitted(x, 3.0)
    jitted.reset()
    assert kinds(jitted)[-1] == "cache"
    assert thunder.compile_stats(jitted).events.of("cache")[0].details == {"dropped": 1}


def test_fallbacks_name_reason_line_and_module() -> None:
    """The first thing that is not supported, with its line."""

    class Draws(torch.nn.Module):
        def forward(self, x):
            return x + torch.ones(3).tolist().index(1.0) + id(x.untyped_storage()) * 0

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.draws = Draws()

        def forward(self, x):
            return self.draws(x)

    jitted = thunder.jit(Net())
    with pytest.warns(thunder.FallbackWarning, match="untyped_storage"):
        jitted(torch.ones(3))
    (event,) = thunder.compile_stats(jitted).events.of("fallback")
    assert event.where is not None
    assert (event.where.filename, event.where.module) == (__file__, "draws (Draws)")
    assert event.details["scope"] in ("call", "modules")


def test_programs_that_a_registration_makes_stale() -> None:
    """They are dropped at the next compilation, and the record says so."""
    jitted = thunder.jit(lambda x: x + 1)
    jitted(torch.ones(2))
    thunder.core.state.registrations[0] += 1
    jitted(torch.ones(2))
    (event,) = thunder.compile_stats(jitted).events.of("cache")
    assert event.details["dropped"] == 1


def test_events_keep_neither_traces_nor_tensors_alive() -> None:
    """The record outlives programs, and refers to them weakly."""
    jitted = thunder.jit(lambda x: x + 1)
    jitted(torch.ones(2))
    (event,) = thunder.compile_stats(jitted).events.of("compile")
    program = weakref.ref(thunder.last_traces(jitted)[-1])
    assert event.traces()[0] is program()
    del jitted
    gc.collect()
    assert program() is None
    assert not event.traces()
