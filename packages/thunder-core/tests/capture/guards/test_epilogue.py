# SPDX-License-Identifier: Apache-2.0
"""After each call the user's objects are as eager would leave them, with plain tensors inside."""

from __future__ import annotations

import collections
import contextvars
import gc
import sys
import types
import weakref
from typing import Any

import pytest
import torch

import thunder
from thunder.core.transforms import grad

X = torch.linspace(-1, 1, 6)


def same(a: Any, b: Any) -> None:
    """Compares nested containers and objects with tensors inside."""
    assert type(a) is type(b), (a, b)
    if isinstance(a, torch.Tensor):
        assert type(a) in (torch.Tensor, torch.nn.Parameter)
        torch.testing.assert_close(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for k in a:
            same(a[k], b[k])
    elif isinstance(a, (list, tuple, collections.deque)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
    elif hasattr(a, "__dict__") and not isinstance(a, (torch.nn.Module, type, types.FunctionType)):
        same(vars(a), vars(b))
    else:
        assert a == b


def check(make: Any, run: Any, read: Any, calls: int = 4, *, misses: int | None = None) -> Any:
    """Calls `run(x, obj)` on an object and on its like, one jitted and one not; compares results and what is left."""
    ours, theirs = make(), make()
    jitted = thunder.jit(lambda x: run(x, ours))
    for i in range(calls):
        x = X + i
        same(jitted(x), run(x, theirs))
        same(read(ours), read(theirs))
    if misses is not None:
        assert thunder.cache_misses(jitted) == misses, thunder.explain(jitted)
    return jitted


class Holder:
    count = 0

    def __init__(self) -> None:
        self.state = torch.zeros(6)
        self.log: list[Any] = []
        self.table: dict[str, Any] = {"a": 1}
        self.recent: Any = collections.deque(maxlen=3)
        self.steps = 0
        self.seen: set[int] = set()


class Slotted:
    __slots__ = ("other", "state")

    def __init__(self) -> None:
        self.state = torch.zeros(6)


def test_attribute_tensor() -> None:
    def run(x: Any, o: Holder) -> Any:
        o.state = o.state * 0.5 + x
        return o.state.sum()

    jitted = check(Holder, run, lambda o: o.state, misses=1)
    assert "set_item" in str(thunder.last_epilogue_traces(jitted)[-1])


def test_attribute_that_is_only_written() -> None:
    def run(x: Any, o: Holder) -> Any:
        o.last = x * 2
        o.steps = 7
        return o.last + 1

    check(Holder, run, vars, misses=1)


def test_list_append() -> None:
    def run(x: Any, o: Holder) -> Any:
        o.log.append(x.sum())
        return x * 2

    check(Holder, run, lambda o: o.log, misses=1)


def test_list_edits() -> None:
    def run(x: Any, o: list) -> Any:
        o[0] = x + o[0]
        o.insert(1, x)
        del o[2]
        return o[0] * 2

    check(lambda: [torch.ones(6), 1, 2], run, lambda o: o)


def test_dict_stores_and_deletes() -> None:
    def run(x: Any, o: Holder) -> Any:
        o.table["b"] = x * 2
        o.table.pop("a", None)
        o.table["a"] = (x, [x + 1])
        return x

    check(Holder, run, lambda o: o.table)


class Tally(collections.defaultdict):
    pass


class Recent(collections.deque):
    pass


@pytest.mark.parametrize(
    ("new", "fact"),
    [
        (lambda: collections.defaultdict(list), "default_factory"),
        (lambda: Tally(int), "default_factory"),
        (lambda: collections.deque(maxlen=2), "maxlen"),
        (lambda: Recent(maxlen=2), "maxlen"),
    ],
    ids=["defaultdict", "a subclass of it", "deque", "a subclass of a deque"],
)
def test_new_containers_with_a_factory_or_a_limit(new: Any, fact: str) -> None:
    """The program stores them, and the next call uses what it finds."""

    def run(x: Any, o: Holder) -> Any:
        before = getattr(o.recent, fact, None)
        made = new()
        for n in range(3):
            if isinstance(made, dict):
                made[n] = x.sum() * n
            else:
                made.append(x.sum() * n)
        o.recent = made
        return x * (1 if before is None else 2)

    check(Holder, run, lambda o: [type(o.recent), getattr(o.recent, fact), list(o.recent)])


def test_deque_and_set() -> None:
    def run(x: Any, o: Holder) -> Any:
        o.recent.append(x.sum())
        o.seen.add(3)
        return x * len(o.recent)

    check(Holder, run, lambda o: (list(o.recent), o.seen), calls=6)


def test_slots() -> None:
    def run(x: Any, o: Slotted) -> Any:
        o.state = o.state + x
        o.other = 3
        return o.state

    check(Slotted, run, lambda o: (o.state, o.other))


def test_counter() -> None:
    def run(x: Any, o: Holder) -> Any:
        o.steps += 1
        return x * o.steps

    check(Holder, run, lambda o: o.steps)


def test_class_attribute() -> None:
    class A:
        last: Any = None

    class B:
        last: Any = None

    def run(x: Any, cls: Any) -> Any:
        cls.last = x * 2
        return x

    jitted = thunder.jit(lambda x: run(x, A))
    for i in range(3):
        same(jitted(X + i), run(X + i, B))
        same(A.last, B.last)


def test_closure_and_global() -> None:
    total = torch.zeros(())

    def run(x: Any) -> Any:
        nonlocal total
        global GLOBAL_LAST
        total = total + x.sum()
        GLOBAL_LAST = total * 2
        return total

    jitted = thunder.jit(run)
    for i in range(1, 4):
        jitted(X + i)
        torch.testing.assert_close(total, sum(((X + j).sum() for j in range(1, i + 1)), torch.zeros(())))
        torch.testing.assert_close(GLOBAL_LAST, total * 2)
    assert type(total) is torch.Tensor
    assert thunder.cache_misses(jitted) <= 2


GLOBAL_LAST: Any = None
VARIABLE: contextvars.ContextVar[Any] = contextvars.ContextVar("VARIABLE", default=0)


def test_context_variable() -> None:
    def run(x: Any) -> Any:
        VARIABLE.set(5)
        return x * 2

    jitted = thunder.jit(run)
    for value in (0, 1, 2):
        VARIABLE.set(value)
        jitted(X)
        assert VARIABLE.get() == 5


def test_objects_made_inside() -> None:
    class State:
        def __init__(self, h: Any):
            self.h = h
            self.parts = [h, (h, 2)]

    def run(x: Any, o: Holder) -> Any:
        o.made = State(x * 2)
        return o.made.h + 1

    ours = Holder()
    jitted = thunder.jit(lambda x: run(x, ours))
    made = []
    for i in range(3):
        jitted(X + i)
        torch.testing.assert_close(ours.made.h, (X + i) * 2)
        assert ours.made.parts[0] is ours.made.h
        made.append(ours.made)
    assert len({id(m) for m in made}) == 3
    assert thunder.cache_hits(jitted) >= 1


def test_objects_returned() -> None:
    class State:
        def __init__(self, h: Any):
            self.h = h

    jitted = thunder.jit(lambda x: (State(x * 2), {"k": State(x)}))
    for i in range(3):
        one, more = jitted(X + i)
        torch.testing.assert_close(one.h, (X + i) * 2)
        torch.testing.assert_close(more["k"].h, X + i)
    assert thunder.cache_misses(jitted) == 1


def test_containers_passed_in() -> None:
    def run(x: Any, log: list, table: dict) -> Any:
        log.append(x * 2)
        table["last"] = x + 1
        return log[0]

    jitted = thunder.jit(run)
    ours: Any = ([torch.ones(6)], {"first": 1})
    theirs: Any = ([torch.ones(6)], {"first": 1})
    for i in range(3):
        same(jitted(X + i, *ours), run(X + i, *theirs))
        same(list(ours), list(theirs))


def test_an_object_passed_in() -> None:
    def run(x: Any, o: Holder) -> Any:
        o.state = o.state + x
        return o.state * 2

    jitted = thunder.jit(run)
    ours, theirs = Holder(), Holder()
    for i in range(4):
        same(jitted(X + i, ours), run(X + i, theirs))
        same(ours.state, theirs.state)
    assert thunder.cache_misses(jitted) == 1
    again = Holder()
    jitted(X, again)
    torch.testing.assert_close(again.state, X)


def test_buffers_and_batch_norm() -> None:
    torch.manual_seed(0)
    ours, theirs = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
    jitted = thunder.jit(ours)
    for i in range(4):
        x = torch.randn(5, 3) + i
        torch.testing.assert_close(jitted(x), theirs(x))
        torch.testing.assert_close(dict(ours.named_buffers()), dict(theirs.named_buffers()))
    assert thunder.cache_misses(jitted) == 1, thunder.explain(jitted)


def test_a_failed_trace_leaves_everything_as_it_was() -> None:
    o = Holder()
    module = torch.nn.Linear(6, 6)
    before = dict(vars(o)), dict(vars(module)), list(o.log), dict(o.table)

    def run(x: Any) -> Any:
        o.state = x
        o.log.append(x)
        o.table["z"] = x
        module.extra = x
        module.weight = None
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        thunder.trace()(run, X)
    assert vars(o) == before[0]
    assert (o.log, o.table) == before[2:]
    assert vars(module).keys() == before[1].keys()
    assert module.weight is not None


def test_a_model_is_not_kept_alive() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(6, 6)
            self.last: Any = None

        def forward(self, x: Any) -> Any:
            self.last = self.inner(x)
            return self.last * 2

    places = {"net": Net()}
    jitted = thunder.jit(lambda x: places["net"](x))
    for _ in range(3):
        jitted(X)
    old, weight = weakref.ref(places["net"]), weakref.ref(places["net"].inner.weight)
    places["net"] = Net()
    gc.collect()
    assert old() is None
    assert weight() is None
    jitted(X)
    module = Net()
    again = thunder.jit(module)
    again(X)
    gone = weakref.ref(module)
    del module, again
    gc.collect()
    assert gone() is None


def test_calls_leak_nothing() -> None:
    o = Holder()

    def run(x: Any) -> Any:
        o.state = x * 2
        return {"a": o.state + 1}

    jitted = thunder.jit(run)
    jitted(X)
    jitted(X)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(500):
        jitted(X)
    gc.collect()
    assert len(gc.get_objects()) - before < 50


def test_what_is_given_up() -> None:
    o = Holder()

    def run(x: Any) -> Any:
        o.steps += 1
        return sum([x for _ in range(o.steps)])  # as many operations as the number says

    jitted = thunder.jit(run)
    with pytest.warns(UserWarning, match="steps"):
        for i in range(1, 25):
            torch.testing.assert_close(jitted(X), X * i)
    assert o.steps == 24
    assert sys.getprofile() is None


GLOBAL_LOG: list[Any] = []


def test_logs_grow_without_new_traces() -> None:
    closed: list[Any] = []

    def run(x: Any) -> Any:
        GLOBAL_LOG.append(1)
        closed.append(x.sum())
        return x * 2

    jitted = thunder.jit(run)
    for i in range(5):
        jitted(X + i)
    assert GLOBAL_LOG == [1] * 5
    assert [float(c) for c in closed] == [float((X + i).sum()) for i in range(5)]
    assert thunder.cache_misses(jitted) == 1, thunder.explain(jitted)


def test_a_log_that_is_read() -> None:
    log: list[Any] = []

    def run(x: Any) -> Any:
        log.append(1)
        return x * len(log)

    jitted = thunder.jit(run)
    for i in range(1, 4):
        torch.testing.assert_close(jitted(X), X * i)


def test_two_objects_or_one() -> None:
    def run(x: Any, a: Holder, b: Holder) -> Any:
        a.steps = 1
        b.steps = 2
        return x * a.steps

    jitted = thunder.jit(run)
    a, b = Holder(), Holder()
    torch.testing.assert_close(jitted(X, a, b), X)
    torch.testing.assert_close(jitted(X, a, a), X * 2)
    torch.testing.assert_close(jitted(X, b, a), X)
    a.steps = b.steps = 0
    torch.testing.assert_close(jitted(X, b, b), X * 2)


# -- classes, tensors, parameters -------------------------------------------------------------------------------------
class Counts:
    """Counts on the class."""

    n = 0
    last: Any = None


def test_attributes_of_classes_that_are_read_and_assigned() -> None:
    """What is assigned depends on what was there."""

    def f(c: Any, x: Any) -> Any:
        c.n += 1
        c.last = x * c.n
        return c.last + 1

    Counts.n = 0
    jitted = thunder.jit(lambda x: f(Counts, x))
    for k in range(5):
        x = torch.ones(2) + k
        torch.testing.assert_close(jitted(x), x * (k + 1) + 1)
        assert Counts.n == k + 1
        torch.testing.assert_close(Counts.last, x * (k + 1))


def test_attributes_that_are_given_to_tensors() -> None:
    """To arguments, to parameters, to what is returned; tensors among them."""
    weight = torch.nn.Parameter(torch.ones(2))

    def f(x: Any) -> Any:
        y = x * weight
        x.seen = getattr(x, "seen", 0) + 1
        weight.last = y * 2
        y.name_of_it = "y"
        y.half = y / 2
        return y

    jitted = thunder.jit(f)
    x = torch.ones(2)
    for k in range(3):
        out = jitted(x)
        assert x.seen == k + 1  # type: ignore[attr-defined]
        assert out.name_of_it == "y"
        torch.testing.assert_close(out.half, x / 2)
        torch.testing.assert_close(weight.last, x * 2)
        assert type(weight.last) is torch.Tensor


def test_parameters_that_the_first_call_makes() -> None:
    """torch's lazy modules, and modules of the user's: that call runs as it is written, the next one is traced."""

    class Late(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight: Any = None

        def forward(self, x: Any) -> Any:
            if self.weight is None:
                self.weight = torch.nn.Parameter(torch.full((x.shape[-1],), 2.0))
            return x * self.weight

    for model in (Late(), torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.LazyBatchNorm1d())):
        jitted = thunder.jit(model)
        x = torch.rand(3, 3)
        jitted(x).sum().backward()
        assert all(type(p) is torch.nn.Parameter and p.grad is not None for p in model.parameters())
        assert list(model.parameters())
        assert "first call" in thunder.explain(jitted) or "creates a parameter" in thunder.explain(jitted)
        model.eval()
        for _ in range(2):
            torch.testing.assert_close(jitted(x), model(x))
        assert thunder.cache_hits(jitted) == 1


def test_gradients_of_functions_with_effects() -> None:
    """`thunder.core.transforms.grad`: of the result alone, and the effects are made."""
    kept: dict[str, Any] = {"calls": 0, "log": []}

    def f(x: Any) -> Any:
        kept["calls"] += 1
        kept["last"] = x * 3
        kept["log"].append(x.sum())
        return (x**3).sum()

    first, second = grad(thunder.jit(f)), grad(grad(thunder.jit(f)))
    for k in range(4):
        x = torch.tensor([1.0, 2.0]) + k
        fn, expected = (first, 3 * x**2) if k % 2 else (second, 6 * x)
        torch.testing.assert_close(fn(x)[0], expected)
        assert kept["calls"] == k + 1 == len(kept["log"])
        torch.testing.assert_close(kept["last"], x * 3)
        torch.testing.assert_close(kept["log"][-1], x.sum())
