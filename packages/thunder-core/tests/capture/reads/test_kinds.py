# SPDX-License-Identifier: Apache-2.0
"""Kinds of values: which claims a value, how a saved program would name it, and what no kind claims."""

from __future__ import annotations

import array
import collections
import contextvars
import datetime
import enum
import fractions
import functools
import logging
import operator
import pathlib
import queue
import random
import sys
import threading
import time
import types
import weakref
from typing import Any

import numpy as np
import pytest
import torch

import thunder
from thunder.capture.reads.classify import classify
from thunder.capture.reads.libraries import TRUSTED

X = torch.ones(3)


class Locals(threading.local):
    pass


LOCAL = threading.local()
RANDOM = random.Random(0)
QUEUE: queue.Queue[Any] = queue.Queue()
LOGGER = logging.getLogger(__name__)
ITERATOR = iter([1, 2, 3])
TREE = torch.utils._pytree.tree_structure([1])


class Color(enum.Enum):
    RED = 1


class User:
    def method(self) -> int:
        return 1


def function(x: Any) -> Any:
    return x + 1


CLAIMED: list[tuple[Any, str]] = [
    (1.5, "Plain"), ("a", "Plain"), ((), "Plain"), (torch.float32, "Plain"), (np.float32(1), "Plain"),
    (X, "TensorKind"), ([1], "Container"), ((1,), "Container"), (collections.OrderedDict(), "Container"),
    (User(), "Object"), (torch.nn.Linear(1, 1), "Object"), (types.SimpleNamespace(a=1), "Namespace"),
    (function, "Function"), (User().method, "Method"), (functools.partial(function), "Partial"),
    (functools.lru_cache(function), "Memoized"), (User, "ClassKind"), (thunder.jit(function), "Jitted"),
    (contextvars.ContextVar("v"), "ContextVariable"), (weakref.ref(User), "WeakReference"),
    (torch.Generator(), "Generator"), (torch, "Identity"), (torch.relu, "Identity"), (object(), "Identity"),
    (Color.RED, "EnumMember"), (datetime.date(2020, 1, 1), "Identity"), (fractions.Fraction(1), "Identity"),
    (sys.modules, "Identity"), (torch.ops.aten.relu, "Trusted"), (pathlib.Path(), "Plain"), (LOGGER, "Object"),
    (LOCAL, "ThreadLocal"), (Locals(), "Unguardable"),
    (RANDOM, "Object"), (RANDOM.random, "Identity"), (time.time, "Identity"),
    (QUEUE, "Object"), (ITERATOR, "Unguardable"), (np.ones(2), "Array"), (np.dtype("f4"), "Identity"),
    (array.array("d"), "Unguardable"), (torch.distributions.Normal(0.0, 1.0), "Object"),
    (sys.__stdout__, "TextStream"), (operator.itemgetter(1), "Identity"), (TREE, "Trusted"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "kind"), CLAIMED, ids=[f"{kind}-{i}" for i, (_, kind) in enumerate(CLAIMED)])
def test_kinds(value: Any, kind: str) -> None:
    """Each value is claimed by one."""
    assert type(classify(value)).__name__ == kind


def test_every_trust_has_a_reason() -> None:
    """In a few words."""
    assert all(len(reason.split()) > 3 for reason in TRUSTED.values())


# -- what no kind claims ----------------------------------------------------------------------------------------------
def compiled(fn: Any) -> tuple[int, str]:
    """How often a program was compiled for two calls, and what `explain` says."""
    jitted = thunder.jit(fn)
    for _ in range(2):
        jitted(X)
    return thunder.cache_misses(jitted), thunder.explain(jitted)


def names_it(x: Any) -> Any:
    if LOCAL is None or RANDOM is None or ITERATOR is QUEUE:
        return x
    return x + 1


def uses_it_where_it_does_not_go(x: Any) -> Any:
    return x + QUEUE.qsize() if x.ndim == 7 else x


def reads_an_attribute(x: Any) -> Any:
    return x * QUEUE.maxsize


