# SPDX-License-Identifier: Apache-2.0
"""Several threads trace and call at once; what the others find meanwhile is what there was."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

import thunder
from thunder.capture.base.phase import TracerPhase, pause_reads
from thunder.capture.reads.kinds import objects
from thunder.runtime import lock


class Schedule:
    """Numbers that change at each call."""

    def __init__(self) -> None:
        self.rate, self.step = 0.5, 1
        self.table = {"k": 3}


SCHEDULE = Schedule()
SCALE = 1.0


def beside(fn: Callable[[], Any]) -> threading.Thread:
    """Call `fn` on another thread, and let it run until it waits or ends; thunder does not see this."""
    with TracerPhase():
        thread = threading.Thread(target=fn)
        thread.start()
        thread.join(0.2)
    return thread


def test_numbers_that_are_inputs_are_numbers_elsewhere() -> None:
    """While a program is traced, symbols stand for them in the objects that hold them."""
    schedule = SCHEDULE
    found: list[Any] = []
    others: list[threading.Thread] = []

    def elsewhere() -> None:
        s = schedule
        found[:] = [
            type(s.rate * 2), type(s.step + 1), type(-s.step), type(1 - s.rate), type(s.table["k"] // 2),
            type(SCALE**2), type(abs(s.rate)), type(s.step / 2), type(s.rate < 1), type(f"{s.step}"),
            len(range(s.step)) == s.step, float(torch.ones((), dtype=torch.float64) * s.rate) == s.rate,
            torch.zeros(s.step).shape[0],
        ]  # fmt: skip

    def start() -> None:
        with TracerPhase():
            others.append(beside(elsewhere))

    @thunder.jit
    def f(x: Any) -> Any:
        y = x * schedule.rate + schedule.step + schedule.table["k"] + SCALE
        start()
        return y

    try:
        for _ in range(5):
            schedule.rate *= 0.9
            schedule.step += 1
            schedule.table["k"] += 1
            globals()["SCALE"] *= 1.1
            found.clear()
            f(torch.ones(2))
            while others:
                others.pop().join()
                kinds = [float, int, int, float, int, float, float, float, bool, str]
                assert found == [*kinds, True, True, schedule.step]
        assert thunder.cache_misses(f) < 5
    finally:
        globals()["SCALE"] = 1.0


def test_many_threads() -> None:
    """Each gets its own results, whoever traces."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    jnet = thunder.jit(net)
    inputs = [torch.randn(1 + i % 5, 4) for i in range(40)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(jnet, inputs))
    for x, found in zip(inputs, results):
        torch.testing.assert_close(found, net(x))


def test_torch_is_untouched_elsewhere() -> None:
    seen: list[Any] = []

    def elsewhere() -> None:
        x = torch.ones(2, requires_grad=True)
        y = torch.func.grad(lambda t: t.sin().sum())(x)
        z = torch.vmap(torch.sin)(x)
        seen.append((type(y), type(z), bool(torch.compiler.is_compiling()), type(torch.rand(2)), int(x.sum())))

    class Watching(nn.Module):
        def forward(self, x: Any) -> Any:
            beside(elsewhere)
            return x * int(x.sum())

    thunder.jit(Watching())(torch.ones(3))
    assert set(seen) == {(torch.Tensor, torch.Tensor, False, torch.Tensor, 2)}


def test_threads_call_and_trace_at_once() -> None:
    """Each gets its own results, and those that do not trace see torch as it is."""
    failed: list[BaseException] = []
    stop = threading.Event()
    shared = thunder.jit(lambda x, n: (x * n).sin().sum())
    start = threading.Barrier(4)

    def tracer(k: int) -> None:
        try:
            start.wait()
            for i in range(12):
                x = torch.full((i % 3 + 1,), float(k))
                own = thunder.jit(lambda x, i=i: x * i + k)
                torch.testing.assert_close(own(x), x * i + k)
                torch.testing.assert_close(shared(x, k), (x * k).sin().sum())
        except BaseException as error:
            failed.append(error)

    def bystander() -> None:
        try:
            start.wait()
            module = torch.nn.Linear(3, 3)
            while not stop.is_set():
                y = module(torch.ones(2, 3)).relu()
                assert type(y) is torch.Tensor
                assert not torch.compiler.is_compiling()
                y.sum().backward()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=tracer, args=(k,)) for k in range(3)] + [threading.Thread(target=bystander)]
    for t in threads:
        t.start()
    for t in threads[:3]:
        t.join()
    stop.set()
    threads[3].join()
    assert not failed
    assert thunder.cache_misses(shared) + thunder.cache_hits(shared) == 36


