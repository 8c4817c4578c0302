# SPDX-License-Identifier: Apache-2.0
"""Whether one run of a program may have depended on the order of a set, which differs between processes.

Sets that the program reads are guarded, so their sources are known; `set_uses` follows the sets that its code makes.
"""

from __future__ import annotations

import builtins
import functools
import sys
import threading
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any

from thunder.capture.base.phase import TracerPhase, active
from thunder.capture.base.sources import CellContents, Global, Source
from thunder.capture.reads import bytecode
from thunder.capture.reads.guard_kinds import Guard, HasContents, HasMembers, HasType, IsSame
from thunder.capture.reads.set_uses import SetUses, set_uses

__all__ = ["OrderOfSets", "sorted_sets"]

_NEW_SETS = (set, frozenset)
_HASHED_ALIKE = (str, bytes, int, bool)  # in all processes with the same seed of hashes
_MISSING = getattr(getattr(sys, "monitoring", None), "MISSING", None)
_WITHOUT_ORDER = {bytecode.MEMBERSHIP, bytecode.LENGTH, "add", "discard"}


class OrderOfSets:
    """What a run reveals about the sets that the program's code makes."""

    def __init__(self) -> None:
        self.matters = False  # whether the run may have depended on the order of a set
        # Where code raises errors that contain a set, by the ids of code.
        self.raising: dict[int, frozenset[int]] = {}
        # Sets that were read only because all attributes of an object were, and what the object has returned since:
        # the ids of its sets and of its `__dict__`, and names that were read from classes by functions.
        self._read_whole: dict[Source, tuple[frozenset[int], str | None]] = {}
        self.fetched: set[int] = set()
        self.names: set[str] = set()
        self.reads_by_text = False  # whether code may read attributes by texts, or in the `__dict__` of a class
        self._making: dict[int, SetUses] = {}  # for whose sets it matters that they are made, by the ids of code
        # What these sets were made of, and in which order a loop gets their elements, by their texts.
        self.orders: dict[str, tuple[str, list[Any], list[Any]]] = {}

    def code_runs(self, code: CodeType, scope: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        """Record that code has run; `before` are its globals, as they were before thunder replaced some of them."""
        uses = set_uses(code)
        shadowed = any(name in before for name in uses.builtins)
        unchecked = uses.sorts and scope.get("sorted") is not sorted_sets
        if uses.loops or uses.called:
            self._making[id(code)] = uses
            unchecked |= any(getattr(builtins, kind.__name__) is not kind for kind in _NEW_SETS)
        self.matters = self.matters or uses.ordered or shadowed or unchecked
        if uses.raises:
            self.raising[id(code)] = uses.raises
        self.reads_by_text = self.reads_by_text or "__dict__" in bytecode.attributes_not_of_self(code)

    def made(self, code: CodeType, kind: type, given: Any) -> None:
        """Record that code is about to make a set: its order, if the code loops over sets of lists or tuples."""
        uses = self._making.get(id(code))
        if uses is None or (given is _MISSING and not uses.called):
            return
        if not uses.called and type(given) in (list, tuple) and all(type(x) in _HASHED_ALIKE for x in given):
            order = [*kind(given)]
            if len(order) > 1:
                self.orders[f"{kind.__name__}({given!r})"] = kind.__name__, [*given], order
        else:
            self.matters = True

    def read_whole(self, source: Source, x: Any, owner: Any = None, *, name: str | None = None) -> None:
        """Record an attribute that was read with all others of an object that reports what it returns.

        The attribute is in the dict `owner` of the object, in a slot, or in its class under a `name`. A set of at most
        one element has an order only if the program adds to it.
        """
        if isinstance(x, (set, frozenset)) and len(x) <= 1:
            self._read_whole.setdefault(source, (frozenset({id(x), id(owner)}), name))

    def is_used(self, guards: Sequence[Guard], ran: Sequence[CodeType]) -> bool:
        """Check whether the program may depend on the order of a set that it makes, or of one that it reads."""
        if self.matters:
            return True
        read = [g for g in guards if _is_of_set(g) and not self._is_untouched(g.source, ran)]
        aliases = {g.operand for g in guards if isinstance(g, IsSame)} if read else set()
        return any(g.source in aliases or not _only_tested(g.source, ran) for g in read)

    def _is_untouched(self, source: Source, ran: Sequence[CodeType]) -> bool:
        """Check whether the program has not even got a set of at most one element that is guarded."""
        ids, name = self._read_whole.get(source, (None, None))
        if ids is None or not ids.isdisjoint(self.fetched) or any(map(_fetches_otherwise, ran)):
            return False
        if name is None:
            return True
        reported = self.reads_by_text or not {"__dict__", name}.isdisjoint(self.names)
        return not reported and all(name not in code.co_names for code in ran)


def _is_of_set(guard: Guard) -> bool:
    if isinstance(guard, HasType):
        return issubclass(guard.operand, (set, frozenset))
    return isinstance(guard, (HasMembers, HasContents)) and type(guard.operand) is frozenset


_HOOKS = frozenset({"__getattribute__", "__setattr__", "__delattr__"})
_GROW = frozenset({"add", "update", "union", "symmetric_difference", "symmetric_difference_update"})


def _fetches_otherwise(code: CodeType) -> bool:
    """Check whether code may get attributes of an object past its `__getattribute__`, and add to a set of them."""
    if "__getattribute__" not in code.co_names:
        return False
    grows = not _GROW.isdisjoint(code.co_names) or bytecode.combines(code)
    return grows or code.co_name not in _HOOKS


_OF_CLOSURES = frozenset({"__closure__", "cell_contents", "getclosurevars"})


def _only_tested(source: Source, ran: Sequence[CodeType]) -> bool:
    """Check whether all code that may read a variable of a module or of a closure only tests what it contains."""
    if isinstance(source, CellContents):
        if any(not _OF_CLOSURES.isdisjoint(code.co_names) for code in ran):
            return False
    elif not isinstance(source, Global):
        return False
    uses = [bytecode.uses(code, bytecode.VARIABLE, source.name) for code in ran]
    return any(uses) and all(found <= _WITHOUT_ORDER for found in uses)


# -- sorting ----------------------------------------------------------------------------------------------------------
_get_ident = threading.get_ident


@functools.wraps(builtins.sorted)
def sorted_sets(x: Any, /, *, key: Any = None, reverse: Any = False) -> list[Any]:
    """Sort as Python does, for code that sorts sets. Report a set if its order may be seen in the result."""
    known = key is None and isinstance(x, (set, frozenset)) and all(map(_is_ordered_totally, x))
    try:
        found = builtins.sorted(x, key=key, reverse=reverse)
    except TypeError:  # the message names the first elements that cannot be compared
        known = False
        raise
    finally:
        if not known and isinstance(x, (set, frozenset)) and active.thread == _get_ident():
            reader: Any = active.reader
            with TracerPhase():
                reader.order_of_set_read()
    return found


def _is_ordered_totally(x: Any) -> bool:
    """Check whether a value is smaller or greater than each other value of these types that differs from it."""
    if type(x) is tuple:
        return all(map(_is_ordered_totally, x))
    return type(x) in (str, bytes, int, bool) or (type(x) is float and x == x)
