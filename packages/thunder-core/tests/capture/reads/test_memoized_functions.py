# SPDX-License-Identifier: Apache-2.0
"""Helpers under `functools.lru_cache`: called as in eager, and what they give is guarded or an input."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

import thunder

LRU = type(functools.lru_cache(lambda: None))


@functools.lru_cache(maxsize=4)
def table(n: int, base: float = 10.0) -> torch.Tensor:
    return base ** -torch.arange(n).float()


@functools.lru_cache
def shape_of(n: int) -> tuple[int, int]:
    return n, n + 1


@functools.lru_cache
def pair(n: int) -> Any:
    return torch.ones(n), {"steps": torch.arange(n)}


@functools.lru_cache
def doubled(x: Any) -> Any:
    return x * 2


class Rotary(nn.Module):
    """Helpers of a class."""

    def __init__(self) -> None:
        super().__init__()
        self.base = 3.0
        self.helper = functools.cache(lambda n: torch.full((n,), 2.0))

    @functools.lru_cache  # noqa: B019  (programs do)
    def positions(self, n: int) -> torch.Tensor:
        return torch.arange(n) * self.base

    @staticmethod
    @functools.lru_cache
    def shifted(n: int) -> torch.Tensor:
        return torch.arange(n) + 1

    def forward(self, x: Any) -> Any:
        n = x.shape[0]
        return x * self.positions(n) + self.shifted(n) * self.helper(n)


PROGRAMS = {
    "a table": lambda x: x * table(x.shape[0]) + table(x.shape[0], base=2.0),
    "numbers": lambda x: x.new_zeros(shape_of(x.shape[0])),
    "tensors in containers": lambda x: x * pair(x.shape[0])[0] + pair(x.shape[0])[1]["steps"],
    "of a tensor of the program": lambda x: doubled(x.sin()) + 1,
    "of an argument": lambda x: doubled(x) + 1,
}


@pytest.fixture(autouse=True)
def _forgotten() -> Any:
    for helper in (table, shape_of, pair, doubled):
        helper.cache_clear()
    yield


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_program_for_each_size(name: str) -> None:
    f = PROGRAMS[name]
    jf = thunder.jit(f)
    for n in (3, 3, 4, 3, 4):
        x = torch.randn(n)
        torch.testing.assert_close(jf(x), f(x))
    assert (thunder.cache_misses(jf), thunder.cache_hits(jf)) == (2, 3)
    assert {type(helper) for helper in (table, shape_of, pair, doubled)} == {LRU}
    assert type(table(3)) is torch.Tensor


def test_methods_and_attributes() -> None:
    net = Rotary()
    jnet = thunder.jit(net)
    for _ in range(3):
        x = torch.randn(3)
        torch.testing.assert_close(jnet(x), net(x))
    assert thunder.cache_misses(jnet) == 1
    assert type(Rotary.__dict__["positions"]) is LRU and type(net.helper) is LRU
    assert isinstance(Rotary.__dict__["shifted"], staticmethod)


def test_what_is_remembered_is_changed() -> None:
    @functools.cache
    def buffer() -> torch.Tensor:
        return torch.zeros(3)

    def f(x: Any) -> Any:
        total = buffer()
        total += x
        return total * 2

    jf = thunder.jit(f)
    for i in range(1, 4):
        assert torch.equal(jf(torch.ones(3)), torch.full((3,), 2.0 * i))
    assert thunder.cache_misses(jf) == 1
    buffer.cache_clear()
    assert torch.equal(jf(torch.ones(3)), torch.full((3,), 2.0))


def test_what_is_remembered_is_forgotten_and_differs() -> None:
    values = [1.0, 2.0]

    @functools.cache
    def scale(name: str) -> float:
        return values[0]

    jf = thunder.jit(lambda x: x * scale("all"))
    assert jf(torch.ones(1)) == 1
    values[0] = 5.0
    assert jf(torch.ones(1)) == 1  # as in eager: it remembers
    scale.cache_clear()
    assert jf(torch.ones(1)) == 5


def test_objects_that_no_guard_can_give_again() -> None:
    @functools.cache
    def of(key: Any) -> torch.Tensor:
        return torch.ones(3)

    def f(x: Any) -> Any:
        return x * of(frozenset({object()}))

    jf = thunder.jit(f)
    for _ in range(2):
        assert torch.equal(jf(torch.ones(3)), torch.ones(3))
    assert "is memoized" in thunder.explain(jf)


class Key:
    """Equal to others with the same number."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __hash__(self) -> int:
        return hash(self.n)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Key) and self.n == other.n


