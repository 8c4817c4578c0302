# SPDX-License-Identifier: Apache-2.0
"""Nested containers: every kind comes back as it was, in its order, with its leaves in order."""

from __future__ import annotations

import collections
import dataclasses
import threading
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from outcomes import in_threads

from thunder.core import pytree


class Point(NamedTuple):
    """A named tuple."""

    x: Any
    y: Any


@dataclasses.dataclass
class Plain:
    """A dataclass."""

    a: Any
    b: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A dataclass whose fields cannot be set, and one of which __init__ does not take."""

    a: Any
    b: Any = dataclasses.field(default=7, init=False)


@dataclasses.dataclass
class Output(collections.OrderedDict):
    """As Transformers' ModelOutput: a dictionary of those of its fields that are not None."""

    loss: Any = None
    logits: Any = None
    cache: Any = None

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            if getattr(self, f.name) is not None:
                super().__setitem__(f.name, getattr(self, f.name))


LEAVES = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.floats(allow_nan=False), st.booleans())


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Every kind of container around `inner`."""
    keys = st.one_of(st.text(max_size=3), st.integers(0, 9))
    dicts = st.dictionaries(keys, inner, max_size=3)
    return st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        dicts,
        dicts.map(collections.OrderedDict),
        dicts.map(lambda d: collections.defaultdict(list, d)),
        st.lists(inner, max_size=3).map(collections.deque),
        st.builds(Point, inner, inner),
        st.builds(Plain, inner, inner),
        st.builds(Frozen, inner),
    )


TREES = st.recursive(LEAVES, containers, max_leaves=12)


def leaves_by_hand(x: Any) -> list[Any]:
    """The leaves of a tree, by the plainest code there is."""
    if dataclasses.is_dataclass(x):
        return [y for f in dataclasses.fields(x) for y in leaves_by_hand(getattr(x, f.name))]
    if isinstance(x, dict):
        return [y for v in x.values() for y in leaves_by_hand(v)]
    if isinstance(x, (list, tuple, collections.deque)):
        return [y for v in x for y in leaves_by_hand(v)]
    return [x]


def orders(x: Any) -> Any:
    """A tree's keys in their order, which == on dictionaries does not look at."""
    if isinstance(x, dict):
        return [(k, orders(v)) for k, v in x.items()]
    if dataclasses.is_dataclass(x):
        return [orders(getattr(x, f.name)) for f in dataclasses.fields(x)]
    return [orders(v) for v in x] if isinstance(x, (list, tuple, collections.deque)) else None


@given(TREES)
def test_taken_apart_and_put_together(tree: Any) -> None:
    """The leaves are those that are there, in order, and the same tree comes back, with its classes and key order."""
    leaves, spec = pytree.tree_flatten(tree)
    assert leaves == leaves_by_hand(tree)
    assert pytree.tree_leaves(tree) == leaves
    back = pytree.tree_unflatten(leaves, spec)
    assert type(back) is type(tree)
    assert back == tree
    assert orders(back) == orders(tree)


@given(TREES)
def test_map_keeps_the_structure(tree: Any) -> None:
    """Only leaves change."""
    mapped = pytree.tree_map(lambda x: (type(x).__name__,), tree)
    # Its leaves are tuples now: one level deeper.
    assert pytree.tree_leaves(mapped) == [type(x).__name__ for x in leaves_by_hand(tree)]
    assert pytree.tree_flatten(tree)[1] == pytree.tree_flatten(pytree.tree_map(lambda x: 0, tree))[1]


def test_structures_compare() -> None:
    """Equal for the same containers, different for another kind, key, order or length."""
    spec = pytree.tree_flatten({"a": 1, "b": [2]})[1]
    assert spec == pytree.tree_flatten({"a": None, "b": ["x"]})[1]
    for other in ({"b": [2], "a": 1}, {"a": 1, "b": (2,)}, {"a": 1, "c": [2]}, {"a": 1, "b": []}, [1, [2]], {"a": 1}):
        assert spec != pytree.tree_flatten(other)[1], other
    assert pytree.tree_flatten(Plain(1, 2))[1] != pytree.tree_flatten(Frozen(1))[1]
    assert pytree.tree_flatten(Point(1, 2))[1] != pytree.tree_flatten((1, 2))[1]


def test_none_is_a_leaf() -> None:
    """So an optional argument that is given changes no structure around it."""
    assert pytree.tree_leaves((None, [None])) == [None, None]


