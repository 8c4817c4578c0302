# SPDX-License-Identifier: Apache-2.0
"""What code uses as values, and programs that would see what replaces functions and classes while they are traced."""

from __future__ import annotations

import collections
import functools
import math
import time
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import thunder
from thunder.capture.reads.value_uses import value_uses


def _calls(x, o):
    for y in x:
        o(int(y), *x, key=float(y), **o)
    if isinstance(x.a if o else x.b, (int, float)) and isinstance(o, int | float):
        return max(x, key=abs), [*map(int, x)], math.sqrt(x) + math.hypot(*x)
    return type(x) is float, x.__class__ is int, int.from_bytes(x)


def _branches_in_arguments(x, o):
    return getattr((o.a or o.b).get("x"), "y", o.c and float(x)), int(x if o else x.y)


def _branches_to_values(x, o):
    o.kind = int or o
    return o.other and float


def _kept(x, o):
    o.kind = int
    o.fns = [math.sin]
    return float if o.t is bool else complex


def _passed(x, o):
    return collections.defaultdict(int), torch.zeros(2, dtype=float), functools.partial(math.cos, x)


@pytest.mark.parametrize(
    ("fn", "kept", "passed"),
    [
        (_calls, set(), set()),
        (_branches_in_arguments, set(), set()),
        (_branches_to_values, {"int", "float"}, set()),
        (_kept, {"int", "float", "bool", "complex", "math.sin"}, set()),
        (_passed, set(), {"int", "float", "math.cos"}),
    ],
)
def test_uses(fn, kept, passed):
    names = {"getattr", "int", "float", "bool", "complex", "math.sin", "math.cos", "math.sqrt", "math.hypot"}
    found = value_uses(fn.__code__)
    assert found.kept & names == kept
    assert found.passed & names == passed


def _class_of_a_number(x, o):
    n = int(x.sum())
    return x * n, o.kind is int, isinstance(n, o.kind)


def _dtype(x, o):
    n = int(x.sum())
    return x * n, torch.zeros(2, dtype=float).dtype


def _given_away(x, o):
    n = int(x.sum())
    o.found, o.counts = int, collections.defaultdict(int)
    return x * n, int, o.counts["a"]


def _type(x, o):
    o.type = type
    return x + 1, o.meta is type, type


def _clock(x, o):
    o.clock, o.hash = time.time, hash
    return x + 1, o.of_time is time.time, functools.partial(getattr, o)("kind")


@pytest.mark.parametrize("fn", [_class_of_a_number, _dtype, _given_away, _type, _clock])
def test_programs_never_see_replacements(fn: Any) -> None:
    def options() -> SimpleNamespace:
        return SimpleNamespace(kind=int, meta=type, of_time=time.time)

    given, wanted = options(), options()
    jitted = thunder.jit(fn)
    for x in (torch.ones(2), torch.ones(3), torch.ones(2)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", thunder.FallbackWarning)
            found = jitted(x, given)
        expected = fn(x, wanted)
        assert torch.equal(found[0], expected[0])
        assert found[1:] == expected[1:]
        assert all(a is b for a, b in zip(found, expected) if isinstance(b, type) or callable(b))
        assert vars(given) == vars(wanted)
        assert all(a is vars(wanted)[k] for k, a in vars(given).items() if callable(a))


def test_data_dependent_numbers_become_decisions() -> None:
    jitted = thunder.jit(_class_of_a_number, sharp_edges="error")
    for _ in range(2):
        assert jitted(torch.ones(2), SimpleNamespace(kind=int))[1:] == (True, True)
    assert thunder.compile_stats(jitted).cache_hits == 1
