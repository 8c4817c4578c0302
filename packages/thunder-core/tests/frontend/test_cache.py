# SPDX-License-Identifier: Apache-2.0
"""Which program answers a call, and what becomes of numbers and sizes that keep changing."""

from __future__ import annotations

import collections
import copy
import gc
import types
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from outcomes import in_threads
from torch import nn

import thunder
from thunder.frontend.cache import MAX_SPECIALIZATIONS, Cache


def misses(jitted: Any) -> int:
    return thunder.cache_misses(jitted)


# -- numbers that change ----------------------------------------------------------------------------------------------
class Model(nn.Module):
    """Keeps numbers in every way that programs do, and a cache that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 0
        self.lr = 0.1
        self.sizes = [1, 2, 3]
        self.options = {"lr": 0.1, "name": "adam"}
        self.register_buffer("seen", torch.zeros(2, 0, 4))
        self.linear = nn.Linear(4, 4)
        self.log: list[Any] = []
        self.other = Slots(3)

    def forward(self, x: Any) -> Any:
        self.step += 1
        self.seen = torch.cat([self.seen, x[:, None]], 1)
        self.log.append(x.sum())
        scale = self.lr * self.options["lr"] + self.sizes[1] / self.other.n
        return self.linear(x) * scale * self.step + self.seen.sum(1) * self.seen.shape[1]


class Slots:
    __slots__ = ("n",)

    def __init__(self, n: int):
        self.n = n


def test_a_model_whose_numbers_all_change() -> None:
    torch.manual_seed(0)
    ours = Model()
    theirs = copy.deepcopy(ours)
    jitted = thunder.jit(ours)
    for i in range(10):
        for m in (ours, theirs):
            m.lr, m.sizes[1], m.options["lr"], m.other.n = 0.1 * i, i + 5, i * 0.5, i + 2
        x = torch.randn(2, 4)
        out, expected = jitted(x), theirs(x)
        torch.testing.assert_close(out, expected)
        out.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(ours.linear.weight.grad, theirs.linear.weight.grad)
        assert type(ours.step) is int and ours.step == theirs.step == i + 1
        torch.testing.assert_close(ours.seen, theirs.seen)
        assert type(ours.seen) is torch.Tensor and len(ours.log) == i + 1
        assert vars(ours)["lr"] == theirs.lr and type(ours.sizes[1]) is type(ours.other.n) is int
    assert (misses(jitted), thunder.cache_hits(jitted)) == (3, 7), thunder.explain(jitted)
    ours.options["name"] = theirs.options["name"] = "sgd"  # what is no number is still guarded
    ours.step = theirs.step = True  # type: ignore[assignment]
    torch.testing.assert_close(jitted(x), theirs(x))
    assert misses(jitted) == 4


SCALE = 1.0


def test_globals_closures_and_arguments() -> None:
    global SCALE

    def make() -> Any:
        count = 0

        def fn(x: Any, k: int, *, s: float = 2.0) -> Any:
            nonlocal count
            count += 1
            return x * count * SCALE + k * s, count

        return fn

    ours, theirs = make(), make()
    jitted = thunder.jit(ours)
    try:
        for i in range(9):
            SCALE = 1.0 + i
            x = torch.ones(3)
            out, expected = jitted(x, i, s=i / 3), theirs(x, i, s=i / 3)
            torch.testing.assert_close(out, expected)
            assert type(out[1]) is int and type(SCALE) is float
    finally:
        SCALE = 1.0
    assert misses(jitted) == 3, thunder.explain(jitted)
    scope = ours.__globals__
    assert "type" not in scope and "len" not in scope


def test_sizes_that_change() -> None:
    jitted = thunder.jit(lambda x, y: (x * y.shape[0]).sum(0) + y.sum(0))
    for n in range(2, 12):
        x, y = torch.randn(n, 3), torch.randn(n + 1, 3)
        torch.testing.assert_close(jitted(x, y), (x * (n + 1)).sum(0) + y.sum(0))
    assert misses(jitted) == 3, thunder.explain(jitted)
    x, y = torch.randn(5, 4), torch.randn(5, 4)  # the other size has not changed so far
    jitted(x, y)
    assert misses(jitted) == 4


def test_numbers_that_change_in_each_of_several_modes() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps, self.checks = 0, 0

        def forward(self, x: Any) -> Any:
            if self.training:
                self.steps += 1
                return x * self.steps
            self.checks += 1
            return x - self.checks

    ours, theirs = Counter(), Counter()
    jitted = thunder.jit(ours)
    for i in range(20):
        for m in (ours, theirs):
            m.train(i % 2 == 0)
        torch.testing.assert_close(jitted(torch.ones(i // 2 + 2)), theirs(torch.ones(i // 2 + 2)))
    assert misses(jitted) <= 6, thunder.explain(jitted)


def test_one_change_makes_no_symbol() -> None:
    jitted = thunder.jit(lambda x, s: x * s)
    for _ in range(3):
        for n in (2, 3):
            jitted(torch.ones(n), n)
    assert misses(jitted) == 2
    assert "s0" not in str(thunder.last_traces(jitted)[0]) and "3" in str(thunder.last_traces(jitted)[0])


def test_a_number_that_is_needed_is_given_up() -> None:
    state = types.SimpleNamespace(n=0)

    def fn(x: Any) -> Any:
        state.n += 1
        return sum([x for _ in range(state.n)])

    jitted = thunder.jit(fn)
    with pytest.warns(UserWarning, match=r"16 programs are cached, and their guards refuse this call.*state\.n"):
        for i in range(1, MAX_SPECIALIZATIONS + 4):
            torch.testing.assert_close(jitted(torch.ones(2)), torch.ones(2) * i)
    assert misses(jitted) == MAX_SPECIALIZATIONS
    assert "falls back to eager" in thunder.explain(jitted)
    jitted.reset()
    state.n = 0
    torch.testing.assert_close(jitted(torch.ones(2)), torch.ones(2))


def test_a_failed_call_changes_numbers_once() -> None:
    """The trace is undone, and the eager run that raises the error changes them."""
    state = types.SimpleNamespace(n=0, fails=False, items=[1, 2])

    def fn(x: Any) -> Any:
        state.n += 1
        state.items[0] += 1
        if state.fails:
            raise KeyError("no")
        return x * state.n * state.items[0]

    jitted = thunder.jit(fn)
    for i in range(4):
        torch.testing.assert_close(jitted(torch.ones(2)), torch.ones(2) * (i + 1) * (i + 2))
    state.fails = True
    with pytest.raises(KeyError):
        jitted(torch.ones(2))
    assert (state.n, state.items) == (5, [6, 2]) and type(state.n) is type(state.items[0]) is int


def test_numbers_that_are_one_object_and_a_dict_of_variables() -> None:
    class Box:
        def __init__(self) -> None:
            self.n = 1000

    ours, theirs = Box(), Box()

    def fn(x: Any, box: Any) -> Any:
        box.n += 1
        whole = vars(box)
        whole["m"] = whole["n"] * 2
        return x * box.m + len(whole)

    jitted = thunder.jit(lambda x: fn(x, ours))
    for _ in range(6):
        torch.testing.assert_close(jitted(torch.ones(2)), fn(torch.ones(2), theirs))
        assert vars(ours) == vars(theirs) and all(type(v) is int for v in vars(ours).values())


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(
            st.integers(-3, 6), st.floats(-2, 2), st.lists(st.integers(0, 4), min_size=1, max_size=3), st.booleans()
        ),
        min_size=3,
        max_size=8,
    )
)
def test_no_program_answers_for_another(calls: list[Any]) -> None:
    """Whatever changes between calls, results and what is left are those of eager."""

    class State:
        def __init__(self) -> None:
            self.n, self.s, self.items, self.flag = 0, 0.0, [0], False
            self.table = {"n": 0}

    def fn(x: Any, o: Any) -> Any:
        o.total = o.n * 2 + o.table["n"]
        y = x * o.s + sum(o.items) + o.total
        if o.n > 2 or o.flag:
            y = -y
        if o.items[0] == 3:
            o.items.append(o.n)
        o.table["n"] = o.n
        return y, o.n / 4, len(o.items)

    ours, theirs = State(), State()
    jitted = thunder.jit(lambda x: fn(x, ours))
    for n, s, items, flag in calls:
        for o in (ours, theirs):
            o.n, o.s, o.items[:], o.flag = n, s, items, flag
        x = torch.arange(3.0)
        out, expected = jitted(x), fn(x, theirs)
        torch.testing.assert_close(out[0], expected[0])
        assert out[1:] == expected[1:] and vars(ours) == vars(theirs)


# -- options ----------------------------------------------------------------------------------------------------------
def test_same_input_asks_for_nothing_but_the_arguments() -> None:
    model = nn.Linear(3, 3)
    jitted = thunder.jit(model, cache="same input")
    x = torch.randn(2, 3)
    for _ in range(3):
        torch.testing.assert_close(jitted(x), model(x))
    assert misses(jitted) == 1
    prologue = str(thunder.last_prologue_traces(jitted)[-1])
    assert "tensors" not in prologue.lower().replace("tensorsdiffer", "") and "_compiled_call_impl" not in prologue
    with torch.no_grad():
        model.weight.mul_(2)  # values are inputs
        assert not jitted(x).requires_grad  # torch's modes are asked for all the same
    torch.testing.assert_close(jitted(x), model(x))
    assert misses(jitted) == 2
    with pytest.raises(ValueError, match="cache is one of"):
        thunder.jit(model, cache="sometimes")


def test_no_caching() -> None:
    jitted = thunder.jit(lambda x, n: x * n, cache="no caching")
    for n in range(4):
        torch.testing.assert_close(jitted(torch.ones(2), n), torch.ones(2) * n)
    assert (misses(jitted), thunder.cache_hits(jitted)) == (4, 0)
    assert not jitted._cache.dynamic.numbers


# -- lookup -----------------------------------------------------------------------------------------------------------
def counted(jitted: Any) -> collections.Counter[int]:
    """Counts how often each program's prologue is asked from now on."""
    counts: collections.Counter[int] = collections.Counter()
    for i, specialization in enumerate(jitted._cache):
        prologue = specialization.prologue

        def asked(*args: Any, _i: int = i, _prologue: Any = prologue, **kwargs: Any) -> Any:
            counts[_i] += 1
            return _prologue(*args, **kwargs)

        specialization.prologue = asked
    return counts


