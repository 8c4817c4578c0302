# SPDX-License-Identifier: Apache-2.0
"""Objects of classes that libraries define: made, read in a program, changed, and read again."""

from __future__ import annotations

import argparse
import collections
import copy
import dataclasses
import operator
import os
import pathlib
import queue
import random
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import data

import thunder

X = torch.ones(3)
# An object, a function of a tensor and the object, and changes of the object.
Case = tuple[Any, Callable[[Any, Any], Any], list[Callable[[Any], Any]]]


class User:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Slots:
    __slots__ = ("u", "v")

    def __init__(self) -> None:
        self.v = 2.0


@dataclasses.dataclass(order=True)
class Point:
    v: float = 2.0
    items: list[int] = dataclasses.field(default_factory=list)


def _optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1)


def _scheduler() -> Any:
    return torch.optim.lr_scheduler.StepLR(_optimizer(), 1)


def _step(scheduler: Any) -> None:
    scheduler.optimizer.step()
    scheduler.step()


def _changes_lr(optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] = 0.5


def _of_item(name: str, value: Any) -> Callable[[Any], None]:
    return lambda o: o.__setitem__(name, value)


def _of_attribute(name: str, value: Any) -> Callable[[Any], None]:
    return lambda o: setattr(o, name, value)


CASES: dict[str, Callable[[], Case]] = {
    "learning rate": lambda: (_optimizer(), lambda x, o: x * o.param_groups[0]["lr"], [_changes_lr]),
    "scheduler": lambda: (_scheduler(), lambda x, o: x * o.get_last_lr()[0], [_step]),
    "dataset": lambda: (
        data.TensorDataset(torch.arange(3.0)), lambda x, o: x * o[1][0], [_of_attribute("tensors", (torch.ones(3),))]
    ),
    "subset": lambda: (data.Subset([1.0, 2.0], [1]), lambda x, o: x * o[0] * len(o), [_of_attribute("indices", [0])]),  # type: ignore[arg-type]
    "sampler": lambda: (
        data.SequentialSampler([1, 2]), lambda x, o: x * len([*o]), [_of_attribute("data_source", [1])]
    ),
    "size of a queue": lambda: (queue.Queue(), lambda x, o: x * o.qsize(), [lambda o: o.put(1), lambda o: o.put(2)]),
    "event": lambda: (
        threading.Event(), lambda x, o: x * 2 if o.is_set() else x, [lambda o: o.set(), lambda o: o.clear()]
    ),
    "barrier": lambda: (threading.Barrier(2), lambda x, o: x * o.parties, [_of_attribute("_parties", 3)]),
    "namespace": lambda: (types.SimpleNamespace(v=2.0), lambda x, o: x * o.v, [_of_attribute("v", 5.0)]),
    "arguments": lambda: (
        argparse.Namespace(v=2.0), lambda x, o: x * o.v * (2 if "z" in o else 1), [_of_attribute("z", 5.0)]
    ),
    "distribution": lambda: (
        torch.distributions.Normal(torch.zeros(3), torch.ones(3)), lambda x, o: o.log_prob(x),
        [_of_attribute("loc", torch.ones(3)), lambda o: o.scale.mul_(2)],
    ),
    "transform of a distribution": lambda: (
        torch.distributions.AffineTransform(1.0, 2.0), lambda x, o: o(x), [_of_attribute("scale", 5.0)]
    ),
    "constraint": lambda: (
        torch.distributions.constraints.interval(0, 2), lambda x, o: o.check(x).float(),
        [_of_attribute("upper_bound", 0.5)],
    ),
    "UserDict": lambda: (collections.UserDict(a=2.0), lambda x, o: x * o["a"] * len(o), [_of_item("a", 5.0)]),
    "UserList": lambda: (collections.UserList([2.0]), lambda x, o: x * len(o), [lambda o: o.append(1)]),
    "UserString": lambda: (collections.UserString("ab"), lambda x, o: x * len(o), [_of_attribute("data", "abc")]),
    "ChainMap": lambda: (collections.ChainMap({"a": 1.0}), lambda x, o: x * o["a"], [_of_item("a", 5.0)]),
    "copy": lambda: (User(v=2.0), lambda x, o: x * copy.copy(o).v, [_of_attribute("v", 5.0)]),
    "new attribute of a copy": lambda: (
        User(v=2.0), lambda x, o: x * len(vars(copy.copy(o))), [_of_attribute("u", 5.0)]
    ),
    "copy of slots": lambda: (Slots(), lambda x, o: x * copy.copy(o).v, [_of_attribute("v", 5.0)]),
    "deep copy": lambda: (
        User(v=[2.0]), lambda x, o: x * copy.deepcopy(o).v[0], [lambda o: o.v.__setitem__(0, 5.0)]
    ),
    "vars": lambda: (User(v=2.0), lambda x, o: x * vars(o)["v"] * len(o.__dict__), [_of_attribute("u", 5.0)]),
    "fields": lambda: (
        Point(), lambda x, o: x * dataclasses.asdict(o)["v"] * len(dataclasses.replace(o, v=1.0).items + [1]),
        [_of_attribute("v", 5.0), lambda o: o.items.append(1)],
    ),
    "texts of fields": lambda: (Point(), lambda x, o: x * len(repr(o)), [_of_attribute("v", 5.125)]),
    "order": lambda: (Point(), lambda x, o: x * 2 if o < Point(3.0) else x, [_of_attribute("v", 5.0)]),
    "attribute getter": lambda: (
        User(v=2.0), lambda x, o: x * operator.attrgetter("v")(o), [_of_attribute("v", 5.0)]
    ),
    "environment": lambda: (
        os.environ, lambda x, o: x * float(os.environ.get("THUNDER_TEST", "7")) * (2 if "THUNDER_TEST" in o else 1),
        [_of_item("THUNDER_TEST", "5"), lambda o: o.pop("THUNDER_TEST")],
    ),
    "path": lambda: (
        User(p=pathlib.Path("/a/b.txt")), lambda x, o: x * len(o.p.name) * len(o.p.parts),
        [_of_attribute("p", pathlib.Path("/a/bcd/e"))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_changes_is_seen(name: str) -> None:
    """And what does not change is cached."""
    held, fn, changes = CASES[name]()
    jitted = thunder.jit(lambda x: fn(x, held))
    hits = 0
    for change in (None, *changes):
        if change is not None:
            change(held)
        torch.testing.assert_close(jitted(X), fn(X, held))
        before = thunder.cache_hits(jitted)
        torch.testing.assert_close(jitted(X), fn(X, held))
        hits += thunder.cache_hits(jitted) - before
    assert hits == len(changes) + 1


GETTER = operator.attrgetter("a.v")
ITEM = operator.itemgetter("k")
METHOD = operator.methodcaller("get", "k")


def test_getters_from_outside() -> None:
    holder, table = User(a=User(v=2.0)), {"k": 3.0}
    jitted = thunder.jit(lambda x: x * GETTER(holder) * ITEM(table) * METHOD(table))
    for holder.a.v, table["k"] in ((2.0, 3.0), (2.0, 3.0), (5.0, 3.0), (5.0, 7.0)):
        torch.testing.assert_close(jitted(X), X * holder.a.v * table["k"] ** 2)
    assert thunder.cache_hits(jitted) == 1


# -- what the program changes -----------------------------------------------------------------------------------------
def _filled(cls: Any) -> Any:
    made = cls()
    for i in (1, 2, 3):
        made.put(i)
    return made


def _appends(x: Any, o: Any) -> Any:
    o.append(1.0)
    return x * len(o)


def _sets(x: Any, o: Any) -> Any:
    o.set()
    return x * 2


def _puts(x: Any, o: Any) -> Any:
    o.put(1)
    return x * 2


def _sets_item(x: Any, o: Any) -> Any:
    o["n"] = o.get("n", 0) + 1
    return x * o["n"]


def _acquires(x: Any, o: Any) -> Any:
    with o:
        return x * o._value


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Any], Callable[[Any], Any]]] = {
    "get": (lambda: _filled(queue.Queue), lambda x, o: x * o.get_nowait(), lambda o: o.qsize()),
    "get of the last": (lambda: _filled(queue.LifoQueue), lambda x, o: x * o.get_nowait(), lambda o: o.qsize()),
    "get of the first": (lambda: _filled(queue.PriorityQueue), lambda x, o: x * o.get_nowait(), lambda o: o.qsize()),
    "get in C": (lambda: _filled(queue.SimpleQueue), lambda x, o: x * o.get_nowait(), lambda o: o.qsize()),
    "put": (queue.Queue, _puts, lambda o: [*o.queue]),
    "event": (threading.Event, _sets, lambda o: (o.is_set(), o.clear())),
    "semaphore": (lambda: threading.Semaphore(3), _acquires, lambda o: o._value),
    "UserList": (lambda: collections.UserList([1.0]), _appends, list),
    "UserDict": (collections.UserDict, _sets_item, dict),
    "Counter": (collections.Counter, _sets_item, dict),
    "ChainMap": (lambda: collections.ChainMap({}, {"n": 3}), _sets_item, dict),
    "Random": (lambda: random.Random(3), lambda x, o: x * o.random() * o.randint(1, 5), lambda o: o.getstate()),
    "generator": (
        torch.Generator, lambda x, o: torch.rand(3, generator=o.manual_seed(3)) * x, lambda o: o.get_state().tolist()
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.filterwarnings("ignore:.*runs eagerly")
def test_each_call_changes_it_once(name: str) -> None:
    make, fn, state = CHANGES[name]
    ours, eager = make(), make()
    jitted = thunder.jit(lambda x: fn(x, ours))
    for _ in range(3):
        torch.testing.assert_close(jitted(X), fn(X, eager))
        assert state(ours) == state(eager)


# -- optimizers -------------------------------------------------------------------------------------------------------
OPTIMIZERS = sorted(
    name
    for name, cls in vars(torch.optim).items()
    if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer) and name not in ("Optimizer", "SparseAdam")
)


def _trained(name: str, jit: Callable[[Any], Any]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2, bias=False)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01)

    def backward() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(torch.ones(1, 4)) ** 2).sum()
        loss.backward()
        return loss

    clip = jit(lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5))
    step = jit(lambda: optimizer.step(backward if name == "LBFGS" else None))
    found = []
    for _ in range(5):
        backward()
        found.append(clip().detach().clone())
        step()
        found += [p.detach().clone() for p in model.parameters()]
    return found


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_of_optimizers(name: str) -> None:
    """They read `.grad` before the program uses any tensor."""
    torch.testing.assert_close(_trained(name, thunder.jit), _trained(name, lambda fn: fn))


def test_decorated_functions_of_libraries() -> None:
    """A decorated function of torch clones the `no_grad` in its closure, which only torch can reach."""

    class Doubles(torch.nn.Module):
        @torch.no_grad()
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    doubles = Doubles()
    xs = [torch.ones(3), torch.ones(2)]

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = doubles(x)
        groups = torch.optim.Optimizer._group_tensors_by_device_and_dtype([xs])
        return y + len(groups)

    jitted = thunder.jit(fn)
    for _ in range(2):
        assert torch.equal(jitted(xs[0]), fn(xs[0]))
    assert thunder.cache_misses(jitted) == 1
