# SPDX-License-Identifier: Apache-2.0
"""Guards: conditions that the values a program read must meet before its trace can be used for another call.

Each guard class stores the source of a value and the operand to compare the value with. It returns the condition under
which the guard fails, and the message of the failure. In both texts, `{0}` is the value found in the call and `{1}` is
the operand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from thunder.capture.base.messages import Message, name_of
from thunder.capture.base.sources import Source, Variables
from thunder.runtime.guards import same_attributes, same_contents, same_plain_value, same_value
from thunder.runtime.messages import format_value

__all__ = [
    "Equals",
    "Guard",
    "HasAttributes",
    "HasContents",
    "HasKeys",
    "HasLength",
    "HasMembers",
    "HasPlainValue",
    "HasType",
    "IsAlive",
    "IsEmpty",
    "IsObject",
    "IsSame",
    "LacksAttribute",
    "LacksKey",
    "LacksKeys",
]


# -- guards -----------------------------------------------------------------------------------------------------------
class Guard:
    """A condition on the value at a source."""

    __slots__ = ("operand", "source")

    #: The condition under which the guard fails, if it is the same for all instances.
    fails_if = ""
    #: Functions that the condition calls, by their names in the condition.
    helpers: ClassVar[dict[str, Callable[..., Any]]] = {}

    def __init__(self, source: Source, operand: Any = None):
        self.source = source
        self.operand = operand

    def condition(self) -> str:
        """Return the Python expression that is true if the guard fails."""
        return self.fails_if

    def message(self) -> Message:
        """Return the message of a failure."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The value's name in the message."""
        return name_of(self.source)


_BY_IDENTITY = (bool, type(None), type(...), type(NotImplemented), torch.dtype, torch.layout, torch.memory_format)


class Equals(Guard):
    """The value is plain, has the same type, and is equal."""

    __slots__ = ()
    helpers: ClassVar = {"same_value": same_value}

    def condition(self) -> str:
        """Return the cheapest comparison that is exact for the value."""
        value = self.operand
        if isinstance(value, _BY_IDENTITY):
            return "{0} is not {1}"
        if type(value) is int or type(value) is str or type(value) is bytes:
            return f"type({{0}}) is not {type(value).__name__} or {{0}} != {{1}}"
        if type(value) is float and value == value and value not in (0.0, float("inf"), float("-inf")):
            return "type({0}) is not float or {0} != {1}"
        return "not same_value({0}, {1})"

    def message(self) -> Message:
        """Show both values."""
        return Message(f"{self.name} was {format_value(self.operand)} and is", "{0}")


class IsObject(Guard):
    """The value is the same object."""

    __slots__ = ()
    fails_if = "{0} is not {1}"

    def message(self) -> Message:
        """Show both objects."""
        if isinstance(self.operand, (bool, type(None))):
            return Message(f"{self.name} was {self.operand} and is", "{0}")
        return Message(f"{self.name} was", "{1}", "and is another:", "{0}")


class IsAlive(Guard):
    """The value is the object of a weak reference."""

    __slots__ = ()
    fails_if = "{0} is not {1}()"

    def message(self) -> Message:
        """Show both objects."""
        return Message(f"{self.name} was", "{1}()", "and is another:", "{0}")


class IsSame(Guard):
    """The value is the same object as the value at another source."""

    __slots__ = ()
    fails_if = "{0} is not {1}"

    def message(self) -> Message:
        """Show both sources."""
        return Message(f"{self.name} was the same object as {name_of(self.operand)} and is another:", "{0}")


class HasType(Guard):
    """The value's class is exactly this class."""

    __slots__ = ()
    fails_if = "type({0}) is not {1}"

    def message(self) -> Message:
        """Show both classes."""
        return Message(f"{self.name} was of {format_value(self.operand)} and is of", "type({0})")


class HasPlainValue(Guard):
    """The value is an instance of a subclass of int, float, complex, str or bytes, and has this value."""

    __slots__ = ()
    fails_if = "not same_plain_value({0}, {1})"
    helpers: ClassVar = {"same_plain_value": same_plain_value}

    def message(self) -> Message:
        """Show both values."""
        return Message(f"the value of {self.name} was {format_value(self.operand)} and is", "{0}")


class HasAttributes(Guard):
    """A class has exactly these attributes."""

    __slots__ = ()
    fails_if = "not same_attributes({0}, {1})"
    helpers: ClassVar = {"same_attributes": same_attributes}

    def message(self) -> Message:
        """Name the class."""
        return Message(f"the attributes of class {self.name} have changed")


class LacksAttribute(Guard):
    """The value has no attribute of this name."""

    __slots__ = ()
    fails_if = "hasattr({0}, {1})"

    def message(self) -> Message:
        """Name the new attribute."""
        return Message(f"{self.name} had no attribute {self.operand} and has one now")


# -- guards of containers ---------------------------------------------------------------------------------------------
class IsEmpty(Guard):
    """The container is empty."""

    __slots__ = ()
    fails_if = "{0}"

    def message(self) -> Message:
        """Show both numbers of items."""
        return Message(f"{self.name} had {self.operand or 0} items; their number is", "len({0})")


class HasLength(IsEmpty):
    """The container has the same number of items."""

    __slots__ = ()
    fails_if = "len({0}) != {1}"


class HasMembers(Guard):
    """The set has the same elements, all of them strings or classes."""

    __slots__ = ()
    fails_if = "{0} != {1}"

    def message(self) -> Message:
        """Show both sets."""
        return Message(f"{self.name} was", "{1}", "and is another:", "{0}")


class HasContents(Guard):
    """The container has the same plain items."""

    __slots__ = ()
    helpers: ClassVar = {"same_contents": same_contents}

    def condition(self) -> str:
        """Compare tuples by identity first, because they are immutable."""
        differs = "not same_contents({0}, {1})"
        return f"{{0}} is not {{1}} and {differs}" if type(self.operand) is tuple else differs

    def message(self) -> Message:
        """Show both contents."""
        expected = format_value(self.operand)
        if type(self.operand) is tuple:  # also for a list or a deque
            expected = expected.removeprefix("a tuple of ")
        return Message(f"the contents of {self.name} were {expected} and are", "{0}")


class HasKeys(Guard):
    """A dict has these keys, in this order."""

    __slots__ = ()
    helpers: ClassVar = {"same_contents": same_contents}

    def condition(self) -> str:
        """Compare string keys directly, and other keys together with their types."""
        if all(type(k) is str for k in self.operand):
            return "tuple({0}) != {1}"
        return "not same_contents(tuple({0}), {1})"

    def message(self) -> Message:
        """Show both lists of keys."""
        return Message(f"the keys of {self.name} were {format_value(self.operand)} and are", "tuple({0})")


class LacksKey(Guard):
    """A dict does not have this key."""

    __slots__ = ()
    fails_if = "{1} in {0}"

    def message(self) -> Message:
        """Name the new key, or the new attribute if the dict is an object's `__dict__`."""
        owner = self.source.parent if isinstance(self.source, Variables) else None
        return Message(f"{name_of(owner or self.source)} had no {self.operand} and has one now")


class LacksKeys(Guard):
    """A dict has none of these keys."""

    __slots__ = ()
    fails_if = "not {0}.keys().isdisjoint({1})"

    def message(self) -> Message:
        """Show the new keys."""
        owner = name_of(self.source.parent or self.source)
        absent = ", ".join(sorted(self.operand))
        return Message(f"{owner} had none of {absent}; now it has", "sorted({1}.intersection({0}))")