def of_modes(count: int) -> tuple[Any, Any]:
    """A jitted function with a program for each of so many strings."""
    jitted = thunder.jit(lambda x, mode: x * len(mode))
    modes = ["a" * (i + 1) for i in range(count)]
    for mode in modes:
        jitted(torch.ones(2), mode)
    assert misses(jitted) == count
    return jitted, modes


def test_calls_in_turns_ask_one_program_each() -> None:
    jitted, modes = of_modes(4)
    for _ in range(2):  # to learn what comes after what
        for mode in modes:
            jitted(torch.ones(2), mode)
    counts = counted(jitted)
    for _ in range(3):
        for mode in modes:
            torch.testing.assert_close(jitted(torch.ones(2), mode), torch.ones(2) * len(mode))
    assert sum(counts.values()) == 12 and misses(jitted) == 4


def test_shapes_find_their_program_at_once() -> None:
    torch.manual_seed(0)
    jitted = thunder.jit(lambda x: x * x.dim())
    shapes = [(2,), (2, 3), (2, 3, 2), (1, 2, 3, 2), (2, 2, 2, 2, 2)]
    for shape in shapes:
        jitted(torch.ones(shape))
    assert misses(jitted) == 5
    counts = counted(jitted)
    order = torch.randint(5, (40,)).tolist()
    for i in order:
        x = torch.ones(shapes[i])
        torch.testing.assert_close(jitted(x), x * len(shapes[i]))
    assert misses(jitted) == 5
    assert sum(counts.values()) <= 2 * len(order), counts


