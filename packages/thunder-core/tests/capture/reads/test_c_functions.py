# SPDX-License-Identifier: Apache-2.0
"""Calls of C functions: pure ones are part of a trace, others end it before they run."""

from __future__ import annotations

import collections
import datetime
import gc
import math
import operator
import os
import queue
import random
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import thunder
from thunder.capture.reads.c_functions import denied

X = torch.ones(2)
DRAWS = random.Random(0)
DRAW = random.random
QUEUE: queue.SimpleQueue[int] = queue.SimpleQueue()
LOCK = threading.Lock()
COUNTS = iter(range(1, 1000))


def next_of_iterator(x: Any) -> Any:
    return x * next(COUNTS)


def loop_over_iterator(x: Any) -> Any:
    for n in COUNTS:
        return x * n
    return x


# Each of these gives another result or has an effect at each call.
STATEFUL: dict[str, Callable[..., Any]] = {
    "a method in C": lambda x: x * DRAWS.random(),
    "a function under another name": lambda x: x * DRAW(),
    "as an argument": lambda x: x * sum(f() for f in [random.random]),
    "numpy": lambda x: x * float(np.random.rand()),
    "a date": lambda x: x * (datetime.datetime.now().year > 0),
    "a queue": lambda x: x * QUEUE.get_nowait(),
    "an iterator": next_of_iterator,
    "a loop over an iterator": loop_over_iterator,
    "a lock": lambda x: x * 2 if LOCK.acquire(blocking=False) else x,
    "a folder": lambda x: x * len(os.listdir(os.curdir)),
    "the collector": lambda x: x * (gc.get_count()[2] >= 0),
    "references": lambda x: x * (sys.getrefcount(X) > 0),
}


def seeded(f: Callable[..., Any], calls: int = 4) -> list[Any]:
    global COUNTS
    random.seed(1)
    DRAWS.seed(1)
    np.random.seed(1)
    COUNTS = iter(range(1, 1000))
    while not QUEUE.empty():
        QUEUE.get()
    for i in range(100):
        QUEUE.put(i)
    if LOCK.locked():
        LOCK.release()
    return [f(X) for _ in range(calls)]


@pytest.mark.parametrize("name", STATEFUL)
def test_a_stateful_function_runs_once_a_call(name: str) -> None:
    fn = STATEFUL[name]
    expected = seeded(fn)
    jitted = thunder.jit(fn)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = seeded(jitted)
    torch.testing.assert_close(results, expected)
    assert thunder.cache_hits(jitted) == 0
    assert thunder.cache_misses(jitted) == 2
    (warning,) = [str(w.message) for w in caught if "runs eagerly" in str(w.message)]
    assert __file__ in warning


PURE: dict[str, Callable[..., Any]] = {
    "math": lambda x: x * math.sqrt(4) * math.gcd(4, 6),
    "operators": lambda x: operator.mul(x, operator.itemgetter(0)([2.0])),
    "containers": lambda x: x * len(collections.deque([1, 2])) * sorted({3, 1})[0],
    "text": lambda x: x * len("a-b".partition("-")),
    "a builtin": lambda x: x * max(map(abs, [-2, 1])),
    "a torch function": lambda x: torch.cat([x, x]).view(-1),
    "a setting": lambda x: x * sys.getrecursionlimit(),
    "the working directory": lambda x: x * len(os.getcwd()),
}


@pytest.mark.parametrize("name", PURE)
def test_a_pure_function_is_part_of_the_trace(name: str) -> None:
    jitted = thunder.jit(PURE[name])
    for _ in range(3):
        torch.testing.assert_close(jitted(X), PURE[name](X))
    assert (thunder.cache_hits(jitted), thunder.cache_misses(jitted)) == (2, 1), thunder.explain(jitted)


