# SPDX-License-Identifier: Apache-2.0
"""Branches on values of tensors: each path is one program, and results, state and draws are as in eager mode."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from value_branches import INPUTS, same, several

import thunder
from thunder.frontend.paths import FREE_PATHS, MAX_RANDOM_PATHS


def branch(x: Any) -> Any:
    if x.sum() > 0:
        return x * 2
    return x - 1


def assertion(x: Any) -> Any:
    assert not (x > 100.0).any()
    return x.exp()


def loop(x: Any) -> Any:
    n = 0
    while x.abs().max() > 1:
        x, n = x / 2, n + 1
    return x, n


def nan(x: Any) -> Any:
    if x.isnan().any():
        x = torch.nan_to_num(x)
    return x + 1


def size(x: Any) -> Any:
    n = int((x > 0).sum())
    return [x * i for i in range(n)]


def item(x: Any) -> Any:
    total = x.sum().item()
    return x * 3 if total > 1 else x / 2 if total > 0 else x


def key(x: Any) -> Any:
    return {True: x + 1, False: x - 1}[bool(x.mean() > 0)]


def member(x: Any) -> Any:
    values = [x.sum().round(), x.max()]
    return x * 2 if 1 in values else x


def extremes(x: Any) -> Any:
    return x * min(max(x.sum(), 0), 1)


def permuted(x: Any) -> Any:
    order = (x[:2] > 0).long().argsort(stable=True)
    return x[:4].reshape(2, 2).permute(*order)


def number_as_index(x: Any) -> Any:
    return x[int(x.argmax()) :], [10, 20, 30, 40, 50, 60][x.argmax()]


PROGRAMS = [
    branch, assertion, loop, nan, size, item, key, member, extremes, permuted, several, number_as_index,
]  # fmt: skip


@pytest.mark.parametrize("fn", PROGRAMS)
def test_paths_are_as_in_eager(fn: Callable[[Any], Any]) -> None:
    jitted = thunder.jit(fn)
    for x in (*INPUTS, *INPUTS, *INPUTS):
        if fn is loop and x.isnan().any():
            continue
        same(jitted(x.clone()), fn(x.clone()))


@pytest.mark.parametrize("fn", [branch, assertion, nan, key, item])
def test_repeated_paths_hit(fn: Callable[[Any], Any]) -> None:
    jitted = thunder.jit(fn)
    for x in INPUTS:
        jitted(x)
    compiled = thunder.compile_stats(jitted).cache_misses
    for x in INPUTS:
        jitted(x)
    assert thunder.compile_stats(jitted).cache_misses == compiled <= 3


@pytest.mark.parametrize("fn", [branch, several, item, nan])
def test_gradients_of_paths(fn: Callable[[Any], Any]) -> None:
    jitted = thunder.jit(fn)
    for values in (*INPUTS, *INPUTS):
        grads = []
        for run in (fn, jitted):
            x = values.clone().requires_grad_()
            run(x).square().sum().backward()
            grads.append(x.grad)
        same(grads[1], grads[0])


def test_a_decision_is_a_line_of_the_trace() -> None:
    jitted = thunder.jit(branch)
    jitted(torch.ones(3))
    assert "decide(u0, True, 0)" in str(thunder.last_traces(jitted)[-1])
    explained = thunder.explain(jitted)
    assert "path with 1 call" in explained
    assert "u0 is True, at" in explained and "if x.sum() > 0" in explained


def test_a_number_is_a_relation() -> None:
    """The path holds for all values with the same answer."""

    def f(x: Any) -> Any:
        return x * 2 if x.sum().item() > 3 else x

    jitted = thunder.jit(f)
    for total in (4.0, 5.0, 6.0, 1.0, 2.0):
        x = torch.tensor([total])
        same(jitted(x), f(x))
    assert thunder.compile_stats(jitted).cache_misses == 2
    assert "decide(u0 > 3, False, 0)" in str(thunder.last_traces(jitted)[-1])


# -- state and effects -----------------------------------------------------------------------------------------------
def test_writes_come_after_the_last_decision() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))
            self.log: list[str] = []

        def forward(self, x: Any) -> Any:
            self.seen.add_(1)
            x.mul_(2)
            self.log.append("before")
            print("before")
            if x.sum() > 0:
                self.log.append("positive")
                return x + self.seen
            self.seen.add_(10)
            return x - self.seen

    eager = Counts()
    jitted = thunder.jit(copy.deepcopy(eager))
    for x in (*INPUTS[:3], *INPUTS[:3]):
        a, b = x.clone(), x.clone()
        same(jitted(a), eager(b))
        same(a, b)
        same(jitted.seen, eager.seen)
        assert jitted.log == eager.log


def test_effects_are_repeated_once(capsys: Any) -> None:
    def f(x: Any) -> Any:
        print("start")
        if x.sum() > 0:
            print("positive")
        return x

    jitted = thunder.jit(f)
    for x in (INPUTS[0], INPUTS[2], INPUTS[0], INPUTS[2]):
        f(x)
        eager = capsys.readouterr().out
        jitted(x)
        assert capsys.readouterr().out == eager


def drawn(x: Any) -> Any:
    if torch.rand([]) < 0.5:
        x = x + torch.rand(5)
    return x * torch.rand(5)


@pytest.mark.filterwarnings("ignore:.*branches on random draws")
def test_draws_are_those_of_eager() -> None:
    x = torch.ones(5)
    jitted = thunder.jit(drawn)
    torch.manual_seed(0)
    expected = [drawn(x) for _ in range(20)]
    state = torch.get_rng_state()
    torch.manual_seed(0)
    same([jitted(x) for _ in range(20)], expected)
    same(torch.get_rng_state(), state)
    assert thunder.compile_stats(jitted).cache_misses == 2


class LayerDrop(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(layers)])

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            if torch.rand([]) < 0.5:
                continue
            x = layer(x)
        return x


def test_many_random_paths_run_in_pieces() -> None:
    torch.manual_seed(0)
    model = LayerDrop(6)
    jitted = thunder.jit(model)
    x = torch.randn(2, 4)
    with pytest.warns(UserWarning, match="branches on random draws, and 4 paths are compiled"):
        for seed in range(40):
            torch.manual_seed(seed)
            expected = model(x)
            torch.manual_seed(seed)
            same(jitted(x), expected)
    assert thunder.compile_stats(jitted).cache_misses == MAX_RANDOM_PATHS
    assert "partly eager" in thunder.explain(jitted)


def test_a_path_is_added_when_the_others_have_paid_for_it() -> None:
    def f(x: Any) -> Any:
        return [x * i for i in range(int(x.sum()))]

    jitted = thunder.jit(f)
    for n in (0, 1, 2, 3, 4, *([0, 1, 2, 3] * 8), 4, 4, 4):
        x = torch.tensor([float(n)])
        same(jitted(x), f(x))
    stats = thunder.compile_stats(jitted)
    assert (stats.cache_misses, stats.eager) == (5, None)


def test_paths_that_are_never_repeated_are_given_up() -> None:
    def f(x: Any) -> Any:
        return [x * i for i in range(int(x.sum()))]

    jitted = thunder.jit(f)
    with pytest.warns(UserWarning, match="compiled paths are rarely repeated"):
        for n in range(30):
            x = torch.tensor([float(n)])
            same(jitted(x), f(x))
    assert thunder.compile_stats(jitted).cache_misses == FREE_PATHS


@pytest.mark.parametrize("most", [1, 3])
def test_no_path_is_compiled_when_the_cache_is_full(most: int) -> None:
    """Otherwise each new path replaces another one, and each call compiles. One warning says so."""

    def f(x: Any) -> Any:
        return [x * i for i in range(int(x.sum()))]

    jitted = thunder.jit(f, max_programs=most)
    numbers = [0, 1, 2, 3, 4, *([0] * 12), 3, 4]
    with pytest.warns(thunder.FallbackWarning, match="and a branch has another answer in this call") as warned:
        for n in numbers:
            x = torch.tensor([float(n)])
            same(jitted(x), f(x))
    stats = thunder.compile_stats(jitted)
    assert (stats.cache_misses, stats.eager_calls, len(warned)) == (most, sum(n >= most for n in numbers), 1)
    assert "falls back to eager" in thunder.explain(jitted)


def test_a_function_with_a_full_cache_runs_in_pieces_if_its_paths_are_not_repeated() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Sequential(nn.Linear(1, 1), nn.ReLU())

        def forward(self, x: Any) -> Any:
            return [self.layer(x) * i for i in range(int(x.sum()))]

    model = Model()
    jitted = thunder.jit(model, max_programs=2)
    with pytest.warns(thunder.FallbackWarning, match="compiled paths are rarely repeated"):
        for n in range(30):
            x = torch.tensor([float(n)])
            same(jitted(x), model(x))
    stats = thunder.compile_stats(jitted)
    assert stats.cache_misses == 2 and stats.partly_eager_calls > 0
    assert "thunder.jit(Sequential): " in thunder.explain(jitted)


def test_a_range_up_to_a_number_is_decided_before_the_range() -> None:
    """As the fixed steps of a solver of differential equations."""

    def f(x: Any, step: float) -> Any:
        n = torch.ceil((x[-1] - x[0]) / step + 1).item()
        grid = torch.arange(0, n, dtype=x.dtype) * step + x[0]
        grid[-1] = x[-1]
        return sum((b - a) * b for a, b in itertools.pairwise(grid))

    jitted = thunder.jit(f)
    for last in (1.0, 1.0, 2.0, 1.0, 2.0):
        times = torch.linspace(0, last, 3)
        torch.testing.assert_close(jitted(times, 0.25), f(times, 0.25))
    assert thunder.cache_misses(jitted) == 2, thunder.explain(jitted)


def test_a_long_loop_runs_in_pieces() -> None:
    """As a solver with hundreds of accepted and rejected steps."""

    def f(x: Any) -> Any:
        while x.sum() < 1000:
            x = x + 1
        return x

    jitted = thunder.jit(f)
    for start in (0.0, 1.0):
        same(jitted(torch.full((1,), start)), torch.full((1,), 1000.0))
    assert "the steps of a loop" in thunder.explain(jitted) and thunder.cache_misses(jitted) == 1


def test_autocast_and_no_grad() -> None:
    linear = nn.Linear(5, 5)

    def f(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            y = linear(x)
        with torch.no_grad():
            if y.sum() > 0:
                y = y * 2
        return y

    jitted = thunder.jit(f)
    for x in (*INPUTS[:3], *INPUTS[:3]):
        same(jitted(x), f(x))


def test_answers_are_imposed_on_the_other_path() -> None:
    """A value at the boundary, which the compiled program may round otherwise, does not send a call to and fro."""

    def f(x: Any, y: Any) -> Any:
        return x * 2 if (x * y).sum() > 1 else x

    jitted = thunder.jit(f)
    for scale in (1.0, 1 + 1e-7, 1 - 1e-7, 2.0, 0.0, 1.0):
        x, y = torch.full((10,), 0.1) * scale, torch.ones(10)
        same(jitted(x, y), f(x, y))


# -- random programs --------------------------------------------------------------------------------------------------
_STEPS: dict[str, Callable[[Any], Any]] = {
    "branch": lambda x: x * 2 if x.sum() > 0 else x - 1,
    "item": lambda x: x + 1 if x[0].item() > x[1].item() else x,
    "draw": lambda x: x + torch.rand(3) if torch.rand(()) < 0.5 else x * torch.rand(3),
    "write": lambda x: x.add_(1),
    "any": lambda x: x.sin() if (x > 0.5).any() else x.cos(),
    "while": lambda x: _halved(x),
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.5),
    "index": lambda x: x[x.argmax() :].sum() + x,
}


def _halved(x: Any) -> Any:
    while x.norm() > 2:
        x = x / 2
    return x


@pytest.mark.filterwarnings("ignore::UserWarning")
@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(_STEPS)), min_size=1, max_size=4),
    st.lists(st.integers(0, 5), min_size=2, max_size=5),
    st.booleans(),
)
def test_random_programs(steps: list[str], seeds: list[int], trains: bool) -> None:
    def f(x: Any) -> Any:
        x = x * 1
        for step in steps:
            x = _STEPS[step](x)
        return x

    jitted = thunder.jit(f)
    for seed in [*seeds, *seeds]:
        found = []
        for run in (f, jitted):
            torch.manual_seed(seed)
            x = torch.randn(3).requires_grad_(trains)
            out = run(x)
            if trains:
                out.sum().backward()
            found.append((out.detach(), x.grad, torch.get_rng_state()))
        torch.testing.assert_close(found[1], found[0])


def test_an_index_in_a_name() -> None:
    """As of the experts in a ModuleDict."""

    def f(x: Any) -> Any:
        return {"row_0": x + 1, "row_1": x - 1, "row_2": x * 2}[f"row_{x[:3].argmax()}"]

    jitted = thunder.jit(f)
    for x in (*INPUTS[:3], *INPUTS[:3]):
        same(jitted(x), f(x))


def test_an_operation_that_depends_on_a_condition_is_compiled() -> None:
    """The length of a range must not be negative. If its bounds come from floats, a decision precedes the range."""

    def f(x: Any) -> Any:
        first, last = x.to(torch.int32).tolist()
        return torch.arange(first, last, dtype=torch.float32) + 0.5

    jitted = thunder.jit(f, sharp_edges="error")
    for bounds in ([0.0, 5.0], [1.0, 6.0], [2.0, 3.0], [-1.0, 7.0], [2.0, 2.0], [0.0, 4.0]):
        x = torch.tensor(bounds)
        assert torch.equal(jitted(x), f(x))
    assert thunder.cache_misses(jitted) == 2  # an empty range is another path
