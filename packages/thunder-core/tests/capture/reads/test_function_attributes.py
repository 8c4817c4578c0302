# SPDX-License-Identifier: Apache-2.0
"""Reads that no hook sees, of functions above all: a cached program sees each change, and repeats each assignment."""

from __future__ import annotations

import builtins
import functools
import inspect
import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import thunder

X = torch.linspace(-1, 1, 6)


class _Owner:
    def method(self) -> None:
        """Carry attributes."""


def plain() -> Any:
    """Return a new function."""
    return lambda: None


def memoized() -> Any:
    """Return a function under `lru_cache`."""
    return functools.lru_cache(plain())


def partial() -> Any:
    """Return a partial application."""
    return functools.partial(plain())


def caught(g: Any) -> float:
    """Read an attribute that may not exist."""
    try:
        return float(g.k)
    except AttributeError:
        return 1.0


def caught_all(g: Any) -> float:
    """Read an attribute that may not exist."""
    try:
        return float(g.k)
    except:  # noqa: E722
        return 1.0


READS: dict[str, Callable[[Any], Any]] = {
    "name": lambda g: g.k,
    "getattr": lambda g: getattr(g, "".join(["k"])),
    "vars": lambda g: vars(g)["k"],
    "__dict__": lambda g: g.__dict__["k"],
    "attrgetter": lambda g: operator.attrgetter("k")(g),
    "object in it": lambda g: g.settings.k,
}
MAY_BE_MISSING: dict[str, Callable[[Any], Any]] = {
    "getattr": lambda g: getattr(g, "k", 1.0),
    "hasattr": lambda g: 3.0 if hasattr(g, "k") else 1.0,
    "caught": caught,
    "all caught": caught_all,
}


def change(g: Any) -> None:
    g.k = 3.0
    g.settings.k = 3.0


@pytest.mark.parametrize("make", [plain, memoized, partial])
@pytest.mark.parametrize("read", READS)
def test_values(watch: Any, make: Any, read: str) -> None:
    """Each way to read an attribute sees a new value."""
    g = make()
    g.k, g.settings = 2.0, SimpleNamespace(k=2.0)
    functions = [g]
    watched = watch(lambda x: x * READS[read](functions[0]))
    watched.kept()
    change(g)
    watched.changed()


@pytest.mark.parametrize("make", [plain, memoized, partial])
@pytest.mark.parametrize("read", MAY_BE_MISSING)
def test_missing_attributes(watch: Any, make: Any, read: str) -> None:
    """A program that asked for an attribute sees it appear."""
    g = make()
    watched = watch(lambda x: x * MAY_BE_MISSING[read](g))
    g.k = 3.0
    watched.changed()


def test_attributes_of_methods(watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A method's attributes are those of its function."""
    owner = _Owner()
    monkeypatch.setattr(_Owner.method, "k", 2.0, raising=False)
    watched = watch(lambda x: x * owner.method.k + getattr(owner.method, "more", 0.0))
    _Owner.method.k = 3.0  # type: ignore[attr-defined]
    watched.changed()


def test_tensor_in_an_attribute(watch: Any) -> None:
    """A tensor is an input of the program."""
    g = plain()
    g.weight = torch.ones(6)
    watched = watch(lambda x: x * g.weight)
    g.weight = torch.full((6,), 3.0)
    watched.kept()
    g.weight.add_(1)
    watched.kept()


def test_counter_on_the_called_function() -> None:
    """Each call repeats the assignment."""

    def f(x: torch.Tensor) -> torch.Tensor:
        f.calls += 1  # type: ignore[attr-defined]
        return x * f.calls  # type: ignore[attr-defined]

    f.calls = 0  # type: ignore[attr-defined]
    jitted = thunder.jit(f, cache="symbolic values")
    assert [jitted(torch.ones(1)).item() for _ in range(4)] == [1, 2, 3, 4]


def test_methods_of_containers(watch: Any) -> None:
    """A method that was taken from a container reads and changes the container."""
    items, table = [1.0], {"k": 2.0}
    append, get = items.append, table.get
    seen = []

    def f(x: torch.Tensor) -> torch.Tensor:
        append(len(seen))  # type: ignore[arg-type]
        return x * get("k") * len(items)  # type: ignore[operator]

    jitted = thunder.jit(f, cache="symbolic values")
    assert [jitted(torch.ones(1)).item() for _ in range(3)] == [4, 6, 8] and len(items) == 4
    watched = watch(lambda x: x * get("k"))
    table["k"] = 3.0
    watched.changed()


class _Point:
    __match_args__ = ("x",)
    x, y = 2.0, 3.0


def test_patterns_by_position(watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern of a class reads the names of its positions."""
    point = _Point()

    def f(x: torch.Tensor) -> Any:
        match point:
            case _Point(value):
                return x * value

    watched = watch(f)
    monkeypatch.setattr(_Point, "__match_args__", ("y",))
    watched.changed()


READ, NAME = operator.attrgetter("x"), "X"
get, table = getattr, {"get": getattr}
READERS: list[Callable[[Any], float]] = [
    READ,
    lambda owner: operator.attrgetter(NAME.lower())(owner),
    lambda owner: get(owner, NAME.lower()),
    lambda owner: table["get"](owner, NAME.lower()),
    lambda owner, read=vars: read(owner)[NAME.lower()],  # type: ignore[misc]
    lambda owner: builtins.getattr(owner, NAME.lower()),
]


@pytest.mark.parametrize("read", READERS, ids=range(len(READERS)))
@pytest.mark.parametrize("class_attribute", [True, False])
def test_readers_of_attributes(
    watch: Any, monkeypatch: pytest.MonkeyPatch, class_attribute: bool, read: Callable[[Any], float]
) -> None:
    """`operator.attrgetter`, and `getattr` under other names, read attributes whose names no code contains."""
    owner: Any = _Point if class_attribute else plain()
    monkeypatch.setattr(owner, "x", 2.0, raising=False)
    watched = watch(lambda x: x * read(owner))
    owner.x = 3.0
    watched.changed()


class _Plain:
    k = 2.0


UNSEEN: dict[str, Callable[[Any], Any]] = {
    "object": lambda g: object.__getattribute__(g, "k"),
    "static": lambda g: inspect.getattr_static(g, "k"),
    "closure": lambda g: g.f.__closure__[0].cell_contents,
    "globals": lambda g: len(g.f.__globals__),
}


@pytest.mark.parametrize("read", UNSEEN)
def test_reads_that_no_hook_sees(never_cached: Any, read: str) -> None:
    """A program that reads past all hooks is not cached."""
    thing: Any = _Plain()
    thing.f = lambda: thing
    assert "thunder does not see" in never_cached(lambda x: x * (UNSEEN[read](thing) is not None))


def test_sources(never_cached: Any) -> None:
    """The source of an object is read from a file, which no guard covers."""
    never_cached(lambda x: x * len(inspect.getsource(plain)))


@pytest.mark.filterwarnings("ignore::thunder.core.errors.FallbackWarning")
def test_counter_on_another_function() -> None:
    """A program that assigns an attribute which no guard covers runs eagerly."""
    g = plain()

    def f(x: torch.Tensor) -> torch.Tensor:
        g.calls = getattr(g, "calls", 0) + 1
        return x * g.calls

    jitted = thunder.jit(f)
    assert [jitted(torch.ones(1)).item() for _ in range(4)] == [1, 2, 3, 4]