def test_an_import_may_ask_for_modules(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that looks for another when it is imported, as torch's do."""
    text = "import importlib.util\nFOUND = importlib.util.find_spec('absent_of_thunder_test') is not None\nK = 2.0\n"
    (tmp_path / "asks_of_thunder_test.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    def f(x: Any) -> Any:
        import asks_of_thunder_test as module  # type: ignore[import-not-found]

        return x * module.K

    jitted = thunder.jit(f)
    for _ in range(3):
        torch.testing.assert_close(jitted(X), X * 2)
    assert thunder.cache_hits(jitted) >= 1, thunder.explain(jitted)


def test_settings_are_guarded(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    jitted = thunder.jit(lambda x: x * len(os.getcwd()))
    torch.testing.assert_close(jitted(X), X * len(os.getcwd()))
    monkeypatch.chdir(tmp_path)
    torch.testing.assert_close(jitted(X), X * len(os.getcwd()))
    assert thunder.cache_misses(jitted) == 2


def test_a_function_that_is_declared_pure() -> None:
    limits = os.sysconf
    jitted = thunder.jit(lambda x: x * limits("SC_PAGE_SIZE"))
    jitted(X)
    assert "posix.sysconf" in thunder.explain(jitted)
    assert thunder.assume_pure(limits) is limits
    jitted.reset()
    for _ in range(3):
        torch.testing.assert_close(jitted(X), X * limits("SC_PAGE_SIZE"))
    assert thunder.cache_hits(jitted) == 2
    with pytest.raises(TypeError, match="takes a function"):
        thunder.assume_pure(3)  # type: ignore[arg-type]


def test_a_program_that_catches_the_end_of_the_trace() -> None:
    """Its except block is no part of any program."""

    def caught(x: Any) -> Any:
        try:
            return x * random.random()
        except Exception:
            return x * 100

    jitted = thunder.jit(caught)
    torch.testing.assert_close(seeded(jitted), seeded(caught))


def test_a_function_of_state_in_one_branch_only() -> None:
    """The calls that do not take it hit the cache."""

    def sometimes(x: Any, draw: bool) -> Any:
        return x * random.random() if draw else x * 2

    jitted = thunder.jit(sometimes)
    jitted(X, True)
    for _ in range(3):
        torch.testing.assert_close(jitted(X, False), X * 2)
    assert thunder.cache_hits(jitted) == 2


def test_sharp_edges() -> None:
    jitted = thunder.jit(lambda x: x * random.random(), sharp_edges="error")
    with pytest.raises(RuntimeError, match="random"):
        jitted(X)


def test_unknown_functions_are_denied() -> None:
    """Whatever module they are in: nothing is trusted because nobody listed it."""
    for fn in (os.stat, time.time, gc.collect, sys.settrace, sys.getrefcount, os.urandom):
        assert denied(fn, fn.__self__, {}) is not None
    for fn in (len, math.sin, operator.add, "".join, [].append, {}.get):
        assert denied(fn, fn.__self__, {}) is None


class Pair:
    def __init__(self, a: float, b: float) -> None:
        self.a, self.b = a, b


PAIRS = [Pair(1.0, 2.0), Pair(3.0, 4.0)]


def test_later_calls_of_the_same_function() -> None:
    """A call is reported again where its verdict depends on more than the function and the class."""

    def copies(x: Any) -> Any:
        for pair in PAIRS:
            for value in pair.__reduce_ex__(2)[2].values():
                x = x * value
        return x

    jitted = thunder.jit(copies)
    try:
        for value in (4.0, 5.0, 5.0):
            PAIRS[1].b = value  # only the second call of `__reduce_ex__` reads it
            torch.testing.assert_close(jitted(X), copies(X))
    finally:
        PAIRS[1].b = 4.0
    assert thunder.cache_hits(jitted) == 1


def test_a_denied_method_after_harmless_ones() -> None:
    """Methods of one class, and functions of one module, have verdicts of their own."""

    def draws(x: Any) -> Any:
        x = x * abs(DRAWS.getrandbits(0)) if len(X) > 5 else x * len(X) * len("a".upper()) * len("b".upper())
        return x * math.sin(1.0) * math.cos(1.0) * DRAWS.random() * DRAWS.random()

    jitted = thunder.jit(draws)
    torch.testing.assert_close(seeded(jitted), seeded(draws))


def test_what_a_trace_reported_is_released() -> None:
    """A class whose C methods the program calls is not kept alive by the trace."""

    class Items(list[int]):
        pass

    alive = weakref.ref(Items)

    def total(x: Any, items: Any) -> Any:
        return x * len(items) * items.count(1) * items.count(2)

    jitted = thunder.jit(total)
    jitted(X, Items([1, 2]))
    del jitted, Items, total
    gc.collect()
    assert alive() is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "ask",
    [
        lambda x: torch.cuda.get_device_capability(x.device)[0],
        lambda x: torch.cuda.get_device_capability()[0],
        lambda x: torch.cuda.get_device_properties(x.device).multi_processor_count,
        lambda x: torch.cuda.get_device_properties(0).total_memory % 7,
        lambda x: len(torch.cuda.get_device_name(0)),
        lambda x: len(torch.cuda.get_arch_list()),
        lambda x: torch.cuda.is_bf16_supported() + torch.cuda.device_count() + torch.cuda.current_device(),
    ],
)
def test_properties_of_a_gpu_are_fixed(ask: Any) -> None:
    def fn(x: Any) -> Any:
        return x * 2 if ask(x) > 3 else x * 3

    jitted = thunder.jit(fn)
    x = torch.ones(2, device="cuda")
    for _ in range(3):
        assert torch.equal(jitted(x), fn(x))
    assert (thunder.cache_misses(jitted), thunder.cache_hits(jitted)) == (1, 2)
