# SPDX-License-Identifier: Apache-2.0
"""Programs that catch every exception, also the one that ends their trace, and try again until they succeed."""

from __future__ import annotations

import concurrent.futures
import contextlib
import random
import sys
import threading

import pytest
import torch

import thunder
from thunder.capture.base import ending

# The trace of each program ends when it calls this: a compiled program would draw no number.
draw = random.random


def _bare_except(calls, x):
    while True:
        try:
            calls.append(draw())
            return x * 2
        except:  # noqa: E722
            continue


def _counts_attempts(calls, x):
    failed = 0
    while True:
        try:
            calls.append(draw())
            return x * 2 + failed
        except BaseException:
            failed += 1


def _few_attempts(calls, x):
    for _ in range(5):
        try:
            calls.append(draw())
            break
        except:  # noqa: E722
            pass
    return x * 2


def _nested_handlers(calls, x):
    while True:
        try:
            try:
                calls.append(draw())
                return x * 2
            except BaseException:
                calls.append(draw())
        except BaseException:
            pass


def _tries_again_in_the_handler(calls, x):
    try:
        calls.append(draw())
    except BaseException:
        while True:
            try:
                calls.append(draw())
                break
            except BaseException:
                pass
    return x * 2


def _suppress(calls, x):
    while not calls:
        with contextlib.suppress(BaseException):
            calls.append(draw())
    return x * 2


class _Exit:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return True


def _exit_returns_true(calls, x):
    while not calls:
        with _Exit():
            calls.append(draw())
    return x * 2


def _finally_returns(calls, x):
    def succeeds():
        done = False
        try:
            calls.append(draw())
            done = True
        finally:
            return done  # noqa: B012

    while not succeeds():
        pass
    return x * 2


def _generator(calls, x):
    def attempts():
        while not calls:
            try:
                yield calls.append(draw())
            except BaseException:
                continue

    for _ in attempts():
        pass
    return x * 2


def _generator_that_is_closed(calls, x):
    def attempts():
        try:
            yield 1
        finally:
            while not calls:
                try:
                    calls.append(draw())
                except BaseException:
                    continue

    numbers = attempts()
    next(numbers)
    numbers.close()
    return x * 2


def _recursion(calls, x):
    try:
        calls.append(draw())
    except BaseException:
        return _recursion(calls, x)
    return x * 2


def _thread_pool(calls, x):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        while not calls:
            try:
                calls.append(pool.submit(draw).result())
            except BaseException:
                continue
    return x * 2


PROGRAMS = [
    _bare_except,
    _counts_attempts,
    _few_attempts,
    _nested_handlers,
    _tries_again_in_the_handler,
    _suppress,
    _exit_returns_true,
    _finally_returns,
    _generator,
    _generator_that_is_closed,
    _recursion,
    _thread_pool,
]


@pytest.mark.parametrize("fn", PROGRAMS)
def test_a_program_that_catches_the_end_of_its_trace_runs_eagerly_once(fn):
    calls = []
    x = torch.ones(2)
    before = sys.gettrace(), sys.getprofile()
    with pytest.warns(thunder.FallbackWarning, match="runs eagerly"):
        y = thunder.jit(lambda x: fn(calls, x))(x)
    assert torch.equal(y, x * 2)
    assert len(calls) == 1
    assert (sys.gettrace(), sys.getprofile()) == before


def test_a_lock_is_released_in_each_attempt():
    lock, calls = threading.Lock(), []

    def f(x):
        while True:
            try:
                with lock:
                    calls.append(draw())
                return x * 2
            except BaseException:
                pass

    with pytest.warns(thunder.FallbackWarning):
        thunder.jit(f)(torch.ones(2))
    assert not lock.locked()
    assert len(calls) == 1


def test_what_a_handler_does_is_not_done_twice():
    done, calls = [], []

    def f(x):
        while True:
            try:
                calls.append(draw())
                return x * 2
            except BaseException:
                with contextlib.suppress(BaseException):
                    done.append(draw())

    with pytest.warns(thunder.FallbackWarning):
        thunder.jit(f)(torch.ones(2))
    assert (len(calls), done) == (1, [])


def test_a_thread_that_the_trace_did_not_start_is_in_no_table():
    def f(x):
        for _ in range(3):
            with contextlib.suppress(BaseException):
                thread = threading.Thread(target=int)
                thread.start()
                thread.join()
        return x * 2

    before = threading.enumerate()
    with pytest.warns(thunder.FallbackWarning):
        thunder.jit(f)(torch.ones(2))
    assert threading.enumerate() == before


def test_errors_of_thunder_that_are_caught_in_a_loop_end_the_trace():
    def f(x):
        while True:
            try:
                return torch.ones(int(x.sum()))
            except BaseException:
                continue

    with pytest.raises(thunder.core.errors.TracingError, match="not known while tracing"):
        thunder.trace()(f, torch.ones(3))


def test_a_trace_function_is_restored():
    lines = []

    def trace(frame, event, arg):
        lines.append(event)

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with pytest.warns(thunder.FallbackWarning):
            thunder.jit(lambda x: _bare_except([], x))(torch.ones(2))
        after = sys.gettrace()
    finally:
        sys.settrace(before)
    assert after is trace
    assert lines


def test_a_trace_that_succeeds_raises_at_no_line(monkeypatch):
    started = []
    monkeypatch.setattr(ending, "_set_trace", lambda *args: started.append(args))

    def f(x):
        for n in ("a", 1):
            try:
                x = x + n
            except BaseException:
                x = x * 2
        return x

    assert torch.equal(thunder.jit(f)(torch.ones(2)), f(torch.ones(2)))
    assert not started