@functools.cache
def of_key(key: Any) -> torch.Tensor:
    return torch.full((3,), float(key.n))


def test_objects_that_the_program_makes() -> None:
    """The first call finds no result for an equal object. Later ones do, and the prologue passes the object again."""
    of_key.cache_clear()
    number = [2]
    jf = thunder.jit(lambda x: x * of_key(Key(number[0])))
    for _ in range(4):
        assert jf(torch.ones(3)).tolist() == [2] * 3
    assert (thunder.cache_misses(jf), thunder.cache_hits(jf)) == (2, 2)
    number[0] = 3
    for _ in range(3):
        assert jf(torch.ones(3)).tolist() == [3] * 3


def test_objects_that_the_program_changes_afterwards() -> None:
    def f(x: Any) -> Any:
        key = Key(2)
        y = x * of_key(key)
        key.n = 3
        return y + of_key(Key(3))

    jf = thunder.jit(f)
    for _ in range(4):
        assert jf(torch.ones(3)).tolist() == [5] * 3
    assert "changes" in thunder.explain(jf)


def wrapped(memoized: Any) -> Any:
    """As decorators do: the function stands in the closure, and in `__wrapped__`."""

    @functools.wraps(memoized)
    def call(*args: Any) -> Any:
        return memoized(*args)

    return call


SCALE = [2.0]


@wrapped
@functools.cache
def generated(name: str) -> Any:
    """A function of generated code, whose globals are those of no module."""
    scope: dict[str, Any] = {"factor": SCALE[0]}
    exec(f"def {name}(x): return x * factor", scope, scope)
    return scope[name]


def test_functions_of_generated_code() -> None:
    """Their globals are guarded, and the function is made anew after the cache was cleared."""
    jf = thunder.jit(lambda x: generated("scaled")(x) + 1)
    for _ in range(3):
        assert jf(torch.ones(1)) == 3
    assert (thunder.cache_misses(jf), thunder.cache_hits(jf)) == (1, 2)
    generated("scaled").__globals__["factor"] = 4.0
    assert jf(torch.ones(1)) == 5
    SCALE[0] = 6.0
    generated.__wrapped__.cache_clear()
    assert jf(torch.ones(1)) == 7


class Settings:
    """Options of a model, given to helpers that remember."""

    def __init__(self, base: float) -> None:
        self.base = base


@functools.lru_cache
def scaled(settings: Settings, shape: torch.Size, kind: torch.dtype, name: str, where: Any = None) -> torch.Tensor:
    return torch.full(shape, settings.base, dtype=kind) * len(name)


def test_what_is_given_may_be_objects_that_stand_somewhere() -> None:
    """Found anew at each call, as are values that have no text, and strings with braces in them."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.settings = Settings(2.0)

        def forward(self, x: Any) -> Any:
            return x * scaled(self.settings, x.shape, x.dtype, "a{}{1}b", where=x.device)

    net = Net()
    jnet = thunder.jit(net)
    x = torch.ones(3, dtype=torch.float64)
    for _ in range(2):
        torch.testing.assert_close(jnet(x), net(x))
    assert thunder.cache_misses(jnet) == 1
    net.settings.base = 5.0  # which the helper does not see
    torch.testing.assert_close(jnet(x), net(x))
    net.settings = Settings(7.0)
    torch.testing.assert_close(jnet(x), torch.full((3,), 49.0, dtype=torch.float64))
    scaled.cache_clear()
    net.settings.base = 1.0
    torch.testing.assert_close(jnet(x), torch.full((3,), 7.0, dtype=torch.float64))
    assert thunder.cache_misses(jnet) <= 2
