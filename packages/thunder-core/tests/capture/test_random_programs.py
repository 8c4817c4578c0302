# SPDX-License-Identifier: Apache-2.0
"""Random programs that read and change a module's state, with changes from outside in between, against eager; and
random nested arguments and globals that change."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import thunder

SETTINGS = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}


class Thing:
    """Has what it is given."""

    def __init__(self, **values: Any):
        self.__dict__.update(values)


class State(nn.Module):
    """Everything that a module may hold; `steps` says what a call does with it."""

    def __init__(self, steps: list[int]) -> None:
        super().__init__()
        self.steps = list(steps)
        self.n, self.rate, self.nothing = 0, 1.5, None
        self.items: list[Any] = [1, 2.5]
        self.table: dict[str, Any] = {"a": 1, "t": torch.ones(2)}
        self.total = torch.zeros(2)
        self.recent: Any = collections.deque([1], maxlen=3)
        self.thing: Any = Thing(v=3, t=torch.full((2,), 3.0))
        self.members = {1}
        self.pair: Any = (1, torch.ones(2))
        self.nested: dict[str, Any] = {"k": [{"z": 1}]}
        self.register_buffer("scale", torch.ones(2))
        self.weight = nn.Parameter(torch.full((2,), 0.5))
        self.child = nn.Linear(2, 2)
        with torch.no_grad():
            self.child.weight.fill_(0.3)
            self.child.bias.fill_(0.1)

    def forward(self, x: Any) -> Any:
        for i in self.steps:
            x = STEPS[i](self, x)
        return x


def counts(m: Any, x: Any) -> Any:
    m.n += 1
    m.rate *= 0.9
    return x * m.n + m.rate


def appends(m: Any, x: Any) -> Any:
    m.items.append(m.n)
    m.recent.append(m.n)
    return x + len(m.items) + m.recent[0]


def replaces(m: Any, x: Any) -> Any:
    m.items[0] = m.items[0] + 1
    if len(m.items) > 3:
        m.items.pop()
    return x + m.items[0]


def stores(m: Any, x: Any) -> Any:
    m.table["a"] += 1
    m.table["t"] = m.table["t"] + x.detach()
    m.table[f"new{m.n % 3}"] = x.detach()
    m.table.pop("new0", None)
    return x + m.table["t"] * m.table["a"]


def writes(m: Any, x: Any) -> Any:
    m.total.add_(x.detach())
    m.total[0:1].fill_(2.0)
    m.scale.mul_(1.1)
    return x * m.scale + m.total


def assigns(m: Any, x: Any) -> Any:
    m.total = m.total * 2
    m.scale = m.scale + 1
    m.pair = (m.pair[0] + 1, m.pair[1] + x.detach())
    return x + m.pair[1] * m.pair[0]


def objects(m: Any, x: Any) -> Any:
    m.thing.v += 1
    m.thing.t = m.thing.t + x.detach()
    if hasattr(m.thing, "w"):
        del m.thing.w
    else:
        m.thing.w = m.n
    return x + m.thing.t * m.thing.v


def nests(m: Any, x: Any) -> Any:
    m.nested["k"][0]["z"] += 1
    if len(m.nested["k"]) < 4:
        m.nested["k"].append({"z": m.n})
    else:
        m.nested["k"][:] = [{"z": 0}]
    m.members.add(m.n % 4)
    return x + m.nested["k"][0]["z"] + len(m.members)


def aliases(m: Any, x: Any) -> Any:
    m.alias = m.items
    if len(m.alias) < 6:
        m.alias.append(5)
    m.held = [m.total, x.detach()]
    return x + len(m.items) + m.held[0]


def toggles(m: Any, x: Any) -> Any:
    m.nothing = x.detach() if m.nothing is None else None
    return x * 2 if m.n % 2 else x * 3


def runs(m: Any, x: Any) -> Any:
    m.child.weight.data.mul_(0.9)
    return m.child(x) * m.weight


STEPS: list[Callable[[Any, Any], Any]] = [
    counts, appends, replaces, stores, writes, assigns, objects, nests, aliases, toggles, runs,
]  # fmt: skip


def same(a: Any, b: Any, path: str) -> None:
    assert type(a) is type(b), (path, type(a), type(b))
    if isinstance(a, torch.Tensor):
        torch.testing.assert_close(a.detach(), b.detach(), msg=lambda text: f"{path}: {text}")
    elif isinstance(a, (list, tuple, collections.deque)):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b)):
            same(x, y, f"{path}[{i}]")
    elif isinstance(a, dict):
        assert list(a) == list(b), path
        for k in a:
            same(a[k], b[k], f"{path}.{k}")
    elif isinstance(a, (nn.Module, Thing)):
        same(vars(a), vars(b), path)
    else:
        assert a == b or abs(a - b) < 1e-9 * abs(b), (path, a, b)


OUTSIDE: dict[str, Callable[[Any, int], Any]] = {
    "nothing": lambda m, i: None,
    "a number": lambda m, i: setattr(m, "n", m.n + 7),
    "a rate": lambda m, i: setattr(m, "rate", float(i)),
    "items": lambda m, i: m.items.__setitem__(slice(None), [i, 2.0, 3]),
    "a tensor": lambda m, i: setattr(m, "total", torch.full((2,), float(i))),
    "a table": lambda m, i: setattr(m, "table", {"a": i, "t": torch.zeros(2)}),
}


@settings(max_examples=15, **SETTINGS)
@given(
    st.lists(st.integers(0, len(STEPS) - 1), min_size=1, max_size=4),
    st.lists(st.sampled_from(sorted(OUTSIDE)), min_size=3, max_size=5),
)
def test_programs_that_change_state(steps: list[int], outside: list[str]) -> None:
    module, eager = State(steps), State(steps)
    jitted = thunder.jit(module)
    for i, change in enumerate(outside):
        x = torch.full((2,), 0.1 + i)
        same(jitted(x), eager(x), "the result")
        same(module, eager, "the module")
        for m in (module, eager):
            OUTSIDE[change](m, i)


# -- nested values that change ----------------------------------------------------------------------------------------
LEAVES = st.one_of(
    st.integers(-3, 3), st.floats(-2, 2, width=16), st.booleans(), st.none(), st.sampled_from(["a", "b", "tensor"])
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b", "thing"]), inner, max_size=3),
        st.tuples(inner, inner),
    ),
    max_leaves=8,
)
HELD: dict[str, Any] = {}


def built(x: Any) -> Any:
    if x == "tensor" and isinstance(x, str):
        return torch.ones(2)
    if isinstance(x, (list, tuple)):
        return type(x)(built(i) for i in x)
    if isinstance(x, dict):
        values = {k: built(v) for k, v in x.items()}
        return Thing(**values) if "thing" in values else values
    return x


def summed(x: Any, total: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return total + x.sum()
    if isinstance(x, bool):
        return total * (2 if x else 1)
    if isinstance(x, (int, float)):
        return total + x
    if x is None:
        return total * 1.5
    if isinstance(x, str):
        return total + len(x) * (3 if x == "a" else 5)
    if isinstance(x, (list, tuple)):
        for i in x:
            total = summed(i, total) * 0.9
        return total
    names = x.items() if isinstance(x, dict) else [(name, getattr(x, name)) for name in sorted(vars(x))]
    for name, value in names:
        total = summed(value, total) + ord(name[0]) * 0.01
    return total


def spots(x: Any) -> list[tuple[Any, Any]]:
    """The places in a value that can be assigned."""
    own = vars(x) if isinstance(x, Thing) else x
    inner = list(own.items()) if isinstance(own, dict) else list(enumerate(x)) if isinstance(x, (list, tuple)) else []
    return [*([] if isinstance(x, tuple) else [(own, k) for k, _ in inner]), *[s for _, v in inner for s in spots(v)]]


@settings(max_examples=30, **SETTINGS)
@given(
    TREES,
    st.lists(st.tuples(st.integers(0, 20), LEAVES, st.sampled_from(["set", "delete", "add"])), max_size=5),
    st.booleans(),
)
def test_values_that_change(tree: Any, changes: list[Any], is_argument: bool) -> None:
    HELD["x"] = built(tree)

    def f(total: Any, *given: Any) -> Any:
        return summed(given[0] if given else HELD["x"], total)

    jf = thunder.jit(f)
    start = torch.ones(2, dtype=torch.float64)
    for where, value, how in [(0, None, "nothing"), *changes]:
        places = spots(HELD)
        container, key = places[where % len(places)]
        if how == "set":
            container[key] = built(value)
        elif how == "delete" and container is not HELD:
            del container[key]
        elif how == "add" and isinstance(container, list):
            container.append(built(value))
        elif how == "add" and container is not HELD:
            container["z"] = built(value)
        given_now = (HELD["x"],) if is_argument else ()
        for _ in range(2):
            torch.testing.assert_close(jf(start, *given_now), f(start, *given_now))


def test_what_is_left_in_its_place() -> None:
    """Numbers that are inputs stay those when a list or dict is written as a whole."""

    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.items, self.table = [0, 2.0, 3], {"a": 1, "b": 2}

        def forward(self, x: Any) -> Any:
            self.items.pop()
            self.table["a"] = self.table.pop("a")
            return x

    module, eager = Kept(), Kept()
    jitted = thunder.jit(module)
    for i in range(6):
        for m in (module, eager):
            m.items[:] = [i, 2.0, 3]
            m.table = {"a": i, "b": i * 2}
        jitted(torch.ones(1))
        eager(torch.ones(1))
        assert module.items == eager.items and list(module.table.items()) == list(eager.table.items())
