# SPDX-License-Identifier: Apache-2.0
"""Nested containers, flattened by optree (C++): None is a leaf, dictionaries keep their order.

Containers that optree does not know (dataclasses, Transformers' `ModelOutput`) are registered when they first occur, in
thunder's own namespace, which leaves other users of optree unaffected.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable
from typing import Any

import optree

__all__ = ["flat_items", "tree_flatten", "tree_leaves", "tree_map", "tree_unflatten"]

NAMESPACE = "thunder"
# Never exited: leaving the context would sort the keys of dictionaries again.
_insertion_order = optree.dict_insertion_ordered(True, namespace=NAMESPACE)
_insertion_order.__enter__()

_registering = threading.Lock()
_leaf_types: set[type] = {int, float, str, bool, type(None)}
_containers: set[type] = set()


def _flatten_dataclass(x: Any) -> tuple[tuple[Any, ...], tuple[type, tuple[str, ...]], tuple[str, ...]]:
    # Attributes that are no fields follow the fields.
    names = tuple(dict.fromkeys((*(f.name for f in dataclasses.fields(x)), *getattr(x, "__dict__", ()))))
    names = tuple(n for n in names if hasattr(x, n))
    return tuple(getattr(x, n) for n in names), (type(x), names), names


def _unflatten_dataclass(aux: tuple[Any, tuple[str, ...]], values: Iterable[Any]) -> Any:
    cls, names = aux
    # A dataclass may compute or reject fields in __init__: rebuild it as copy.copy would.
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


def _is_torchs(cls: type) -> bool:
    # Modules and tensors are objects with an identity, even where their class is a dataclass. torch is not imported.
    return any(c.__module__ in ("torch.nn.modules.module", "torch") for c in cls.__mro__)


def _register(cls: type) -> None:
    if issubclass(cls, dict) and dataclasses.is_dataclass(cls):  # Transformers' ModelOutput
        optree.register_pytree_node(cls, _flatten_model_output, _unflatten_model_output, namespace=NAMESPACE)
    elif dataclasses.is_dataclass(cls):
        optree.register_pytree_node(cls, _flatten_dataclass, _unflatten_dataclass, namespace=NAMESPACE)


def _see(cls: type) -> None:
    with _registering:
        if cls in _leaf_types or cls in _containers:
            return
        if dataclasses.is_dataclass(cls) and not _is_torchs(cls):
            _register(cls)
            _containers.add(cls)
        else:
            _leaf_types.add(cls)


def tree_flatten(tree: Any) -> tuple[list[Any], Any]:
    """Return the leaves of nested containers and their structure, for `tree_unflatten`."""
    leaves, spec = optree.tree_flatten(tree, none_is_leaf=True, namespace=NAMESPACE)
    # A container of a new type comes back as a leaf, also if another thread has just registered its class: flatten
    # again whenever a leaf's type has not been classified as a leaf type.
    while new := {type(x) for x in leaves} - _leaf_types:
        for cls in new:
            _see(cls)
        leaves, spec = optree.tree_flatten(tree, none_is_leaf=True, namespace=NAMESPACE)
    return leaves, spec


def tree_leaves(tree: Any) -> list[Any]:
    """Return the leaves of nested containers."""
    return tree_flatten(tree)[0]


def tree_unflatten(leaves: Iterable[Any], spec: Any) -> Any:
    """Rebuild containers of a structure that `tree_flatten` returned, with other leaves."""
    return optree.tree_unflatten(spec, leaves)


def tree_map(fn: Callable[..., Any], tree: Any) -> Any:
    """Apply `fn` to each leaf of nested containers."""
    leaves, spec = tree_flatten(tree)
    return tree_unflatten([fn(x) for x in leaves], spec)


def flat_items(x: Any) -> list[Any]:
    """Flatten nested tuples and lists; anything else, including other containers, is one item."""
    return [y for i in x for y in flat_items(i)] if isinstance(x, (tuple, list)) else [x]
