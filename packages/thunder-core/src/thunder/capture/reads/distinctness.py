# SPDX-License-Identifier: Apache-2.0
"""Distinctness: which objects that were different while tracing could be the same object in a later call.

A program that compares objects by identity needs a guard that they are still different. Only objects of one class can
become identical. Objects with a tensor each, at the same path (`a.weight`, `b.weight`), need no guard: the check of
tensors already requires that the tensors are different.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from thunder.capture.base.sources import Argument, Item, Root, Source, Variables
from thunder.capture.reads.classify import classify
from thunder.capture.reads.kinds.base import Reached
from thunder.capture.reads.kinds.containers import Container
from thunder.capture.reads.kinds.leaves import IMMUTABLE
from thunder.capture.reads.kinds.objects import Namespace, Object

__all__ = ["may_become_identical"]

# The dicts of a module that programs do not compare: of its parameters, submodules and hooks.
_OF_MODULES = frozenset(vars(torch.nn.Module()))

Path = tuple[Any, ...]  # the code of each step, and the sources that it needs


def may_become_identical(reached: Iterable[Reached], tensors: Sequence[tuple[Source, Any]]) -> list[Source]:
    """Return the sources of objects that no other guard keeps different from another object in the result."""
    groups: dict[type, list[Source]] = {}
    for found in reached:
        if _is_guarded_by_class(found):
            groups.setdefault(type(found.thing), []).append(found.source)
    groups = {cls: sources for cls, sources in groups.items() if len(sources) > 1}
    if not groups:
        return []
    below = _tensors_below({source for sources in groups.values() for source in sources}, tensors)
    return [source for sources in groups.values() if not _differ_in_a_tensor(sources, below) for source in sources]


def _is_guarded_by_class(found: Reached) -> bool:
    """Check whether guards would accept another object of the same class with the same contents."""
    source, thing = found.source, found.thing
    root = source.root
    if isinstance(source, Variables) or (isinstance(root, Root) and root.value is torch.nn.modules.module):
        return False  # the `__dict__` of a tensor, or hooks of all modules
    if isinstance(source, Item) and isinstance(source.parent, Variables) and source.key in _OF_MODULES:
        return False
    if type(thing) is types.FunctionType:
        return isinstance(root, Argument)
    return isinstance(classify(thing), (Container, Object, Namespace)) and not issubclass(type(thing), IMMUTABLE)


def _tensors_below(owners: set[Source], tensors: Sequence[tuple[Source, Any]]) -> dict[Source, dict[Path, int]]:
    """Return the ids of the tensors that were read through each owner, by their paths from the owner."""
    below: dict[Source, dict[Path, int]] = {}
    for source, tensor in tensors:
        path: Path = ()
        at: Source | None = source
        while at is not None and at.parent is not None:
            path = (at.code("", *["" for _ in at.operands]), *at.operands, *path)
            at = at.parent
            if at in owners:
                below.setdefault(at, {})[path] = id(tensor)
    return below


def _differ_in_a_tensor(sources: Sequence[Source], below: dict[Source, dict[Path, int]]) -> bool:
    """Check whether all objects have a tensor at the same path, and each has another one."""
    first = below.get(sources[0], {})
    return any(len({below.get(source, {}).get(path, 0) for source in sources} - {0}) == len(sources) for path in first)
