# SPDX-License-Identifier: Apache-2.0
"""Nested containers, flattened by optree (C++): None is a leaf, dictionaries keep their order.

Containers that optree does not know (dataclasses, Transformers' `ModelOutput`) are registered on first sight in
thunder's own namespace, so that no other library's view of them changes.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import optree

__all__ = ["tree_flatten", "tree_leaves", "tree_map", "tree_unflatten"]

NAMESPACE = "thunder"
# Held for the life of the process: leaving the context would sort dictionaries' keys again.
_insertion_order = optree.dict_insertion_ordered(True, namespace=NAMESPACE)
_insertion_order.__enter__()

_seen: set[type] = {tuple, list, dict, OrderedDict, int, float, str, bool, type(None)}


def _flatten_dataclass(x: Any) -> tuple[tuple[Any, ...], tuple[type, tuple[str, ...]], tuple[str, ...]]:
    names = tuple(f.name for f in dataclasses.fields(x) if hasattr(x, f.name))
    return tuple(getattr(x, n) for n in names), (type(x), names), names


def _unflatten_dataclass(aux: tuple[type, tuple[str, ...]], values: Iterable[Any]) -> Any:
    cls, names = aux
    # A dataclass may compute or refuse fields in __init__: rebuild it as copy.copy would.
    out = cls.__new__(cls)
    for name, value in zip(names, values):
        object.__setattr__(out, name, value)
    return out


def _flatten_model_output(x: Any) -> tuple[tuple[Any, ...], tuple[type, tuple[str, ...]], tuple[str, ...]]:
    names = tuple(x.keys())
    return tuple(x[n] for n in names), (type(x), names), names


def _unflatten_model_output(aux: tuple[type, tuple[str, ...]], values: Iterable[Any]) -> Any:
    cls, names = aux
    return cls(**dict(zip(names, values)))


def _register(cls: type) -> None:
    if issubclass(cls, dict) and dataclasses.is_dataclass(cls):  # Transformers' ModelOutput
        optree.register_pytree_node(cls, _flatten_model_output, _unflatten_model_output, namespace=NAMESPACE)
    elif dataclasses.is_dataclass(cls):
        optree.register_pytree_node(cls, _flatten_dataclass, _unflatten_dataclass, namespace=NAMESPACE)


def _see(x: Any) -> None:
    cls = type(x)
    if cls not in _seen:
        _seen.add(cls)
        if dataclasses.is_dataclass(cls):
            _register(cls)


def _register_new_types(tree: Any) -> None:
    # Registering while flattening is not possible: leaves are looked at until no new container type turns up.
    before = -1
    while before != len(_seen):
        before = len(_seen)
        for leaf in optree.tree_leaves(tree, none_is_leaf=True, namespace=NAMESPACE):
            _see(leaf)


def tree_flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves of nested containers and the structure that `tree_unflatten` rebuilds them with."""
    leaves, spec = optree.tree_flatten(tree, none_is_leaf=True, namespace=NAMESPACE)
    if any(type(x) not in _seen for x in leaves):
        _register_new_types(tree)
        leaves, spec = optree.tree_flatten(tree, none_is_leaf=True, namespace=NAMESPACE)
    return leaves, spec


def tree_leaves(tree: Any) -> list[Any]:
    """The leaves of nested containers."""
    return tree_flatten(tree)[0]


def tree_unflatten(leaves: Iterable[Any], spec: Any) -> Any:
    """Rebuilds what `tree_flatten` took apart, with other leaves."""
    return optree.tree_unflatten(spec, leaves)


def tree_map(fn: Callable[..., Any], tree: Any) -> Any:
    """The same containers with `fn` of each leaf."""
    leaves, spec = tree_flatten(tree)
    return tree_unflatten([fn(x) for x in leaves], spec)
