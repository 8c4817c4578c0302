# SPDX-License-Identifier: Apache-2.0
"""Guards: what has to hold of a value that a program read, for a call to be answered by its trace.

There is a class for each kind of guard. It holds the source of the value and what that is compared with, and says the
condition on which the guard fails and the message that it then gives. In both, `{0}` stands for the value that is
found, `{1}` for the operand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from thunder.capture.base.messages import Message, name_of
from thunder.capture.base.sources import Source, Variables
from thunder.runtime.guards import same_attributes, same_contents, same_value
from thunder.runtime.messages import format_value

__all__ = [
    "Equals",
    "Guard",
    "HasAttributes",
    "HasContents",
    "HasKeys",
    "HasLength",
    "HasMembers",
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
    """What has to hold of the value at a source."""

    __slots__ = ("operand", "source")

    #: The condition on which it fails, if that is always the same.
    fails_if = ""
    #: Functions that the condition calls, by their names in it.
    helpers: ClassVar[dict[str, Callable[..., Any]]] = {}

    def __init__(self, source: Source, operand: Any = None):
        self.source = source
        self.operand = operand

    def condition(self) -> str:
        """Return the Python expression that is true where the guard fails."""
        return self.fails_if

    def message(self) -> Message:
        """Return what the guard says when it fails."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """What the message calls the value."""
        return name_of(self.source)


_BY_IDENTITY = (bool, type(None), type(...), type(NotImplemented), torch.dtype, torch.layout, torch.memory_format)


class Equals(Guard):
    """A plain value is of the same type and equal."""

    __slots__ = ()
    helpers: ClassVar = {"same_value": same_value}

    def condition(self) -> str:
        """Compare in the cheapest way that is exact for the value."""
        value = self.operand
        if isinstance(value, _BY_IDENTITY):
            return "{0} is not {1}"
        if type(value) is int or type(value) is str or type(value) is bytes:
            return f"type({{0}}) is not {type(value).__name__} or {{0}} != {{1}}"
        if type(value) is float and value == value and value not in (0.0, float("inf"), float("-inf")):
            return "type({0}) is not float or {0} != {1}"
        return "not same_value({0}, {1})"

    def message(self) -> Message:
        """Say both values."""
        return Message(f"{self.name} was {format_value(self.operand)} and is", "{0}")


class IsObject(Guard):
    """It is the very object."""

    __slots__ = ()
    fails_if = "{0} is not {1}"

    def message(self) -> Message:
        """Say both objects."""
        if isinstance(self.operand, (bool, type(None))):
            return Message(f"{self.name} was {self.operand} and is", "{0}")
        return Message(f"{self.name} was", "{1}", "and is another:", "{0}")


class IsAlive(Guard):
    """It is the object that a weak reference refers to."""

    __slots__ = ()
    fails_if = "{0} is not {1}()"

    def message(self) -> Message:
        """Say both objects."""
        return Message(f"{self.name} was", "{1}()", "and is another:", "{0}")


class IsSame(Guard):
    """It is the same object as the one at another source."""

    __slots__ = ()
    fails_if = "{0} is not {1}"

    def message(self) -> Message:
        """Say where both were found."""
        return Message(f"{self.name} was the same object as {name_of(self.operand)} and is another:", "{0}")


class HasType(Guard):
    """It is of this very class."""

    __slots__ = ()
    fails_if = "type({0}) is not {1}"

    def message(self) -> Message:
        """Say both classes."""
        return Message(f"{self.name} was of {format_value(self.operand)} and is of", "type({0})")


class HasAttributes(Guard):
    """A class has these attributes and no others."""

    __slots__ = ()
    fails_if = "not same_attributes({0}, {1})"
    helpers: ClassVar = {"same_attributes": same_attributes}

    def message(self) -> Message:
        """Say which class has changed."""
        return Message(f"the class {self.name} has other attributes than it had")


class LacksAttribute(Guard):
    """It has no attribute of this name."""

    __slots__ = ()
    fails_if = "hasattr({0}, {1})"

    def message(self) -> Message:
        """Say which attribute is new."""
        return Message(f"{self.name} had no attribute {self.operand} and has one now")


# -- guards of containers ---------------------------------------------------------------------------------------------
class IsEmpty(Guard):
    """There is nothing in it."""

    __slots__ = ()
    fails_if = "{0}"

    def message(self) -> Message:
        """Say how many items it has."""
        return Message(f"{self.name} had {self.operand or 0} items; their number is", "len({0})")


class HasLength(IsEmpty):
    """It has as many items."""

    __slots__ = ()
    fails_if = "len({0}) != {1}"


class HasMembers(Guard):
    """It is the same set of strings and classes."""

    __slots__ = ()
    fails_if = "{0} != {1}"

    def message(self) -> Message:
        """Say both sets."""
        return Message(f"{self.name} was", "{1}", "and is another:", "{0}")


class HasContents(Guard):
    """Its items are plain values, and these ones."""

    __slots__ = ()
    helpers: ClassVar = {"same_contents": same_contents}

    def condition(self) -> str:
        """Ask first whether it is the same tuple, which cannot have changed."""
        differs = "not same_contents({0}, {1})"
        return f"{{0}} is not {{1}} and {differs}" if type(self.operand) is tuple else differs

    def message(self) -> Message:
        """Say what was in it and what is."""
        return Message(f"the contents of {self.name} were {format_value(self.operand)} and are", "{0}")


class HasKeys(Guard):
    """A dict has these keys, in this order."""

    __slots__ = ()
    helpers: ClassVar = {"same_contents": same_contents}

    def condition(self) -> str:
        """Compare strings as they are, and other keys with their types."""
        if all(type(k) is str for k in self.operand):
            return "tuple({0}) != {1}"
        return "not same_contents(tuple({0}), {1})"

    def message(self) -> Message:
        """Say both lists of keys."""
        return Message(f"the keys of {self.name} were {format_value(self.operand)} and are", "tuple({0})")


class LacksKey(Guard):
    """A dict has no such key."""

    __slots__ = ()
    fails_if = "{1} in {0}"

    def message(self) -> Message:
        """Say which key is new: where it is an object's `__dict__`, which attribute."""
        owner = self.source.parent if isinstance(self.source, Variables) else None
        return Message(f"{name_of(owner or self.source)} had no {self.operand} and has one now")


class LacksKeys(Guard):
    """A dict has none of these keys."""

    __slots__ = ()
    fails_if = "not {0}.keys().isdisjoint({1})"

    def message(self) -> Message:
        """Say which keys are new."""
        owner = name_of(self.source.parent or self.source)
        absent = ", ".join(sorted(self.operand))
        return Message(f"{owner} had none of {absent}; now it has", "sorted({1}.intersection({0}))")