def test_model_outputs() -> None:
    """Only the fields that are there are leaves; it is rebuilt by its own constructor, in step as dict and object."""
    out = Output(loss=1, cache=(2, 3))
    leaves, spec = pytree.tree_flatten(out)
    assert leaves == [1, 2, 3]
    back = pytree.tree_unflatten([10, 20, 30], spec)
    assert type(back) is Output
    assert (back.loss, back["loss"], back.cache, back.logits, list(back)) == (10, 10, (20, 30), None, ["loss", "cache"])
    assert pytree.tree_flatten(Output(loss=1))[1] != pytree.tree_flatten(Output(logits=1))[1]


def test_torchs_return_types() -> None:
    """`torch.max(x, 0)` comes back as what it is."""
    found = torch.max(torch.tensor([[1.0, 2.0]]), 0)
    back = pytree.tree_map(lambda x: x, found)
    assert type(back) is type(found)
    assert back.values is found.values


def test_dataclasses_are_not_run_again() -> None:
    """__init__ and __post_init__ may compute or refuse: a rebuilt one has its values set, whatever they are."""

    @dataclasses.dataclass
    class Picky:
        n: Any
        twice: Any = dataclasses.field(init=False)

        def __post_init__(self) -> None:
            if not isinstance(self.n, int):
                raise TypeError("an int, please")
            self.twice = 2 * self.n

    back = pytree.tree_map(str, Picky(2))
    assert (back.n, back.twice) == ("2", "4")


def test_a_dataclass_with_more_than_its_fields() -> None:
    """What else was set on the object comes along."""
    tree = Plain(1, 2)
    tree.extra = 3
    assert pytree.tree_leaves(tree) == [1, 2, 3]
    assert pytree.tree_map(lambda x: -x, tree).extra == -3


def test_a_dataclass_with_slots_and_one_with_a_missing_field() -> None:
    """No instance dictionary is needed, and what was deleted stays absent."""

    @dataclasses.dataclass
    class Slotted:
        __slots__ = ("a", "b")
        a: Any
        b: Any

    assert pytree.tree_leaves(pytree.tree_map(lambda x: x + 1, Slotted(1, 2))) == [2, 3]
    tree = Slotted(1, 2)
    del tree.a
    assert pytree.tree_leaves(tree) == [2]
    assert not hasattr(pytree.tree_map(lambda x: x, tree), "a")


def test_a_module_that_is_a_dataclass_is_a_leaf() -> None:
    """A module is an object with an identity, whatever else its class is."""

    @dataclasses.dataclass(eq=False)
    class Scale(torch.nn.Module):
        factor: float

        def __post_init__(self) -> None:
            super().__init__()

    module = Scale(2.0)
    assert pytree.tree_leaves([module, 1]) == [module, 1]


@pytest.mark.parametrize(
    "leaf",
    [Plain, torch.Size([2]), torch.float32, slice(1, 2), {1, 2}, object(), type("D", (dict,), {})()],
    ids=["class", "size", "dtype", "slice", "set", "object", "dict of a class"],
)
def test_what_is_no_container(leaf: Any) -> None:
    """Classes, shapes, sets, unknown objects and subclasses with manners of their own stay whole."""
    assert pytree.tree_leaves([leaf])[0] is leaf


def test_other_libraries_trees_are_left_alone() -> None:
    """Dataclasses are registered in thunder's own namespace, and the order of dictionaries is changed in it alone."""
    optree = pytest.importorskip("optree")
    tree = {"b": Plain(1), "a": 2}
    assert pytree.tree_leaves(tree) == [1, None, 2]
    assert optree.tree_leaves(tree) == [2, tree["b"]]
    assert torch.utils._pytree.tree_leaves([Plain(1)]) == [Plain(1)]


def test_new_types_seen_by_several_threads_at_once() -> None:
    """The first sight of a class may come from any thread."""
    classes = [dataclasses.make_dataclass(f"C{i}", ["a", "b"]) for i in range(30)]
    failed: list[BaseException] = []
    barrier = threading.Barrier(4)

    def work() -> None:
        try:
            barrier.wait()
            for cls in classes:
                assert pytree.tree_leaves([cls(1, [2])]) == [1, 2]
        except BaseException as error:
            failed.append(error)

    in_threads(work, [()] * 4)
    assert not failed


def test_flat_items():
    """Tuples and lists of all kinds are looked into; a dict is one item, and so is None."""
    inner = {"a": 1}
    assert pytree.flat_items((1, [2, Point(3, ())], inner, None, torch.Size([4]))) == [1, 2, 3, inner, None, 4]
    assert pytree.flat_items(inner) == [inner]