def calls_a_method(x: Any) -> Any:
    return x + QUEUE.qsize()


@pytest.mark.parametrize("fn", [reads_an_attribute, calls_a_method], ids=["attribute", "method"])
def test_objects_of_libraries(fn: Any) -> None:
    """Are read as those of users are."""
    jitted = thunder.jit(fn)
    for _ in range(2):
        torch.testing.assert_close(jitted(X), fn(X))
    QUEUE.put(1)
    try:
        torch.testing.assert_close(jitted(X), fn(X))
    finally:
        QUEUE.get()
    assert thunder.cache_hits(jitted) == (2 if fn is reads_an_attribute else 1)


def calls_a_method_in_c(x: Any) -> Any:
    return x * RANDOM.random()


def hands_it_to_c(x: Any) -> Any:
    return x * next(ITERATOR, 0)


def closes_over_it() -> Any:
    inside = Locals()
    inside.scale = 2.0
    return lambda x: x * inside.scale


def compares_what_it_closes_over() -> Any:
    inside = Locals()
    return lambda x: x * 2 if inside is not None else x


@pytest.mark.parametrize(
    "fn", [names_it, uses_it_where_it_does_not_go, compares_what_it_closes_over()], ids=["named", "elsewhere", "cell"]
)
def test_what_is_only_named(fn: Any) -> None:
    """Denies nothing."""
    misses, explained = compiled(fn)
    assert misses == 1
    assert "not cached" not in explained


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (calls_a_method_in_c, "the program calls _random.Random.random, a C function"),
        (hands_it_to_c, "`ITERATOR` is a list_iterator, which thunder cannot guard"),
        (closes_over_it(), "`inside` is a Locals, which thunder cannot guard"),
    ],
    ids=["in C", "to C", "cell"],
)  # fmt: skip
def test_what_is_used(fn: Any, name: str) -> None:
    """Makes the trace good for one call, and `explain` names it."""
    misses, explained = compiled(fn)
    assert misses == 2
    assert f"not cached: {name}" in explained


def test_another_object_of_that_name() -> None:
    """Is seen where the program asks whether it is the one."""
    holder = types.SimpleNamespace(queue=queue.Queue())
    jitted = thunder.jit(lambda x: x + 1 if holder.queue is QUEUE else x)
    torch.testing.assert_close(jitted(X), X)
    holder.queue = QUEUE
    torch.testing.assert_close(jitted(X), X + 1)
    jitted(X)
    assert thunder.cache_misses(jitted) == 2


def test_keys_that_are_tensors() -> None:
    """As in the state of optimizers: a dict with another key, order or value is seen, and new keys are stored."""
    a, b, c = torch.ones(2), torch.ones(2), torch.ones(2)
    state: dict[Any, Any] = {a: 1.0, "n": 2.0, b: torch.full((2,), 3.0)}

    def f(x: Any) -> Any:
        if c not in state:
            state[c] = {"made": x + 1}
        return [x * v for v in state.values() if not isinstance(v, dict)], a in state, [k is b for k in state]

    jitted = thunder.jit(f, fullgraph=True)
    for change in (
        lambda: None, lambda: None, lambda: None, lambda: state.pop(a), lambda: state.update({a: 5.0}),
        lambda: state.update({b: 7.0}), lambda: state.pop(c),
    ):  # fmt: skip
        change()
        before = dict(state)
        found = jitted(torch.arange(2.0))
        assert all(k is j for k, j in zip(state, before)) and torch.equal(state[c]["made"], torch.tensor([1.0, 2.0]))
        torch.testing.assert_close(found, f(torch.arange(2.0)))
    assert thunder.cache_hits(jitted) == 1


def test_a_key_that_is_an_argument() -> None:
    """The program would not find the handle among the keys."""
    w = torch.ones(2)
    state = {w: 2.0}

    def f(x: Any) -> Any:
        return x * state[x] if x in state else x

    jitted = thunder.jit(f, sharp_edges="allow")
    assert jitted(w).tolist() == [2.0, 2.0] and jitted(torch.ones(2)).tolist() == [1.0, 1.0]
