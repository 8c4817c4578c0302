# SPDX-License-Identifier: Apache-2.0
"""Regions: whatever the program, dividing it keeps it the same program; and what belongs together comes together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import float_tensor, record

from thunder.core import devices, dtypes, prims
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol, OpTags
from thunder.core.trace import Trace
from thunder.core.verify import verify
from thunder.execution.regions import Region, fused, partition

# What the tests' fuser takes: two kinds that cannot be mixed. The others stay by themselves.
KEYS = {"add": "arithmetic", "mul": "arithmetic", "exp": "transcendental", "uniform": "arithmetic"}


def can_fuse(bsym: BoundSymbol) -> str | None:
    """The kind of an operation."""
    return KEYS.get(bsym.sym.name)


def traced(fn: Callable[..., Any], count: int = 2, shape: tuple[int, ...] = (4,)) -> Trace:
    """The trace of `fn` on float32 tensors a0, a1 …"""
    return record(fn, [float_tensor(f"a{i}", *shape) for i in range(count)])


def regions_of(trace: Trace, **options: Any) -> list[list[str]]:
    """The names of the operations of each region."""
    parts = partition(trace, can_fuse, **options)
    return [[op.sym.name for op in part.operations] for part in parts if isinstance(part, Region)]


def draw() -> Any:
    """A random operation."""
    return prims.uniform((4,), 0.0, 1.0, device=devices.cpu, dtype=dtypes.float32)


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": prims.add,
    "mul": prims.mul,
    "exp": lambda a, b: prims.exp(a),
    "sin": lambda a, b: prims.sin(b),  # not fused
    "uniform": lambda a, b: prims.add(draw(), a),
    "copy": lambda a, b: prims.copy_(a, b),  # writes
}


@st.composite
def programs(draw_: Any) -> Trace:
    """A program of up to forty operations that read anything made before them."""
    steps = draw_(
        st.lists(
            st.tuples(
                st.sampled_from(["add", "mul", "exp", "sin", "add", "uniform", "copy"]),
                st.integers(0, 60),
                st.integers(0, 60),
            ),
            min_size=1,
            max_size=40,
        )
    )
    returned = draw_(st.sets(st.integers(0, 60), min_size=1, max_size=4))

    def fn(*args: Any) -> Any:
        values = list(args)
        for kind, i, j in steps:
            a, b = values[-1 - i % len(values)], values[-1 - j % len(values)]
            if kind == "copy" and a is b:
                continue
            values.append(OPERATIONS[kind](a, b))
        return tuple(dict.fromkeys(values[-1 - i % len(values)] for i in returned))

    return traced(fn, 3)


def effects(operations: list[BoundSymbol]) -> list[tuple[str, ...]]:
    """What may not be reordered: draws and writes."""
    tags = {OpTags.RANDOM_OP, OpTags.IN_PLACE_OP}
    return [op.out_names for op in operations if op.sym.tags & tags]


def flat(parts: list[BoundSymbol | Region]) -> list[BoundSymbol]:
    """The operations in the order in which they run."""
    return [op for part in parts for op in (part.operations if isinstance(part, Region) else [part])]


@settings(max_examples=150)
@given(programs(), st.booleans(), st.sampled_from([None, 1, 3, 7]), st.booleans())
def test_the_program_stays_the_same(trace: Trace, horizontal: bool, max_size: int | None, picky: bool) -> None:
    """Each operation once, values before their uses, effects in order; regions say what goes in and out."""

    def may_join(first: Any, second: Any) -> bool:
        return not picky or len(first) % 2 == 0

    parts = partition(trace, can_fuse, horizontal=horizontal, max_size=max_size, may_join=may_join)
    operations = flat(parts)
    assert sorted(map(id, operations)) == sorted(map(id, trace.bound_symbols))
    assert effects(operations) == effects(trace.bound_symbols)
    assert operations[-1] is trace.bound_symbols[-1]
    out = fused(trace, parts, lambda region: None, "Regions")
    verify(out)
    for part in parts:
        if not isinstance(part, Region):
            assert can_fuse(part) is None
            continue
        assert {can_fuse(op) for op in part.operations} == {part.key}
        assert len(part) <= (max_size or len(operations))
        made = {name for op in part.operations for name in op.out_names}
        read = {name for op in part.operations for name in op.arg_names}
        elsewhere = {n for other in parts if other is not part for op in flat([other]) for n in op.arg_names}
        assert {p.name for p in part.inputs} == read - made
        assert {p.name for p in part.outputs} == made & elsewhere
        assert len(part.inputs) == len(read - made)
    _check_order_of_writes(trace, operations)


def _check_order_of_writes(trace: Trace, operations: list[BoundSymbol]) -> None:
    """What came before a write comes before it, and what came after it after."""
    before = {id(op): i for i, op in enumerate(trace.bound_symbols)}
    after = {id(op): i for i, op in enumerate(operations)}
    for write in (op for op in operations if OpTags.IN_PLACE_OP in op.sym.tags):
        for op in operations:
            if op is not write:
                assert (before[id(op)] < before[id(write)]) == (after[id(op)] < after[id(write)])


@settings(max_examples=60)
@given(programs())
def test_dividing_twice_changes_nothing_more(trace: Trace) -> None:
    """The order that it gives is one that it keeps."""
    once = fused(trace, partition(trace, can_fuse), lambda region: None, "Regions")
    parts = partition(once, can_fuse)
    assert len([p for p in parts if isinstance(p, Region)]) <= len(
        [p for p in partition(trace, can_fuse) if isinstance(p, Region)]
    )


def test_a_chain_is_one_region() -> None:
    """And so is everything connected, where nothing else comes between."""
    trace = traced(lambda a, b: prims.add(prims.mul(prims.add(a, b), b), prims.mul(a, a)))
    assert regions_of(trace) == [["add", "mul", "mul", "add"]]


def test_around_an_operation_that_is_not_fused() -> None:
    """What is before it and what is after it cannot be one region, even where they are connected."""

    def fn(a: Any, b: Any) -> Any:
        x = prims.add(a, b)
        y = prims.sin(x)
        return prims.mul(prims.add(x, y), x)

    assert regions_of(traced(fn)) == [["add"], ["add", "mul"]]


def test_what_only_a_later_region_needs_goes_there() -> None:
    """It is written early, and run late: its result never leaves the region."""

    def fn(a: Any, b: Any) -> Any:
        early = prims.mul(a, b)
        x = prims.sin(prims.sin(prims.add(a, a)))
        return prims.add(x, early)

    parts = partition(traced(fn), can_fuse)
    names = [[op.sym.name for op in flat([part])] for part in parts]
    assert names == [["add"], ["sin"], ["sin"], ["mul", "add"], ["python_return"]]


def test_nothing_runs_late_that_would_hold_memory() -> None:
    """A small result of a large value that dies is made at once."""

    def fn(a: Any, b: Any) -> Any:
        small = prims.sum(prims.add(a, a), (0,))
        x = prims.sin(prims.sin(prims.sum(b, (0,))))
        return prims.add(x, small)

    keys = {**KEYS, "sum": "arithmetic"}
    parts = partition(traced(fn, shape=(1000,)), lambda op: keys.get(op.sym.name))
    assert [len(p) for p in parts if isinstance(p, Region)] == [2, 1, 1]


def test_kinds_are_not_mixed() -> None:
    """Regions have one key each, whatever the way between them."""

    def fn(a: Any, b: Any) -> Any:
        x = prims.exp(prims.exp(prims.add(a, b)))
        return prims.add(x, a), prims.exp(prims.mul(a, a))

    found = regions_of(traced(fn), horizontal=False)
    assert sorted(found) == [["add"], ["add"], ["exp"], ["exp", "exp"], ["mul"]]


def test_side_by_side() -> None:
    """Two that read the same tensor may be one region; not where one needs the other."""

    def independent(a: Any, b: Any) -> Any:
        return prims.sin(prims.add(a, b)), prims.sin(prims.mul(a, a))

    assert regions_of(traced(independent)) == [["add", "mul"]]
    assert regions_of(traced(independent), horizontal=False) == [["add"], ["mul"]]

    def dependent(a: Any, b: Any) -> Any:
        return prims.mul(a, prims.sin(prims.add(a, b)))

    assert regions_of(traced(dependent)) == [["add"], ["mul"]]


def test_side_by_side_at_different_times() -> None:
    """What could run early waits for a later region that reads the same tensor, where that is large enough."""

    def f(a: Any, b: Any) -> Any:
        early = prims.mul(a, a)
        late = prims.add(prims.sin(prims.add(b, b)), a)
        return prims.sin(early), late

    assert regions_of(traced(f)) == [["add"], ["mul", "add"]]


def test_a_small_tensor_joins_nothing_that_is_far_apart() -> None:
    """Layers that read the same angles stay in their own time."""
    small = TensorProxy("small", shape=(1,), device=devices.cpu, dtype=dtypes.float32)

    def layer(x: Any, s: Any) -> Any:
        return prims.mul(x, prims.broadcast_in_dim(s, (64,), (0,)))

    def f(a: Any, b: Any, s: Any) -> Any:
        return prims.sin(layer(a, s)), prims.sin(layer(b, s))

    args = [TensorProxy(f"a{i}", shape=(64,), device=devices.cpu, dtype=dtypes.float32) for i in range(2)]
    trace = Trace("f", args=[*args, small])
    with tracectx(trace):
        trace.output = f(*args, small)
        prims.python_return(trace.output)
    fuses = {"mul", "broadcast_in_dim"}
    parts = partition(trace, lambda op: op.sym.name in fuses)
    assert len([part for part in parts if isinstance(part, Region)]) == 2


def test_draws_of_two_regions_keep_their_order() -> None:
    """A region that draws between two draws of another cannot be passed by."""

    def fn(a: Any, b: Any) -> Any:
        first = prims.mul(draw(), a)
        second = prims.sin(draw())
        return prims.add(prims.mul(draw(), first), second)

    trace = traced(fn)
    assert effects(flat(partition(trace, can_fuse))) == effects(trace.bound_symbols)


def test_a_write_divides() -> None:
    """Nothing moves across it."""

    def fn(a: Any, b: Any) -> Any:
        x = prims.add(a, b)
        prims.copy_(b, a)
        return prims.mul(x, a)

    parts = partition(traced(fn), can_fuse)
    assert [op.sym.name for op in flat(parts)] == ["add", "copy_", "mul", "python_return"]
    assert len([p for p in parts if isinstance(p, Region)]) == 2


def test_replacing() -> None:
    """`fused` puts in what it is given, and leaves a region of which it is given nothing."""
    trace = traced(lambda a, b: (prims.sin(prims.add(a, b)), prims.mul(a, b)))
    seen: list[Region] = []

    def replace(region: Region) -> list[BoundSymbol] | None:
        seen.append(region)
        return [region.operations[0].replace()] if len(region) == 1 else None

    out = fused(trace, partition(trace, can_fuse, horizontal=False), replace, "Regions")
    verify(out)
    assert [repr(r) for r in seen] == ["<Region of 1: add>", "<Region of 1: mul>"]
    assert out.provenance.name == "Regions"


@pytest.mark.parametrize("shape", ["chain", "layers", "far"])
def test_large_programs(shape: str) -> None:
    """Twenty thousand operations, also where each reads what was made long before; nesting is no matter."""

    def fn(a: Any, b: Any) -> Any:
        x, old = a, [a, b]
        for i in range(20_000):
            if shape == "chain":
                x = prims.add(x, b)
            elif shape == "layers":
                x = prims.sin(x) if i % 8 == 0 else prims.mul(x, b)
            else:
                x = prims.sin(x) if i % 8 == 0 else prims.add(x, old[(i * 7919) % len(old)])
            old.append(x)
        return x

    trace = traced(fn)
    parts = partition(trace, can_fuse)
    assert len(flat(parts)) == 20_001
    count = len([p for p in parts if isinstance(p, Region)])
    assert count == (1 if shape == "chain" else 2_500)
