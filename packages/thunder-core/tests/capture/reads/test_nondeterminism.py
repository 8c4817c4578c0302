# SPDX-License-Identifier: Apache-2.0
"""What differs each time and no guard can watch is asked for at each call: Python's and NumPy's random numbers, clocks,
iterators, generators of torch that a program makes or seeds."""

from __future__ import annotations

import datetime
import itertools
import os
import random
import time
import uuid
from random import random as draw
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import torch

import thunder


def imported(x: Any) -> Any:
    import random as chance

    return x * chance.random()


def imported_name(x: Any) -> Any:
    from random import random

    return x * random()


def imported_clock(x: Any) -> Any:
    import time

    return x * time.perf_counter()


def enclosed() -> Any:
    import random as chance

    import numpy

    return lambda x: x * chance.random() + float(numpy.random.rand())


SEEDED = {
    "random": lambda x: x * random.random(),
    "a name": lambda x: x * draw(),
    "an import inside": imported,
    "an import of a name": imported_name,
    "a variable from around": enclosed(),
    "numpy": lambda x: x * float(np.random.rand()),
}


@pytest.mark.parametrize("name", SEEDED)
def test_random_numbers_of_python(name: str) -> None:
    f = SEEDED[name]
    jf = thunder.jit(f)
    results = []
    for g in (jf, f):
        random.seed(0)
        np.random.seed(0)
        results.append([g(torch.ones(2)) for _ in range(4)])
    torch.testing.assert_close(*results)
    with pytest.raises(RuntimeError, match="cannot be compiled"):
        thunder.jit(f, sharp_edges="error")(torch.ones(2))


READ_ANEW = {
    "time": lambda x: x * time.perf_counter(),
    "a name": lambda x: x * perf_counter(),
    "an import inside": imported_clock,
}


@pytest.mark.parametrize("name", READ_ANEW)
def test_clocks_that_a_program_reads(name: str) -> None:
    """The compiled program reads them at each call."""
    jf = thunder.jit(READ_ANEW[name])
    found = [float(jf(torch.ones((), dtype=torch.float64))) for _ in range(6)]
    assert found == sorted(found)
    assert len(set(found)) == 6
    assert thunder.cache_hits(jf) == 5


CLOCKS = {
    "today": lambda x: x * datetime.datetime.now().timestamp(),
    "urandom": lambda x: x * os.urandom(8)[0] + os.urandom(8)[1] / 7,
    "uuid": lambda x: x * (uuid.uuid4().int % 100003),
}


@pytest.mark.parametrize("name", CLOCKS)
def test_clocks(name: str) -> None:
    jf = thunder.jit(CLOCKS[name])
    found = [float(jf(torch.ones((), dtype=torch.float64))) for _ in range(6)]
    assert len(set(found)) > 1
    assert thunder.cache_hits(jf) == 0


def test_iterators() -> None:
    counter = itertools.count()

    def numbers() -> Any:
        yield from range(10)

    running = numbers()
    jf = thunder.jit(lambda x, it: x * next(counter) + next(running) + next(it))
    given = iter(range(10))
    assert [float(jf(torch.ones(()), given)) for _ in range(4)] == [0, 3, 6, 9]


def test_generators_that_the_program_makes_or_seeds() -> None:
    known = torch.Generator()

    def makes(x: Any) -> Any:
        g = torch.Generator().manual_seed(3)
        a = torch.rand(2, generator=g)
        g.manual_seed(3)
        return x + a + torch.rand(2, generator=g)

    def seeds(x: Any) -> Any:
        known.manual_seed(5)
        return x + torch.rand(2, generator=known)

    for f in (makes, seeds):
        jf = thunder.jit(f)
        for _ in range(3):
            assert torch.equal(jf(torch.ones(2)), f(torch.ones(2)))


def test_a_generator_from_outside_goes_on() -> None:
    g = torch.Generator()
    jf = thunder.jit(lambda x: x + torch.rand(2, generator=g))
    g.manual_seed(1)
    found = [jf(torch.zeros(2)) for _ in range(3)]
    g.manual_seed(1)
    assert all(torch.equal(x, torch.rand(2, generator=g)) for x in found)
    assert thunder.cache_misses(jf) == 1


@pytest.mark.parametrize("given", [False, True])
def test_truncated_normal(given: bool) -> None:
    """Which torch draws until it likes what it has drawn."""
    g = torch.Generator() if given else None

    def f(x: Any) -> Any:
        w = torch.empty(5, 5)
        torch.nn.init.trunc_normal_(w, std=0.7, a=-1.0, b=1.0, generator=g)
        return x @ w

    jf = thunder.jit(f)
    for seed in range(3):
        results = []
        for h in (jf, f):
            (torch.manual_seed if g is None else g.manual_seed)(seed)
            results.append(h(torch.ones(2, 5)))
        assert torch.equal(*results)
    assert thunder.cache_misses(jf) == 1
