# SPDX-License-Identifier: Apache-2.0
"""The kind of Python's containers. They are read item by item, or compared whole if all items are plain values."""

from __future__ import annotations

import abc
import enum
from collections import OrderedDict, defaultdict, deque
from typing import Any

from thunder.capture.base.predicates import is_tensor
from thunder.capture.base.snapshots import Snapshot, container_snapshot
from thunder.capture.base.sources import Attr, BaseItem, DictKeys, DictValues, Item, Source, is_literal
from thunder.capture.reads.guard_kinds import HasContents, HasKeys, HasLength, HasMembers, HasType, IsEmpty
from thunder.capture.reads.kinds.arrays import Array
from thunder.capture.reads.kinds.base import Holder, Kind, Rebuilder, Recorder
from thunder.capture.reads.kinds.leaves import Identity, is_plain
from thunder.capture.reads.value_hooks import unwatched_class
from thunder.runtime.containers import base_of, dict_type, items_of

__all__ = ["MAX_SYMBOLIC_ITEMS", "Container", "has_plain_lookup", "item_source", "read_contents"]

EXACT = frozenset({list, dict, tuple, set, frozenset, deque, OrderedDict, defaultdict})
# If a container has more items, its numbers do not become symbolic inputs one by one.
MAX_SYMBOLIC_ITEMS = 1024
# A container of plain values has one guard, whatever its length. Other items have a guard each, and compiling the
# prologue of more items than this takes longer than a call can pay for.
MAX_ITEMS = 16_384


