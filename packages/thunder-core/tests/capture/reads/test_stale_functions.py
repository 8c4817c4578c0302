# SPDX-License-Identifier: Apache-2.0
"""A cached program is never used where an attribute of a function, a thread or an exception has changed."""

from __future__ import annotations

import dataclasses
import functools
import gc
import inspect
import threading
import warnings
from collections.abc import Callable
from threading import current_thread
from typing import Any

import pytest
import torch

import thunder

X = torch.linspace(-1, 1, 6)


def read() -> Callable[..., Any]:
    """Return a new function."""

    def f(a: int, b: int = 2) -> int:
        return a + b

    f.__annotations__.update(a=int | None, b=list[int] | torch.Tensor)
    return f


def name(f: Any) -> None:
    f.__name__ = "longer"


def annotation(f: Any) -> None:
    f.__annotations__["c"] = f.__annotations__["a"] = int


def default(f: Any) -> None:
    f.__defaults__ = (5,)


def signature(f: Any) -> None:
    f.__signature__ = inspect.signature(lambda: 1)


@pytest.mark.parametrize(
    ("reads", "change"),
    [
        (lambda f: len(f.__name__), name),
        (lambda f: len(getattr(f, "__name__")), name),  # noqa: B009
        (lambda f: len(f.__annotations__), annotation),
        (lambda f: f.__defaults__[0], default),
        (lambda f: inspect.signature(f).parameters["b"].default, default),
        (lambda f: len(inspect.signature(f).parameters), signature),
        (lambda f: len(inspect.getfullargspec(f).annotations), annotation),
        (lambda f: f.__annotations__["a"] is not None, annotation),
    ],
)
def test_attributes_of_functions(reads: Any, change: Any) -> None:
    """Calls see a change, and hit otherwise."""
    f = read()
    jitted = thunder.jit(lambda x: x * reads(f))
    for _ in range(2):
        torch.testing.assert_close(jitted(X), X * reads(f))
    assert thunder.cache_hits(jitted) == 1
    change(f)
    for _ in range(2):
        torch.testing.assert_close(jitted(X), X * reads(f))
    assert thunder.cache_hits(jitted) == 2


def test_assigned_attributes_of_functions() -> None:
    """A program that assigns the name of a function is not cached."""
    f = read()

    def rename(x: Any) -> Any:
        n = len(f.__name__)
        f.__name__ += "a"
        return x * n

    jitted = thunder.jit(rename)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in (1, 2, 3, 4):
            torch.testing.assert_close(jitted(X), X * n)


def test_wrappers_of_the_program() -> None:
    """A program that wraps a function in one of its own is cached."""
    f = read()

    def wraps(x: Any) -> Any:
        @functools.wraps(f)
        def inner() -> Any:
            return x * 2

        return inner()

    jitted = thunder.jit(wraps)
    for _ in range(3):
        torch.testing.assert_close(jitted(X), X * 2)
    assert thunder.cache_hits(jitted) == 2


@pytest.mark.parametrize("thread", [threading.current_thread, current_thread])
def test_name_of_the_thread(thread: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is guarded."""
    jitted = thunder.jit(lambda x: x * len(thread().name))
    for text in ("a", "a", "bb", "bb"):
        monkeypatch.setattr(threading.current_thread(), "name", text)
        torch.testing.assert_close(jitted(X), X * len(text))
    assert thunder.cache_hits(jitted) == 2


def test_number_of_threads() -> None:
    """Is guarded."""
    jitted = thunder.jit(lambda x: x * threading.active_count())
    stop = threading.Event()
    before = threading.active_count()
    torch.testing.assert_close(jitted(X), X * before)
    other = threading.Thread(target=stop.wait)
    other.start()
    try:
        torch.testing.assert_close(jitted(X), X * (before + 1))
    finally:
        stop.set()
        other.join()


@pytest.mark.filterwarnings("ignore:.*runs eagerly")
def test_information_of_an_lru_cache() -> None:
    """Is read at each call."""

    @functools.lru_cache
    def cached(n: int) -> int:
        return n

    jitted = thunder.jit(lambda x: x * cached.cache_info().currsize)
    for n in range(4):
        torch.testing.assert_close(jitted(X), X * n)
        cached(n)


@pytest.mark.filterwarnings("ignore:.*runs eagerly")
def test_garbage_collector() -> None:
    """Is on for the program, although tracing switches it off."""
    jitted = thunder.jit(lambda x: x * 2 if gc.isenabled() else x)
    for _ in range(3):
        torch.testing.assert_close(jitted(X), X * 2)


def test_uninitialized_parameters() -> None:
    """A program that reads the parameters of a lazy module runs eagerly."""
    lazy = torch.nn.LazyLinear(3)
    jitted = thunder.jit(lambda x: x * 2 if torch.nn.parameter.is_lazy(lazy.weight) else x)
    torch.testing.assert_close(jitted(X), X * 2)
    lazy(X)
    torch.testing.assert_close(jitted(X), X)
    torch.testing.assert_close(jitted(X), X)


class Failed(AttributeError):
    """An exception of the program's, whose `name` is stored in C."""


@pytest.mark.parametrize(
    ("thing", "attribute"),
    [
        (Failed("no", name="a"), "name"),
        (functools.cached_property(len), "attrname"),
        (dataclasses.field(default=1.0), "name"),
    ],
)
def test_attributes_of_library_objects(thing: Any, attribute: str) -> None:
    """Of exceptions, cached properties and fields of dataclasses."""
    jitted = thunder.jit(lambda x: x * len(str(getattr(thing, attribute))))
    for text in ("a", "a", "bbb", "bbb"):
        setattr(thing, attribute, text)
        torch.testing.assert_close(jitted(X), X * len(text))
    assert thunder.cache_hits(jitted) == 2