# -- what a program changes while it is traced -------------------------------------------------------------------------
class Counting(nn.Module):
    """A module whose calls assign a number, a buffer and an entry of a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3))
        self.mean: torch.Tensor
        self.calls = 0
        self.table = {"last": torch.zeros(3)}
        self.tag = "before"
        self.meanwhile: Callable[[], None] = lambda: None

    def forward(self, x: Any) -> Any:
        y = self.linear(x)
        self.calls += 1
        self.mean = 0.9 * self.mean + y.mean(0).detach()
        self.table["last"] = self.mean * 2
        ask(self)
        return y + self.mean


def ask(net: Counting) -> None:
    """Call the test's function while the program is traced."""
    with TracerPhase():
        net.__dict__["meanwhile"]()


def test_eager_code_elsewhere_finds_what_there_was_before() -> None:
    net = Counting()
    jitted = thunder.jit(net, sharp_edges="error")  # a handle that reached another thread would end the trace
    found: dict[str, Any] = {}
    others: list[threading.Thread] = []

    def reads(name: str, read: Callable[[], Any]) -> None:
        def on_thread() -> None:
            try:
                found[name] = read()
            except BaseException as error:
                found[name] = error

        others.append(beside(on_thread))

    def meanwhile() -> None:
        reads("calls", lambda: net.calls)
        reads("mean", lambda: type(net.mean))
        reads("state_dict", lambda: {type(x) for x in net.state_dict().values()})
        reads("buffers", lambda: [type(x) for _, x in net.named_buffers()])
        reads("parameters", lambda: len(list(net.parameters())))
        reads("vars", lambda: type(vars(net)["_buffers"]["mean"]))
        reads("copy", lambda: type(copy.copy(net).mean))
        reads("deepcopy", lambda: type(copy.deepcopy(net.linear).weight))
        reads("pickle", lambda: len(pickle.dumps(net.linear)) > 0)
        reads("eager", lambda: type(nn.Module.__call__(net.linear, torch.ones(2, 3))))

    net.meanwhile = meanwhile
    jitted(torch.ones(2, 3))
    for thread in others:
        thread.join()
    assert found == {
        "calls": 1, "mean": torch.Tensor, "state_dict": {torch.Tensor}, "buffers": [torch.Tensor], "parameters": 2,
        "vars": torch.Tensor, "copy": torch.Tensor, "deepcopy": nn.Parameter, "pickle": True, "eager": torch.Tensor,
    } or found["calls"] == 0  # fmt: skip


def test_cached_calls_elsewhere_wait_for_the_program() -> None:
    """A prologue reads objects, in which it must not find the handles and symbols of another thread's program."""
    net = Counting()
    jitted = thunder.jit(net)
    calls: list[Any] = []
    others: list[threading.Thread] = []

    def call() -> None:
        with torch.no_grad():
            calls.append((type(jitted(torch.ones(2, 3))), thunder.cache_hits(jitted)))

    def meanwhile() -> None:
        if armed and not others:
            others.append(beside(call))

    armed: list[bool] = []
    net.meanwhile = meanwhile
    with torch.no_grad():
        for _ in range(6):
            jitted(torch.ones(2, 3))
        hits, misses = thunder.cache_hits(jitted), thunder.cache_misses(jitted)
        assert hits > 1
        armed.append(True)
        jitted(torch.ones(4, 3))  # traces
        others[0].join()
    assert calls == [(torch.Tensor, hits + 1)]
    assert thunder.cache_misses(jitted) == misses + 1
    assert type(net.table["last"]) is torch.Tensor


@pytest.mark.parametrize("name", ["tag", "calls", "mean", "extra", "deleted"])
def test_assignments_elsewhere_are_neither_repeated_nor_undone(name: str) -> None:
    """Those to attributes of an object that the program uses wait for its end."""
    net = Counting()
    net.__dict__["deleted"] = 1
    values: dict[str, Any] = {"tag": "after", "calls": 100, "mean": torch.full((3,), 5.0), "extra": "new"}
    jitted = thunder.jit(net)
    others: list[threading.Thread] = []

    def assign() -> None:
        if name == "deleted":
            del net.deleted
        else:
            setattr(net, name, values[name])

    net.meanwhile = lambda: others.append(beside(assign))
    with torch.no_grad():
        jitted(torch.ones(2, 3))
        others.pop().join()
        net.meanwhile = lambda: None
        if name == "deleted":
            assert not hasattr(net, "deleted")
            net.deleted = 2
        elif name in ("tag", "extra"):
            assert getattr(net, name) == values[name]
            setattr(net, name, "later")
        before = net.calls
        assert before in (1, 100, 101)
        jitted(torch.ones(2, 3))
        assert net.calls == before + 1
        if name in ("tag", "extra"):
            assert getattr(net, name) == "later"
        assert name != "deleted" or net.deleted == 2