class Container(Kind):
    """Lists, dicts, tuples, sets and deques. Instances of their subclasses are of another kind."""

    def match(self, cls: type) -> bool:
        """Match the exact classes."""
        return cls in EXACT

    def record(
        self, source: Source, value: Any, recorder: Recorder, *, root: bool = False, holder: Holder | None = None
    ) -> None:
        """Guard the container and read its items.

        A tuple of arrays is replaced by a tuple of array handles, and a tuple of numbers by one with their symbols.
        """
        if type(value) is tuple and holder is not None and _has_symbolic_numbers(source, value, recorder):
            self.guard(source, value, recorder, root=root)
            recorder.register(source, value, self.snapshot(source, value, recorder))
            recorder.add(HasLength(source, len(value)))
            recorder.tuples[id(value)] = tuple([_symbol(source.item(i), x, recorder) for i, x in enumerate(value)])
            return
        if type(value) is not tuple or holder is None or not _has_arrays(value):
            super().record(source, value, recorder, root=root, holder=holder)
            return
        self.guard(source, value, recorder, root=root)
        recorder.register(source, value, self.snapshot(source, value, recorder))
        recorder.add(HasLength(source, len(value)))
        handles = [*value]
        for i, item in enumerate(value):
            inside = (handles, i) if _has_arrays((item,)) else None
            recorder.value(source.item(i), item, holder=inside)

    def held(self, source: Source, value: Any, recorder: Recorder, holder: Holder | None) -> None:
        """Replace a tuple of arrays or of symbolic numbers where the program finds it.

        The program must not use one that stays in place.
        """
        if type(value) is not tuple:
            return
        if not _has_arrays(value):
            symbols = recorder.tuples.get(id(value))
            if symbols is not None and holder is not None:
                recorder.substitute(holder, value, symbols)
            elif symbols is not None:
                recorder.refuse(f"`{source}` cannot be replaced while tracing, and its numbers are inputs")
            return
        if holder is not None:
            recorder.substitute(holder, value, recorder.tuples.setdefault(id(value), _of_handles(value, recorder)))
            return
        for i, item in enumerate(value):
            if _has_arrays((item,)) and type(item) is not tuple:
                recorder.unguardable_found(source.item(i), item)

    def guard(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Guard the class. For a private empty dict (torch's modules have many) the guard on emptiness is enough."""
        if isinstance(value, dict) and not value and _is_private(source):
            return
        recorder.add(HasType(source, type(value)))

    def snapshot(self, source: Source, value: Any, recorder: Recorder) -> list[Snapshot]:
        """Return its items."""
        return [container_snapshot(source, value)]

    def reach(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Read its items, the maximal length of a deque, and the function that makes defaults."""
        if isinstance(value, deque):
            recorder.value(source.attr("maxlen"), value.maxlen)
        elif isinstance(value, defaultdict):
            recorder.value(source.attr("default_factory"), value.default_factory)
        read_contents(source, value, recorder)

    def rebuild(self, value: Any, epilogue: Rebuilder) -> Any:
        """Build a new container with the items' values at the call."""
        return epilogue.new_container(value)


def _has_arrays(items: tuple[Any, ...]) -> bool:
    """Check whether a tuple contains arrays, directly or in tuples."""
    return any(Array().match(type(x)) or (type(x) is tuple and _has_arrays(x)) for x in items)


def _has_symbolic_numbers(source: Source, items: tuple[Any, ...], recorder: Recorder) -> bool:
    return recorder.is_read_by_item(source) and len(items) <= MAX_SYMBOLIC_ITEMS and _all_plain(items, False)


def _symbol(source: Source, item: Any, recorder: Recorder) -> Any:
    """Return the symbol of a number that is an input. Guard any other item."""
    found = recorder.symbolic_number(source, item)
    if found is None:
        recorder.value(source, item)
    return item if found is None else found


def _of_handles(items: tuple[Any, ...], recorder: Recorder) -> tuple[Any, ...]:
    return tuple([_of_handles(x, recorder) if type(x) is tuple else recorder.arrays.get(id(x), x) for x in items])


def _is_private(source: Source) -> bool:
    """Check for an entry with a private name, or for one of the dicts of global hooks of torch's modules."""
    if isinstance(source, Item):
        return isinstance(source.key, str) and source.key.startswith("_")
    return isinstance(source, Attr) and source.name.startswith("_global_")


def read_contents(source: Source, x: Any, recorder: Recorder) -> None:
    """Read the items of a container, or of an instance of a container's subclass."""
    items = items_of(x)
    pairs = isinstance(x, dict)
    plain = _all_plain(items, pairs)
    by_item = (
        isinstance(x, (list, dict, deque)) and len(items) <= MAX_SYMBOLIC_ITEMS and recorder.is_read_by_item(source)
    )
    if not items:
        recorder.add(IsEmpty(source))
    elif len(items) > MAX_ITEMS and not plain:
        recorder.refuse(f"`{source}` has {len(items)} items with one guard each, which is more than {MAX_ITEMS}")
    elif isinstance(x, (set, frozenset)) and _differ_if_not_identical(items):
        recorder.add(HasMembers(source, frozenset(items)))
    elif plain and not by_item:
        recorder.add(HasContents(source, _frozen(x)))
        for item in items:
            for member in item if type(item) is tuple else (item,):
                if isinstance(member, enum.Enum):
                    recorder.member_found(member)
    elif isinstance(x, (set, frozenset)) or (pairs and not all(_is_key(k) for k, _ in items)):
        recorder.refuse(f"the elements or keys of `{source}` are objects, which thunder cannot guard")
    elif pairs:
        if any(is_tensor(k) for k, _ in items):
            _read_keys(source, [k for k, _ in items], recorder)
        else:
            recorder.add(HasKeys(source, tuple(k for k, _ in items)))
        for i, (key, item) in enumerate(items):
            recorder.value(item_source(source, x, key, i), item, holder=(x, key))
    else:
        recorder.add(HasLength(source, len(items)))
        for i, item in enumerate(items):
            holder = (x, i) if isinstance(x, (list, deque)) else None
            recorder.value(item_source(source, x, i, i), item, holder=holder)


def _read_keys(source: Source, keys: list[Any], recorder: Recorder) -> None:
    """Guard keys one by one, because some are tensors: the keys of a dict are compared by identity."""
    recorder.add(HasLength(source, len(keys)))
    for i, key in enumerate(keys):
        if is_tensor(key) and id(key) in recorder.handles:
            recorder.deny(f"`{source}` has a key that is an argument, and tracing cannot replace the key", always=True)
        recorder.value(source.to(DictKeys).item(i), key)


def item_source(source: Source, x: Any, key: Any, position: int) -> Source:
    """Return the source of a container's item, which is read without running the code of a subclass."""
    if not is_literal(key):
        return source.to(DictValues).item(position)
    if type(x) in EXACT:
        return source.item(key)
    return source.to(BaseItem, dict if isinstance(x, dict) else base_of(x), key)


def has_plain_lookup(cls: type) -> bool:
    """Check whether `cls.name` reads the attribute directly, i.e. no metaclass changes the lookup."""
    return unwatched_class(cls) in (type, abc.ABCMeta)


def _is_key(x: Any) -> bool:
    """Check whether a guard can compare a dict's key."""
    if type(x) is tuple:
        return all(_is_key(i) and not is_tensor(i) for i in x)
    return is_plain(x) or isinstance(x, type) or is_tensor(x) or Identity().match(type(x))


def _differ_if_not_identical(items: tuple[Any, ...]) -> bool:
    """Check whether all elements of a set are strings or classes, whose equality needs no comparison of types."""
    return all(type(x) is str or (isinstance(x, type) and has_plain_lookup(x)) for x in items)


def _all_plain(items: tuple[Any, ...], pairs: bool) -> bool:
    """Check whether all items are plain values."""
    if pairs:
        return all(is_plain(k) and is_plain(v) for k, v in items)
    return all(is_plain(i) for i in items)


def _frozen(x: Any) -> Any:
    """Return the value with which `same_contents` compares a container."""
    if isinstance(x, (set, frozenset)):
        return frozenset(x)
    if isinstance(x, dict):
        return dict(dict_type(x).items(x))
    return x if type(x) is tuple else items_of(x)