def test_many_programs_then_eager() -> None:
    jitted, modes = of_modes(MAX_SPECIALIZATIONS)
    with pytest.warns(UserWarning, match="mode was"):
        torch.testing.assert_close(jitted(torch.ones(2), "z" * 99), torch.ones(2) * 99)
    hits = thunder.cache_hits(jitted)
    jitted(torch.ones(2), modes[3])
    assert thunder.cache_hits(jitted) == hits + 1 and misses(jitted) == MAX_SPECIALIZATIONS


def test_registering_an_implementation_drops_programs() -> None:
    from thunder.core.state import registrations

    jitted = thunder.jit(lambda x: x + 1)
    jitted(torch.ones(2))
    registrations[0] += 1
    jitted(torch.ones(2))
    assert misses(jitted) == 2 and len(jitted._cache) == 1


def test_refusals_hold_no_tensors() -> None:
    jitted = thunder.jit(lambda x: x * 2)
    shapes = [(2,), (2, 2), (2, 2, 2), (2,)]

    def call() -> list[Any]:
        gone = []
        for shape in shapes:
            x = torch.ones(shape)
            gone.append(weakref.ref(x))
            jitted(x)
        del x
        return gone

    first = call()
    gc.collect()
    assert [ref() for ref in first] == [None] * 4
    gc.disable()
    try:
        assert [ref() for ref in call()] == [None] * 4
    finally:
        gc.enable()
    assert misses(jitted) == 3


def test_threads_with_calls_of_their_own() -> None:
    jitted = thunder.jit(lambda x, n: x * n + x.shape[0])
    faults: list[Any] = []

    def work(k: int) -> None:
        for i in range(20):
            n = 2 + (i * k) % 5
            out = jitted(torch.ones(n), i)
            if not torch.equal(out, torch.ones(n) * i + n):
                faults.append((k, i, out))

    in_threads(work, [(k,) for k in range(1, 4)])
    assert not faults


def test_an_empty_cache() -> None:
    cache = Cache()
    assert cache.find((1,), {"k": "x"}, []) is None and len(cache) == 0 and cache.likeliest is None


def test_the_lookup_of_a_call_runs_no_code_of_a_subclass() -> None:
    """Its `__torch_function__` would run for `x.shape`, here without end."""

    class Endless(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    jitted = thunder.jit(lambda x: torch.overrides.has_torch_function_unary(x), sharp_edges="allow")
    for _ in range(3):
        assert jitted(Endless()) is True
    assert jitted(4) is False