def test_assignment_in_a_program_that_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other thread waits for a limited time. Its value survives, and the trace is not cached."""
    monkeypatch.setattr("thunder.capture.reads.hooks.MAX_WAIT", 0.1)
    net = Counting()
    jitted = thunder.jit(net)

    def meanwhile() -> None:
        thread = threading.Thread(target=lambda: setattr(net, "tag", "after"))
        thread.start()
        thread.join()

    net.tag = "before"
    net.meanwhile = meanwhile
    jitted(torch.ones(2, 3))
    assert "another thread assigned the attribute `tag`" in thunder.explain(jitted)
    assert net.tag == "after"
    net.meanwhile = lambda: None
    net.tag = "later"
    jitted(torch.ones(2, 3))
    assert net.tag == "later"
    assert net.calls == 2


def test_epilogues_elsewhere_are_not_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cached call on another thread assigns what it assigns after the program."""
    log: list[int] = []
    others: list[threading.Thread] = []

    def append(x: Any) -> Any:
        log.append(1)
        return x + 1

    net = Counting()

    def reading(x: Any) -> Any:
        y = x * len(log)
        ask(net)
        return y

    net.meanwhile = lambda: others.append(beside(lambda: appends(torch.ones(2))))
    appends, reads = thunder.jit(append), thunder.jit(reading)
    appends(torch.ones(2))
    appends(torch.ones(2))
    assert reads(torch.ones(2)).tolist() == [2.0, 2.0]
    others[0].join()
    assert log == [1, 1, 1]
    assert reads(torch.ones(2)).tolist() == [3.0, 3.0]


