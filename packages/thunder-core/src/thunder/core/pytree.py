# SPDX-License-Identifier: Apache-2.0
"""Nested containers, flattened by optree (C++): None is a leaf, and dictionaries keep their order.

Dataclasses and Transformers' `ModelOutput`, which optree does not support, are registered when they first occur. They
are registered in thunder's own optree namespace, so that other users of optree are not affected.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import optree

from thunder.core.classes import ClassCache, is_permanent

__all__ = [
    "flat_items",
    "flatten_without_ordered_dicts",
    "has_ordered_dict",
    "tree_flatten",
    "tree_leaves",
    "tree_map",
    "tree_unflatten",
]

NAMESPACE = "thunder"
# The context is never exited: after it, optree would sort the keys of dictionaries again.
_insertion_order = optree.dict_insertion_ordered(True, namespace=NAMESPACE)
_insertion_order.__enter__()

_registering = threading.Lock()
_leaf_types: set[type] = {int, float, str, bool, type(None)}  # classes that live as long as the process
_leaf_classes: ClassCache[bool] = ClassCache()
_containers: set[type] = set()


def _flatten_dataclass(x: Any) -> tuple[tuple[Any, ...], tuple[type, tuple[str, ...]], tuple[str, ...]]:
    # Attributes that are not fields follow the fields.
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
    # Modules and tensors are leaves even if their class is a dataclass. Names are compared to avoid importing torch.
    return any(c.__module__ in ("torch.nn.modules.module", "torch") for c in cls.__mro__)


def _register(cls: type) -> None:
    if issubclass(cls, dict) and dataclasses.is_dataclass(cls):  # Transformers' ModelOutput
        optree.register_pytree_node(cls, _flatten_model_output, _unflatten_model_output, namespace=NAMESPACE)
    elif dataclasses.is_dataclass(cls):
        optree.register_pytree_node(cls, _flatten_dataclass, _unflatten_dataclass, namespace=NAMESPACE)


def _see(cls: type) -> None:
    with _registering:
        if cls in _leaf_types or _leaf_classes.get(cls) or cls in _containers:
            return
        if dataclasses.is_dataclass(cls) and not _is_torchs(cls):
            _register(cls)
            _containers.add(cls)
        elif is_permanent(cls):
            _leaf_types.add(cls)
        else:
            _leaf_classes[cls] = True


def tree_flatten(tree: Any) -> tuple[list[Any], Any]:
    """Return the leaves of nested containers and their structure, for `tree_unflatten`."""
    leaves, spec = flatten_without_ordered_dicts(tree)
    # optree visits the items of an OrderedDict in the order of insertion, also after `move_to_end`.
    return flatten_without_ordered_dicts(_reordered(tree)) if has_ordered_dict(spec) else (leaves, spec)


# Tuples, lists and dicts with keys that are strings or integers. Other structures would keep the classes of containers
# and keys alive.
_PLAIN = re.compile(r"PyTreeSpec\((?:[\[\](){}*,: ]|NoneIsLeaf|namespace=|-?\d+|'[^'\\]*')*\)")
_ordered: dict[Any, bool] = {}


def has_ordered_dict(spec: Any) -> bool:
    """Check whether a structure contains an OrderedDict, or a text that names it."""
    known = _ordered.get(spec)
    if known is None:
        text = str(spec)
        known = "OrderedDict" in text
        if _PLAIN.fullmatch(text):
            if len(_ordered) >= 4096:
                _ordered.clear()
            _ordered[spec] = known
    return known


def _reordered(tree: Any) -> Any:
    """Copy the containers of a tree, each OrderedDict with its items inserted in their order."""
    options = {"none_is_leaf": True, "namespace": NAMESPACE}
    items, spec = optree.tree_flatten(tree, is_leaf=lambda x: type(x) is OrderedDict, **options)
    reordered = [
        OrderedDict((k, _reordered(v)) for k, v in x.items()) if type(x) is OrderedDict else x for x in items
    ]  # fmt: skip
    return optree.tree_unflatten(spec, reordered)


def flatten_without_ordered_dicts(tree: Any) -> tuple[list[Any], Any]:
    """Return the leaves and the structure of nested containers that contain no OrderedDict."""
    leaves, spec = optree.tree_flatten(tree, none_is_leaf=True, namespace=NAMESPACE)
    # optree returns a container of a new type as a leaf, even if another thread has just registered its class. So
    # flatten again until the type of each leaf has been classified as a leaf type.
    while new := {type(x) for x in leaves} - _leaf_types:
        new = {cls for cls in new if not _leaf_classes.get(cls)}
        if not new:
            break
        for cls in new:
            _see(cls)
        leaves, spec = optree.tree_flatten(tree, none_is_leaf=True, namespace=NAMESPACE)
    return leaves, spec


def tree_leaves(tree: Any) -> list[Any]:
    """Return the leaves of nested containers."""
    return tree_flatten(tree)[0]


def tree_unflatten(leaves: Iterable[Any], spec: Any) -> Any:
    """Rebuild nested containers from `leaves` and the structure `spec` that `tree_flatten` returned."""
    return optree.tree_unflatten(spec, leaves)


def tree_map(fn: Callable[..., Any], tree: Any) -> Any:
    """Apply `fn` to each leaf of nested containers."""
    leaves, spec = tree_flatten(tree)
    return tree_unflatten([fn(x) for x in leaves], spec)


def flat_items(x: Any) -> list[Any]:
    """Flatten nested tuples and lists; any other object, including other containers, is one item."""
    return [y for i in x for y in flat_items(i)] if isinstance(x, (tuple, list)) else [x]
