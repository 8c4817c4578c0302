# SPDX-License-Identifier: Apache-2.0
"""Snapshots read and restore containers by the methods of the built-in classes, not by those of a subclass."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder


def lying(base: type) -> type:
    """Return a subclass of a container whose own methods show other contents."""

    def unusable(self: Any, *args: Any) -> Any:
        raise AssertionError("thunder called a method of the subclass")

    content: dict[str, Any] = {
        "__iter__": lambda self: iter([9.0, 9.0]), "__len__": lambda self: 7, "__bool__": lambda self: True,
        "__contains__": lambda self, x: True, "clear": unusable, "extend": unusable, "update": unusable,
        "pop": unusable, "copy": unusable, "items": unusable, "values": unusable, "keys": unusable,
    }  # fmt: skip
    return type(f"Lying{base.__name__}", (base,), content)


def of_list(o: Any) -> Callable[[Any], Any]:
    def program(x: Any) -> Any:
        o.append(3.0)
        return x * o[0]

    return program


def of_dict(o: Any) -> Callable[[Any], Any]:
    def program(x: Any) -> Any:
        o["b"] = 3.0
        del o["c"]
        o["c"] = 4.0
        return x * o["a"]

    return program


def of_set(o: Any) -> Callable[[Any], Any]:
    def program(x: Any) -> Any:
        o.add("b")
        return x * 2

    return program


CASES: dict[str, tuple[type, Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "list": (list, [1.0, 2.0], of_list, lambda o: list.__getitem__(o, slice(None))),
    "deque": (collections.deque, [1.0, 2.0], of_list, lambda o: list(collections.deque.__iter__(o))),
    "dict": (dict, {"a": 2.0, "c": 1.0}, of_dict, lambda o: list(dict.items(o))),
    "OrderedDict": (collections.OrderedDict, {"a": 2.0, "c": 1.0}, of_dict, lambda o: list(dict.items(o))),
    "set": (set, {"a"}, of_set, lambda o: sorted(set.__or__(o, set()))),
}


@pytest.mark.parametrize("name", CASES)
def test_subclasses_with_their_own_methods(name: str) -> None:
    base, contents, make, state = CASES[name]
    own: Any = lying(base)
    objects = []
    for _ in range(2):
        o = own.__new__(own)
        if base is set:
            set.update(o, contents)
        elif issubclass(base, dict):
            for key, value in contents.items():
                base.__setitem__(o, key, value)
        else:
            base.extend(o, contents)
        objects.append(o)
    eager, jitted = make(objects[0]), thunder.jit(make(objects[1]))
    for i in range(4):
        x = torch.ones(2) + i
        assert torch.equal(eager(x), jitted(x))
        assert state(objects[0]) == state(objects[1]), f"after call {i}"