def test_threads_that_miss_together_compile_once() -> None:
    net = nn.Linear(3, 3)
    jitted = thunder.jit(net)
    start = threading.Barrier(6)

    def call() -> None:
        start.wait()
        jitted(torch.ones(2, 3))

    threads = [threading.Thread(target=call) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert thunder.cache_misses(jitted) == 1
    assert thunder.cache_hits(jitted) == 5


# -- forks ------------------------------------------------------------------------------------------------------------
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_fork_while_a_thread_traces() -> None:
    """The fork waits for the end of the trace. The child finds the objects without handles, and can trace."""
    net = Counting()
    # Torch itself hangs in a child that was forked during an operation's first call.
    (net(torch.ones(2, 3)) * 2).tolist()
    jitted = thunder.jit(net)
    status: list[int] = []

    def fork() -> None:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                whole = type(net.calls) is int and type(net.mean) is torch.Tensor and not lock.runs.is_mine
                y = thunder.jit(lambda x: x * 2 + net.calls)(torch.ones(2))
                whole = whole and y.tolist() == [2.0 + net.calls] * 2
                thread = threading.Thread(target=lambda: jitted(torch.ones(2, 3)), daemon=True)
                thread.start()
                thread.join(20)
                code = 0 if whole and not thread.is_alive() else 2
            finally:
                os._exit(code)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            done, found = os.waitpid(pid, os.WNOHANG)
            if done:
                status.append(os.waitstatus_to_exitcode(found))
                return
            time.sleep(0.01)
        os.kill(pid, 9)
        os.waitpid(pid, 0)

    others: list[threading.Thread] = []
    net.meanwhile = lambda: others.append(beside(fork))
    with torch.no_grad():
        jitted(torch.ones(2, 3))
    net.meanwhile = lambda: None
    others[0].join()
    assert status == [0]


FIRST_IMPORT = """
import os, signal, sys, threading, time, torch, thunder

started = threading.Event()

class Slow:  # the import of the compiler takes a while, and its lock is held
    def find_spec(self, name, path, target=None):
        if name == "thunder.frontend.compiler" and not started.is_set():
            started.set()
            time.sleep(0.5)

sys.meta_path.insert(0, Slow())
torch.ones(2) * 2  # torch itself hangs in a child that was forked during an operation's first call
jitted = thunder.jit(lambda x: x * 2)
first = threading.Thread(target=lambda: jitted(torch.ones(2)))
first.start()
started.wait()
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    os._exit(int(jitted(torch.ones(3)).tolist() != [2.0] * 3))
first.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_fork_while_a_thread_imports_the_compiler() -> None:
    """The fork waits for the import, whose lock the child would wait for."""
    command = [sys.executable, "-c", FIRST_IMPORT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_fork_does_not_keep_the_lock() -> None:
    pid = os.fork()
    if pid == 0:
        free = threading.Thread(target=lambda: os._exit(0 if lock.tracing_lock.acquire(timeout=5) else 1))
        free.start()
        free.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    taken: list[bool] = []
    thread = threading.Thread(target=lambda: taken.append(lock.tracing_lock.acquire(timeout=5)))
    thread.start()
    thread.join()
    assert taken == [True]
    lock.tracing_lock._at_fork_reinit()


MONITORING = sys.version_info >= (3, 12)


def stop_monitoring() -> None:
    """End the events that thunder asked for."""
    with TracerPhase():
        monitoring: Any = sys.modules["sys"].monitoring
        for tool in (3, 4):
            if (monitoring.get_tool(tool) or "").startswith("thunder"):
                monitoring.set_events(tool, 0)


# -- recording that was cut short -------------------------------------------------------------------------------------
class Interrupt(Exception):
    """Raised by a signal handler in thunder's code."""


class Read:
    """An object that a program reads."""

    value = 2.0

    def __init__(self) -> None:
        self.scale = 3.0


def test_trace_is_not_cached_after_an_interrupted_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program catches the exception and goes on with a value that no guard checks."""
    from thunder.capture.reads.attributes import AttributeReads

    obj, original, raised = Read(), AttributeReads._read, []

    def interrupted(self: Any, thing: Any, name: str) -> None:
        if thing is obj and name == "scale" and not raised:
            self.seen[id(thing), name] = None
            raised.append(name)
            raise Interrupt
        original(self, thing, name)

    def program(x: Any) -> Any:
        try:
            scale = obj.scale
        except Interrupt:
            scale = obj.scale
        return x * scale

    monkeypatch.setattr(AttributeReads, "_read", interrupted)
    jitted = thunder.jit(program)
    assert jitted(torch.ones(1)).tolist() == [3.0]
    assert "an exception that interrupted" in thunder.explain(jitted)
    assert raised
    obj.scale = 5.0
    assert jitted(torch.ones(1)).tolist() == [5.0]


def test_trace_is_not_cached_if_the_phase_was_lost() -> None:
    """An exception between two lines of `TracerPhase.__enter__` leaves the reads of the program paused."""
    obj, raised = Read(), []

    def program(x: Any) -> Any:
        lose()
        return x * obj.scale

    def lose() -> None:
        if not raised:
            raised.append(1)
            pause_reads()

    jitted = thunder.jit(program)
    assert jitted(torch.ones(1)).tolist() == [3.0]
    assert "an exception that interrupted" in thunder.explain(jitted)
    obj.scale = 5.0
    assert jitted(torch.ones(1)).tolist() == [5.0]


def test_trace_is_not_cached_without_the_profiler() -> None:
    """A program that replaces the profiler by means that thunder does not see."""
    obj, first = Read(), [True]

    def program(x: Any) -> Any:
        if first:
            end_watch()
        return x * obj.scale

    def end_watch() -> None:
        with TracerPhase():
            first.clear()
            if MONITORING:
                stop_monitoring()
        if not MONITORING:
            other = TracerPhase()
            other.__enter__()
            other._paused = other._paused[0], False  # as if the profiler had been turned off in between
            other.__exit__()

    jitted = thunder.jit(program)
    assert jitted(torch.ones(1)).tolist() == [3.0]
    assert "replaces the interpreter's profiler" in thunder.explain(jitted)
    obj.scale = 5.0
    assert jitted(torch.ones(1)).tolist() == [5.0]


def test_an_assignment_while_an_object_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread's assignment right after the snapshot of the object waits for the program, and is not undone."""
    taken = objects.snapshots_of
    holder = types.SimpleNamespace(thread=None)

    class Settings:
        tag = "a"

    settings = Settings()
    settings.tag = "a"

    def snapshots_of(source: Any, obj: Any) -> Any:
        found = taken(source, obj)
        if obj is settings and holder.thread is None:
            holder.thread = threading.Thread(target=setattr, args=(settings, "tag", "b"))
            holder.thread.start()
            time.sleep(0.1)
        return found

    monkeypatch.setattr(objects, "snapshots_of", snapshots_of)
    jitted = thunder.jit(lambda x: x * (2 if settings.tag == "a" else 3))
    jitted(torch.ones(2))
    holder.thread.join(20)
    assert settings.tag == "b"
    assert jitted(torch.ones(2)).tolist() == [3.0, 3.0]
