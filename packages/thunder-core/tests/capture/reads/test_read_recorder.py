# SPDX-License-Identifier: Apache-2.0
"""How reads are seen: hooks of classes, code that runs, other threads, and what happens where neither can be had."""

from __future__ import annotations

import contextlib
import cProfile
import functools
import gc
import profile
import sys
import threading
import time
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any

import pytest
import torch
from outcomes import in_threads

import thunder
from thunder.capture.base.sources import Argument, Root
from thunder.capture.reads import bytecode, hooks, libraries

X = torch.linspace(-1, 1, 4)


class Options:
    def __init__(self, scale: float = 2.0):
        self.scale = scale
        self.unread = 0


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.options = Options()

    def forward(self, x: Any) -> Any:
        return self.inner(x) * self.options.scale


def prologue_of(jitted: Any) -> str:
    return str(thunder.last_prologue_traces(jitted)[-1])


def test_what_a_prologue_looks_at() -> None:
    net = Net()
    jitted = thunder.jit(net)
    jitted(X)
    text = prologue_of(jitted)
    assert "Net.options.scale was 2.0" in text
    assert "unread" not in text
    assert "'forward' in" in text
    assert text.count(".accepts(") == 1


def test_code_says_what_it_reads() -> None:
    def f(x: Any) -> Any:
        return torch.nn.functional.relu(x) + len(Options().unread)  # type: ignore[arg-type]

    assert set(bytecode.global_loads(f.__code__)) >= {("torch", "nn", "functional", "relu"), ("len",), ("Options",)}
    assert {"nn", "functional", "relu", "unread"} <= set(bytecode.attribute_names(f.__code__))
    assert libraries.is_library(torch.nn.Module.__call__.__code__.co_filename)
    assert libraries.is_library(functools.wraps.__code__.co_filename)
    assert not libraries.is_library(f.__code__.co_filename)


def test_sources_as_text() -> None:
    net = Root(object(), title="net")
    weight = net.variable("_modules").item("inner").variable("_parameters").item("weight")
    assert str(weight) == "net.inner.weight"
    assert str(Argument(0, "batch").variable("x").item(0)) == "batch.x[0]"
    assert str(net.variable("table").item("a")) == "net.table['a']"
    assert weight.label == "inner_weight"


@pytest.mark.parametrize("cls", [functools.partial, threading.local, int, dict, torch.Tensor, type])
def test_classes_that_are_never_hooked(cls: type) -> None:
    assert not hooks.can_hook(cls)
    assert hooks.can_hook(Options)
    assert hooks.can_hook(torch.nn.Linear)


