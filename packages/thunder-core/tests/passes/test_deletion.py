# SPDX-License-Identifier: Apache-2.0
"""Memory: each value is deleted right after its last use, and never one that is returned."""

from __future__ import annotations

import functools
import gc
import itertools
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recording import traced as traced_unpacking

import thunder
from thunder.core import devices, dtypes, prims
from thunder.core.symbol import proxies_in
from thunder.core.trace import Trace
from thunder.core.verify import verify
from thunder.passes.deletion import delete_last_used, hand_over_early

traced = functools.partial(traced_unpacking, unpack=True)


def test_the_text() -> None:
    """`del` stands in the line after the last use, inputs included."""

    def f(a: Any, b: Any) -> Any:
        c = prims.sin(a)
        d = prims.add(c, b)
        return prims.mul(d, c)

    body = [line.strip() for line in delete_last_used(traced(f)).python(depth=0).splitlines()]
    assert [line for line in body if line.startswith("del")] == ["del a", "del b", "del t1, t0"]
    assert body.index("del a") == next(i for i, line in enumerate(body) if line.startswith("t0 =")) + 1


def test_a_result_that_nobody_uses_is_deleted_at_once() -> None:
    """It exists because its operation has an effect."""

    def f(a: Any, b: Any) -> Any:
        prims.uniform((2,), 0.0, 1.0, device=devices.cpu, dtype=dtypes.float32)
        return a

    body = delete_last_used(traced(f)).python(depth=0).splitlines()
    assert "  del t0" in body
    assert "  del a" not in body


STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 99), st.integers(0, 99)), max_size=10)


@given(STEPS, st.lists(st.integers(0, 99), max_size=3))
def test_each_value_lives_from_its_making_to_its_last_use(steps: Any, returned: Any) -> None:
    """On random programs: a legal program, each name deleted once, none that is returned, none late."""

    def f(a: Any, b: Any) -> Any:
        values = [a, b]
        for binary, i, j in steps:
            x, y = values[i % len(values)], values[j % len(values)]
            values.append(prims.add(x, y) if binary else prims.sin(x))
        return [values[i % len(values)] for i in returned]

    trace = traced(f)
    out = delete_last_used(trace)
    verify(out)
    kept = {p.name for p in proxies_in(trace.output)}
    last: dict[str, int] = {}
    for i, op in enumerate(trace.bound_symbols):
        if op.sym not in (prims.unpack_trivial, prims.python_return):
            last.update(dict.fromkeys([*op.arg_names, *op.out_names], i))
    expected: dict[int, set[str]] = {}
    for name, i in last.items():
        if name not in kept:
            expected.setdefault(i, set()).add(name)
    found: dict[int, set[str]] = {}
    position = -1
    for op in out.bound_symbols:
        if op.sym is prims.python_del:
            assert position not in found
            found[position] = set(op.arg_names)
            assert len(op.arg_names) == len(found[position])
        else:
            position += 1
    assert found == expected
    a, b = torch.randn(2, 3), torch.randn(2, 3)
    torch.testing.assert_close(out.python_callable()(a, b), trace.python_callable()(a, b))


def test_intermediates_are_freed_while_the_program_runs() -> None:
    """A value is gone before the next one that is not made from it is there."""
    alive: list[int] = []
    refs: list[weakref.ref[torch.Tensor]] = []
    executor = thunder.extend.OperatorExecutor("watcher")

    def watch(a: torch.Tensor) -> torch.Tensor:
        out = a + 1
        refs.append(weakref.ref(out))
        alive.append(sum(r() is not None for r in refs))
        return out

    op = executor.register_operator("watch", like=lambda a: a + 1, fn=watch)
    f = thunder.jit(lambda a: op(op(op(op(op(a))))), executors=[executor])
    f(torch.ones(3))
    gc.collect()
    refs.clear()
    alive.clear()
    f(torch.ones(3))
    assert len(alive) == 5
    assert max(alive) == 2  # what is being read, and what is being made


def staged(fn: Any, stages: list[list[int]]) -> Trace:
    """The trace of `fn`, whose results are handed over in these stages."""
    trace = traced(fn)
    trace.info["stages"] = stages
    return verify(hand_over_early(verify(delete_last_used(trace))))


def test_results_that_are_handed_over() -> None:
    """As soon as the last of a stage is there, and held no longer; what is read again, or given again, is held."""

    def f(a: Any, b: Any) -> Any:
        c = prims.sin(a)
        d = prims.cos(b)
        e = prims.mul(d, d)
        return [e, None, c, d, c]

    assert staged(f, [[2, 1], [3], [0, 4]]).python(depth=0, decorators=False).splitlines()[5:] == [
        '  # a: "cpu f32[2, 3]"',
        '  # b: "cpu f32[2, 3]"',
        '  t0 = prims.sin(a)  # t0: "cpu f32[2, 3]"',
        "  del a",
        "  ready = [t0, None]",
        "  yield ready",
        '  t1 = prims.cos(b)  # t1: "cpu f32[2, 3]"',
        "  del b",
        "  ready = [t1]",
        "  yield ready",
        '  t2 = prims.mul(t1, t1)  # t2: "cpu f32[2, 3]"',
        "  return [t2, t0]",
    ]
    assert staged(f, [[3, 0], [1, 2, 4]]).python(depth=0, decorators=False).splitlines()[-5:] == [
        '  t2 = prims.mul(t1, t1)  # t2: "cpu f32[2, 3]"',
        "  ready = [t1, t2]",
        "  del t1, t2",
        "  yield ready",
        "  return [None, t0, t0]",
    ]


@given(st.data())
def test_handed_over_once_each(data: st.DataObject) -> None:
    """Whatever the stages and whatever they hold: the results are those of the program as a function."""

    def f(a: Any, b: Any) -> Any:
        values = [a, b]
        for i in range(data.draw(st.integers(0, 6), label="operations")):
            pair = [data.draw(st.sampled_from(values), label=f"operand of {i}") for _ in range(2)]
            values.append(prims.add(*pair))
        return data.draw(st.lists(st.sampled_from([*values, None]), min_size=1, max_size=6), label="results")

    trace = traced(f)
    count = len(trace.output)
    order = data.draw(st.permutations(range(count)), label="order")
    cuts = sorted(data.draw(st.sets(st.integers(1, count)), label="cuts") | {0, count})
    stages = [order[a:b] for a, b in itertools.pairwise(cuts)]
    trace.info["stages"] = stages
    inputs = torch.randn(2, 3), torch.randn(2, 3)
    whole = delete_last_used(trace).python_callable(decorators=False)(*inputs)
    steps = verify(hand_over_early(verify(delete_last_used(trace)))).python_callable(decorators=False)
    found: dict[int, Any] = {}
    if len(stages) == 1:
        found.update(zip(stages[0], steps(*inputs)))
    else:
        running = steps(*inputs)
        for stage in stages[:-1]:
            ready = next(running)
            found.update(zip(stage, ready, strict=True))
            ready.clear()
        with pytest.raises(StopIteration) as end:
            next(running)
        found.update(zip(stages[-1], end.value.value, strict=True))
    torch.testing.assert_close([found[i] for i in range(count)], whole, rtol=0, atol=0)
