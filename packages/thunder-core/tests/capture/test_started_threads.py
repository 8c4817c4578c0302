# SPDX-License-Identifier: Apache-2.0
"""Programs that start threads, tasks or profilers: thunder would not see what they read, so they run eagerly."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import cProfile
import multiprocessing
import multiprocessing.pool
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import thunder


class Box:
    """A number that only another thread reads, and one that the program reads."""

    def __init__(self) -> None:
        self.value = 2.0
        self.own = 1.0


BOX = Box()
POOL = concurrent.futures.ThreadPoolExecutor(1)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    BOX.value, BOX.own = 2.0, 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def read() -> float:
    return BOX.value


def with_thread(x: Any) -> Any:
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(read()))
    thread.start()
    thread.join()
    return x * found[0]


class Reading(threading.Thread):
    def run(self) -> None:
        self.found = read()


def with_thread_class(x: Any) -> Any:
    thread = Reading()
    thread.start()
    thread.join()
    return x * thread.found


def with_timer(x: Any) -> Any:
    found: list[float] = []
    timer = threading.Timer(0.0, lambda: found.append(read()))
    timer.start()
    timer.join()
    return x * found[0]


def with_pool(x: Any) -> Any:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return x * pool.submit(read).result()


def with_pool_map(x: Any) -> Any:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return x * sum(pool.map(lambda k: k * read(), [1, 2]))


def with_running_pool(x: Any) -> Any:
    return x * POOL.submit(read).result()


def with_multiprocessing_pool(x: Any) -> Any:
    with multiprocessing.pool.ThreadPool(1) as pool:
        return x * pool.apply(read)


def with_low_level_thread(x: Any) -> Any:
    import _thread

    found: list[float] = []
    lock = _thread.allocate_lock()
    lock.acquire()

    def body() -> None:
        found.append(read())
        lock.release()

    _thread.start_new_thread(body, ())
    with lock:
        return x * found[0]


def with_asyncio(x: Any) -> Any:
    async def body() -> float:
        await asyncio.sleep(0)
        return read()

    return x * asyncio.run(body())


def with_asyncio_thread(x: Any) -> Any:
    async def body() -> float:
        return await asyncio.to_thread(read)

    return x * asyncio.run(body())


STARTING = [
    with_thread, with_thread_class, with_timer, with_pool, with_pool_map, with_running_pool, with_multiprocessing_pool,
    with_low_level_thread, with_asyncio, with_asyncio_thread,
]  # fmt: skip


@pytest.mark.parametrize("program", STARTING)
def test_what_a_started_thread_reads(program: Callable[[Any], Any]) -> None:
    jitted = thunder.jit(program)
    for value in (2.0, 2.0, 5.0, 7.0):
        BOX.value = value
        assert torch.equal(jitted(torch.ones(2)), program(torch.ones(2))), f"BOX.value is {value}"


def with_process(x: Any) -> Any:
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=lambda: queue.put(read()))
    process.start()
    found = queue.get()
    process.join()
    return x * found


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this platform")
def test_what_a_started_process_reads() -> None:
    jitted = thunder.jit(with_process)
    for value in (2.0, 2.0, 5.0):
        BOX.value = value
        assert jitted(torch.ones(2)).tolist() == [value] * 2


# -- profilers -------------------------------------------------------------------------------------------------------
def setprofile(x: Any) -> Any:
    sys.setprofile(None)
    return x * BOX.own


def setprofile_and_back(x: Any) -> Any:
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, arg: None)
    y = x * BOX.own
    sys.setprofile(before)
    return y


def of_threading(x: Any) -> Any:
    threading.setprofile(None)
    return x * BOX.own


def settrace(x: Any) -> Any:
    before = sys.gettrace()
    sys.settrace(None)
    y = x * BOX.own
    sys.settrace(before)
    return y


def cprofile(x: Any) -> Any:
    profile = cProfile.Profile()
    with contextlib.suppress(ValueError):
        profile.enable()
    y = x * read_own()
    profile.disable()
    return y


def torch_profiler(x: Any) -> Any:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True):
        return x * read_own()


def monitoring(x: Any) -> Any:
    tools: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
    for tool in (3, 4):
        if tools.get_tool(tool) is not None:
            tools.free_tool_id(tool)
    return x * read_own()


def read_own() -> float:
    return BOX.own


PROFILING = [setprofile, setprofile_and_back, of_threading, settrace, cprofile, torch_profiler]
if sys.version_info >= (3, 12):
    PROFILING.append(monitoring)


@pytest.mark.parametrize("program", PROFILING)
def test_programs_that_replace_the_profiler(program: Callable[[Any], Any]) -> None:
    before = sys.getprofile(), sys.gettrace()
    jitted = thunder.jit(program)
    try:
        for own in (1.0, 1.0, 3.0, 4.0):
            BOX.own = own
            assert jitted(torch.ones(2)).tolist() == [own] * 2
    finally:
        sys.setprofile(before[0])
        sys.settrace(before[1])


def test_a_profiler_of_another_thread() -> None:
    """It may replace the profilers of all threads, thunder's among them."""
    box = Box()
    stop = threading.Event()

    def profile() -> None:
        while not stop.is_set():
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True):
                stop.wait(0.002)

    thread = threading.Thread(target=profile)
    thread.start()
    try:
        for own in (1.0, 2.0, 3.0):
            jitted = thunder.jit(lambda x: x.sin().cos().exp() * box.own)
            for value in (own, own + 10):
                box.own = value
                torch.testing.assert_close(jitted(torch.zeros(2)), torch.full((2,), 2.718281828) * value)
    finally:
        stop.set()
        thread.join()