@pytest.mark.parametrize("name", ["<stdin>", "/bin/train", None])
def test_classes_of_a_script_are_hooked_whatever_its_name(monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    """Only the classes of extension modules are not."""
    monkeypatch.setattr(sys.modules[__name__], "__file__", name)
    assert hooks.can_hook(Options)
    monkeypatch.setattr(sys.modules[__name__], "__file__", f"cython{EXTENSION_SUFFIXES[0]}")
    assert not hooks.can_hook(Options)


def test_a_budget_of_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is spent objects are read as a whole: more is guarded than was read, and nothing is missed."""

    class Once:
        kind = 1.0

        def __init__(self) -> None:
            self.scale = 2.0
            self.unread = 0

        @property
        def double(self) -> float:
            return self.scale * 2

    o = Once()
    monkeypatch.setattr(hooks, "MAX_INSTALLS", 2)
    for n in range(2):
        jitted = thunder.jit(lambda x: x * o.double + o.kind)
        for scale in (2.0, 3.0):
            o.scale = scale
            torch.testing.assert_close(jitted(X), X * (scale * 2) + 1.0)
            torch.testing.assert_close(jitted(X), X * (scale * 2) + 1.0)
        assert thunder.cache_misses(jitted) == 2
        o.unread += 1
        jitted(X)
        assert thunder.cache_misses(jitted) == (3 if n else 2)
    monkeypatch.setattr(Once, "kind", 5.0)
    torch.testing.assert_close(jitted(X), X * 6.0 + 5.0)


def scaled(fn: Any) -> Any:
    @functools.wraps(fn)
    def wrapper(self: Any, x: Any) -> Any:
        return fn(self, x) * self.scale

    return wrapper


class Decorated(torch.nn.Module):
    """Its methods are what decorators made of them, one of them torch's."""

    scale = 2.0

    @torch.no_grad()
    @scaled
    def forward(self, x: Any) -> Any:
        return self.other(x) + 1

    @scaled
    def other(self, x: Any) -> Any:
        return x - 1


@pytest.mark.parametrize("budget", [0, 200])
def test_decorated_methods(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that many methods share, and methods behind a decorator of torch's, are found with and without hooks."""
    monkeypatch.setattr(hooks, "MAX_INSTALLS", budget)
    model = Decorated()
    jitted = thunder.jit(model)
    for _ in range(2):
        torch.testing.assert_close(jitted(X), model(X))
    assert (thunder.cache_misses(jitted), thunder.cache_hits(jitted)) == (1, 1), thunder.explain(jitted)
    monkeypatch.setattr(Decorated, "other", lambda self, x: x * 5)
    torch.testing.assert_close(jitted(X), model(X))
    assert thunder.cache_misses(jitted) == 2
    monkeypatch.setattr(Decorated, "forward", torch.no_grad()(scaled(lambda self, x: x)))
    torch.testing.assert_close(jitted(X), model(X))
    assert thunder.cache_misses(jitted) == 3


def plain_profiler() -> contextlib.AbstractContextManager[Any]:
    """Profile with a function."""
    stack = contextlib.ExitStack()
    stack.callback(sys.setprofile, sys.getprofile())
    sys.setprofile(seen_by_profiler)
    return stack


def seen_by_profiler(frame: Any, event: str, arg: Any) -> None:
    """See nothing."""


@pytest.mark.parametrize("profiler", [plain_profiler, cProfile.Profile])
def test_profilers_that_can_be_interrupted(profiler: Callable[[], Any]) -> None:
    """Tracing sees which code runs, and the profiler goes on afterwards."""
    with profiler():
        active = sys.getprofile()
        check_events()
        assert sys.getprofile() is active


def test_cprofile_knows_where_it_is() -> None:
    """The functions around a first call have all of their time, and those that it calls have no other time."""

    def f(x: Any) -> Any:
        return x.sin()

    def inner() -> None:
        thunder.jit(f)(X)
        with pytest.raises(ZeroDivisionError):
            thunder.jit(lambda x: x / (1 // 0))(X)
        time.sleep(0.05)

    def outer() -> None:
        inner()
        time.sleep(0.05)

    profiler = cProfile.Profile()
    profiler.enable()
    outer()
    time.sleep(0.05)
    profiler.disable()
    entries: dict[Any, Any] = {e.code: e for e in profiler.getstats()}  # type: ignore[attr-defined, unused-ignore]
    assert entries[outer.__code__].totaltime > entries[inner.__code__].totaltime > 0.05
    for function, called in ((inner, time.sleep), (outer, time.sleep), (outer, inner)):
        code = getattr(called, "__code__", "<built-in method time.sleep>")
        assert code in [call.code for call in entries[function.__code__].calls]


def starts_thread(x: Any) -> Any:
    """Compute with what another thread reads."""
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(K))
    thread.start()
    thread.join()
    return x * found[0]


@pytest.mark.parametrize("program", [starts_thread, lambda x: helper(x)])
@pytest.mark.filterwarnings("ignore:.*runs eagerly")
def test_other_profilers(program: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A profiler that must not miss a call goes on. Calls run eagerly, since tracing would not see what they do."""
    if sys.version_info >= (3, 12):
        monkeypatch.setattr(hooks, "_TOOLS", ())
    profiler, jitted = profile.Profile(), thunder.jit(program)
    gc.collect()
    gc.disable()  # a collection while the profiler runs can end it: it was seen to be gone after the first call
    try:
        sys.setprofile(profiler.dispatcher)  # type: ignore[attr-defined, unused-ignore]
        for value in (2.0, 2.0, 3.0):
            monkeypatch.setitem(globals(), "K", value)
            torch.testing.assert_close(jitted(X), X * value)
    finally:
        sys.setprofile(None)
        gc.enable()
    assert "another profiler runs" in thunder.explain(jitted)
    assert thunder.cache_hits(jitted) == thunder.cache_misses(jitted) == 0


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="torch's profiler is no longer in the way")
def test_functions_compile_when_the_profiler_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profiler of torch that records stacks keeps a function from being compiled, and no longer."""
    jitted = thunder.jit(helper)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True):
        for value in (2.0, 2.0, 3.0):
            monkeypatch.setitem(globals(), "K", value)
            assert torch.equal(jitted(X), X * value)
    for _ in range(3):
        assert torch.equal(jitted(X), X * 3)
    assert (thunder.cache_misses(jitted), thunder.cache_hits(jitted)) == (1, 2)


def test_a_transformed_function_under_another_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs as the transform of torch.func."""
    monkeypatch.setattr(hooks, "_TOOLS", ())
    monkeypatch.setattr(hooks, "_suspension", lambda profiler: None)
    with pytest.warns(thunder.FallbackWarning, match="another profiler runs"):
        assert torch.equal(thunder.vmap(helper)(X), torch.vmap(helper)(X))


@pytest.mark.parametrize("profiler", [plain_profiler, cProfile.Profile])
@pytest.mark.filterwarnings("ignore:.*runs eagerly")
def test_what_threads_read_under_a_profiler(profiler: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting a thread is a call of a C function, which tracing has to see."""
    jitted = thunder.jit(starts_thread)
    with profiler():
        for value in (2.0, 2.0, 3.0):
            monkeypatch.setitem(globals(), "K", value)
            torch.testing.assert_close(jitted(X), X * value)


K = 2.0


def helper(x: Any) -> Any:
    return x * K


def check_events() -> None:
    global K
    net = Net()
    jitted = thunder.jit(lambda x: helper(net(x)))
    for value in (2.0, 3.0, 3.0):
        K = value
        torch.testing.assert_close(jitted(X), helper(net(X)))
    assert thunder.cache_misses(jitted) == 2
    net.options.scale = 5.0
    torch.testing.assert_close(jitted(X), helper(net(X)))
    assert thunder.cache_misses(jitted) == 3
    K = 2.0


def test_other_threads_see_nothing() -> None:
    net = Net()
    seen: list[Any] = []
    inside, done = threading.Lock(), threading.Lock()
    for fn in (inside.release, done.acquire):
        thunder.assume_pure(fn)
    inside.acquire()
    done.acquire()

    class Slow(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Any) -> Any:
            inside.release()
            assert done.acquire(timeout=30)
            return self.net(x)

    def other() -> None:
        assert inside.acquire(timeout=30)
        net.options.later = 1  # type: ignore[attr-defined]
        seen.append((type(net(X)), net.options.unread))
        done.release()

    thread = threading.Thread(target=other)
    thread.start()
    jitted = thunder.jit(Slow())
    jitted(X)
    thread.join()
    assert seen == [(torch.Tensor, 0)]
    assert "unread" not in prologue_of(jitted)


def test_several_threads_call_and_trace() -> None:
    nets = [Net() for _ in range(4)]
    jitted = [thunder.jit(n) for n in nets]
    failures: list[BaseException] = []

    def run(n: int) -> None:
        try:
            for i in range(6):
                x = torch.full((4,), float(i))
                torch.testing.assert_close(jitted[(n + i) % 4](x), nets[(n + i) % 4](x))
        except BaseException as error:
            failures.append(error)

    in_threads(run, [(n,) for n in range(4)])
    assert not failures
    assert all(thunder.cache_misses(j) <= 4 for j in jitted)


def test_a_trace_inside_a_trace() -> None:
    net = Net()
    inner = thunder.jit(net)

    def f(x: Any) -> Any:
        return inner(x) + 1

    jitted = thunder.jit(f)
    torch.testing.assert_close(jitted(X), net(X) + 1)
    net.options.scale = 4.0
    torch.testing.assert_close(jitted(X), net(X) + 1)
    jitted(X)
    assert (thunder.cache_hits(jitted), thunder.cache_misses(jitted)) == (1, 2)


def test_an_object_that_no_path_leads_to() -> None:
    hidden = Options()

    def f(x: Any) -> Any:
        return x * next(o for o in gc_objects() if o is hidden).scale

    def gc_objects() -> Any:
        import gc

        return [o for o in gc.get_objects() if type(o) is Options]

    del f
    found = [hidden]
    jitted = thunder.jit(lambda x: x * iter(found).__next__().scale)
    torch.testing.assert_close(jitted(X), X * 2.0)
    hidden.scale = 3.0
    torch.testing.assert_close(jitted(X), X * 3.0)


def test_objects_that_the_program_makes() -> None:
    jitted = thunder.jit(lambda x: x * Options(3.0).scale)
    for _ in range(3):
        torch.testing.assert_close(jitted(X), X * 3.0)
    assert (thunder.cache_hits(jitted), thunder.compile_stats(jitted).uncacheable) == (2, None)


@pytest.mark.parametrize(
    "name",
    [
        "nn.modules.module.BackwardHook", "nn.modules.transformer._detect_is_causal_mask", "compile", "cond", "vmap",
        "func.grad", "_check", "manual_seed", "utils.checkpoint.checkpoint", "nn.init._no_grad_trunc_normal_",
        "compiler._is_compiling_flag", "nn.modules.module.Module", "autograd.Function.apply",
    ],
)  # fmt: skip
def test_what_is_replaced_while_tracing_is_read(name: str, watch: Any) -> None:
    """A program that reads by attribute what is another function while it is traced is cached after its first call."""
    scope = {"torch": torch}
    exec(f"def fn(x):\n    torch.{name}\n    return x + 1", scope)
    watch(scope["fn"])


def test_a_replaced_function_is_guarded(watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard is on torch's own function, which stands there when no program is traced."""
    w = watch(lambda x: (torch._check(True), x + 1)[1])
    w.kept()
    monkeypatch.setattr(torch, "_check", lambda *args: None)
    w.changed()
