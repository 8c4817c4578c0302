# SPDX-License-Identifier: Apache-2.0
"""Functions that a program makes and stores or returns, e.g. hooks, are made anew from a signed entry, or not saved."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import thunder

CALLS: list[Any] = []
X = torch.arange(4.0)


class Kind(enum.Enum):
    """A member of it is found by its name."""

    DOUBLE = 2


def install(module: torch.nn.Module, key: str, scale: float, kind: Kind = Kind.DOUBLE) -> None:
    """Register a hook that refers to variables and to another function."""

    def scaled(x: torch.Tensor, factor: float = 3.0, *, plus: float = 0.5) -> torch.Tensor:
        return x * scale * factor + plus

    def hook(module: torch.nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        if key == "skipped":
            return output
        return scaled(output) * kind.value

    module.register_forward_hook(hook)


class Model(torch.nn.Module):
    """A model that sets itself up in its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Identity(), torch.nn.Identity()
        self.is_set_up = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call both modules, with hooks."""
        if not self.is_set_up:
            install(self.first, "skipped", 2.0)
            install(self.second, "used", 2.0)
            self.is_set_up = True
        return self.second(self.first(x))


def note_of(jitted: Any) -> str:
    """Return what became of the last program that may be saved or read."""
    return thunder.compile_stats(jitted).events.of("saved")[-1].reason


def hooks_of(model: Any) -> list[Any]:
    """Return the hooks of the modules of a model."""
    return [hook for m in (model.first, model.second) for hook in m._forward_hooks.values()]


def test_hooks_of_the_first_call(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process makes them anew: their code, closures, defaults, names and annotations."""
    next_id = torch.utils.hooks.RemovableHandle.next_id
    models = [Model(), Model(), Model()]
    expected = [models[0](X) for _ in range(2)]
    for model in models[1:]:
        monkeypatch.setattr(torch.utils.hooks.RemovableHandle, "next_id", next_id)
        jitted = thunder.jit(model, save=True)
        assert [jitted(X).tolist() for _ in range(2)] == [x.tolist() for x in expected]
    stats = thunder.compile_stats(jitted)
    assert stats.saved_hits == 2 and not stats.cache_misses, [e.reason for e in stats.events.of("saved")]
    eager, made = hooks_of(models[0]), hooks_of(models[2])
    assert made[0] is not made[1] and made[0].__code__ is eager[0].__code__
    for a, b in zip(eager, made):
        assert _description(a) == _description(b)


def _description(f: Any) -> Any:
    """Return what is visible of a function and of functions in its closure."""
    inner = [_description(x) if callable(x) else x for x in (cell.cell_contents for cell in f.__closure__ or ())]
    names = f.__name__, f.__qualname__, f.__module__, f.__doc__
    return names, inner, f.__defaults__, f.__kwdefaults__, f.__annotations__, f.__globals__ is globals()


def _run(f: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    jitted = thunder.jit(f, save=True)
    return jitted(X, *args), jitted


def returns(x: torch.Tensor) -> Any:
    """Return a function."""

    def found(a: int) -> int:
        return a + n

    n = x.shape[0]
    return found


def test_functions_are_returned(cache: Path) -> None:
    """A returned function works in another process."""
    _run(returns)
    found, jitted = _run(returns)
    assert found(3) == 7 and note_of(jitted).startswith("hit")


@pytest.mark.parametrize("signature", [None, b"another key"])
def test_files_that_are_not_signed(cache: Path, rewrite: Any, signature: bytes | None) -> None:
    """They are a miss: such a function could do anything when it is called."""
    _run(returns)
    (file,) = (x for x in cache.rglob("*") if x.is_file())
    rewrite(file, json.loads(file.read_bytes().partition(b"\n")[2]), signature)
    found, jitted = _run(returns)
    first = thunder.compile_stats(jitted).events.of("saved")[0].reason
    assert found(3) == 7 and first.startswith("miss") and "not signed" in first


def test_no_key(cache: Path, key: Path) -> None:
    """Without a key that signs them, they are not saved."""
    key.parent.write_text("no directory")
    _, jitted = _run(returns)
    assert "THUNDER_CACHE_KEY" in note_of(jitted)


def assigns(x: torch.Tensor) -> Any:
    """A function that changes its variable."""
    count = 0

    def found() -> int:
        nonlocal count
        count += 1
        return count

    return found


def shares(x: torch.Tensor) -> Any:
    """A function with a variable that another function changes."""
    count = 0

    def change() -> None:
        nonlocal count
        count += 1

    def found() -> int:
        return count

    change()
    return found


def mutable(x: torch.Tensor) -> Any:
    """A function with a list that others may change."""
    values = [1, 2]
    return lambda: values


def with_attributes(x: torch.Tensor) -> Any:
    """A function with an attribute."""

    def found() -> int:
        return 1

    found.title = "a"  # type: ignore[attr-defined]
    return found


def without_value(x: torch.Tensor) -> Any:
    """A function with a variable that has no value."""

    def found() -> Any:
        return later

    if x.dim() == 100:
        later = 1
    return found


def recursive(x: torch.Tensor) -> Any:
    """A function that refers to itself."""

    def found(n: int) -> int:
        return n if n < 2 else found(n - 1)

    return found


def _paused() -> Any:
    value = 1
    yield lambda: value
    value = 2
    yield None


def in_generator(x: torch.Tensor) -> Any:
    """A function whose variable a generator still assigns."""
    generator = _paused()
    return next(generator)


def with_default(x: torch.Tensor) -> Any:
    """A function with a default that others may change."""

    def found(a: Any = {}) -> Any:  # noqa: B006
        return a

    return found


@pytest.mark.parametrize(
    "f", [assigns, shares, mutable, with_attributes, without_value, recursive, in_generator, with_default]
)
def test_functions_that_are_not_saved(cache: Path, f: Any) -> None:
    """What another process could not make with the same meaning is not saved."""
    _, jitted = _run(f)
    assert note_of(jitted).startswith("not saved: ") and "function" in note_of(jitted)
    assert thunder.compile_stats(_run(f)[1]).saved_hits == 0


STORED: list[Any] = []


def stores(x: torch.Tensor, found: Any) -> torch.Tensor:
    """Store a function that the caller has made."""
    STORED.append(found)
    return x + 1


def test_functions_of_the_caller(cache: Path) -> None:
    """A function that existed before the call is never replaced by a new one."""
    for _ in range(2):
        STORED.clear()
        given = returns(X)
        _, jitted = _run(stores, given)
        assert [given] == STORED
    assert thunder.compile_stats(jitted).saved_hits == 0
