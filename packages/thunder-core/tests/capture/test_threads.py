# SPDX-License-Identifier: Apache-2.0
"""Several threads trace and call at once; what the others find meanwhile is what there was."""

from __future__ import annotations

import builtins
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn

import thunder


class Schedule:
    """Numbers that change at each call."""

    def __init__(self) -> None:
        self.rate, self.step = 0.5, 1
        self.table = {"k": 3}


SCHEDULE = Schedule()
SCALE = 1.0


def test_numbers_that_are_inputs_are_numbers_elsewhere() -> None:
    """While a program is traced, symbols stand for them in the objects that hold them."""
    schedule = SCHEDULE

    def elsewhere() -> None:
        s = schedule
        found = [
            type(s.rate * 2), type(s.step + 1), type(-s.step), type(1 - s.rate), type(s.table["k"] // 2),
            type(SCALE**2), type(abs(s.rate)), type(s.step / 2), type(s.rate < 1), type(f"{s.step}"),
            len(range(s.step)) == s.step, float(torch.ones((), dtype=torch.float64) * s.rate) == s.rate,
            torch.zeros(s.step).shape[0],
        ]  # fmt: skip
        builtins.found_elsewhere = found  # type: ignore[attr-defined]

    @thunder.jit
    def f(x: Any) -> Any:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return x * schedule.rate + schedule.step + schedule.table["k"] + SCALE

    try:
        for _ in range(5):
            schedule.rate *= 0.9
            schedule.step += 1
            schedule.table["k"] += 1
            globals()["SCALE"] *= 1.1
            builtins.found_elsewhere = None  # type: ignore[attr-defined]
            f(torch.ones(2))
            found: Any = builtins.found_elsewhere  # type: ignore[attr-defined]
            if found is not None:  # it was traced
                kinds = [float, int, int, float, int, float, float, float, bool, str]
                assert found == [*kinds, True, True, schedule.step]
        assert thunder.cache_misses(f) < 5
    finally:
        del builtins.found_elsewhere  # type: ignore[attr-defined]


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
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
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
