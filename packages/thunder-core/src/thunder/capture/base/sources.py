# SPDX-License-Identifier: Apache-2.0
"""Places: where a prologue finds something again, as a path from a root that outlives the call.

A place is a root (the jitted callable, an argument, a class, a Python module) or a step from another place, written as
Python with `{}` for the place it starts from. Paths hold no user object, so a cached program keeps none alive.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Argument", "Place", "filled"]


class Argument:
    """The root of what is found in an argument: the leaf of the call with this number."""

    __slots__ = ("index", "name")

    def __init__(self, index: int, name: str):
        self.index = index
        self.name = name


class Place:
    """One step of a path. Steps from the same place are the same object when their text is."""

    __slots__ = ("_steps", "_text", "label", "others", "parent", "root", "step", "title")

    def __init__(
        self, root: Any = None, label: str = "", *, title: str = "", parent: Place | None = None, step: str = ""
    ):
        self.root = root
        self.parent = parent
        self.step = step
        self.others: tuple[Place, ...] = ()  # what stands for `{1}`, `{2}` in the step
        self.label = label  # what an input that is made of it is called
        self.title = title  # what a message calls it
        self._steps: dict[str, Place] = {}
        self._text: str | None = None

    @property
    def beginning(self) -> Any:
        """The root of the path."""
        place = self
        while place.parent is not None:
            place = place.parent
        return place.root

    def to(self, step: str, label: str = "") -> Place:
        """The place that `step` (`{}.name`, `{}['key']`) leads to."""
        found = self._steps.get(step)
        if found is None:
            joined = f"{self.label}_{label}" if self.label and label else self.label or label
            found = self._steps[step] = Place(parent=self, step=step, label=joined)
        return found

    def call(self, arguments: str, others: Sequence[Place], label: str) -> Place:
        """What a function that stands here gives; `others` stand for `{1}`, `{2}` in the text of its arguments."""
        key = f"{{}}({arguments})"
        found = self._steps.get(f"{key} {[id(other) for other in others]}" if others else key)
        if found is None:
            found = self.to(key, label)
            if others:
                self._steps[f"{key} {[id(other) for other in others]}"] = self._steps.pop(key)
                found.others = tuple(others)
        return found

    def item(self, key: Any) -> Place:
        """The item of a dict, list or tuple."""
        return self.to(f"{{}}[{key!r}]", "" if key in _TABLES else str(key))

    def attribute(self, name: str) -> Place:
        """An attribute that is neither a method nor computed."""
        return self.to(f"{{}}.{name}", name)

    def variable(self, name: str) -> Place:
        """A name in the `__dict__` of an object."""
        return self.to("{}.__dict__").item(name)

    def find(self, arguments: Callable[[Argument], Any]) -> Any:
        """What stands there now; `arguments` says what an argument is."""
        if self.parent is None:
            return arguments(self.root) if isinstance(self.root, Argument) else self.root
        names = {f"_{i}": other.find(arguments) for i, other in enumerate(self.others, 1)}
        return eval(filled(self.step, "_", [*names]), {"_": self.parent.find(arguments), **names})

    def __str__(self) -> str:
        """What a reader of a message wants to see: m.weight, not m.__dict__['_parameters']['weight']."""
        if self._text is None:
            self._text = self._describe()
        return self._text

    def _describe(self) -> str:
        if self.parent is not None and self.others and not self.title:
            return filled(self.step, str(self.parent), [str(other) for other in self.others])
        if self.parent is None or self.title:
            return self.root.name if isinstance(self.root, Argument) else self.title or self.label
        named = _ITEM.fullmatch(self.step)
        if named is None:
            return self.step.replace("{}", str(self.parent))
        owner = self.parent
        if owner.step in _TABLE_STEPS:
            owner = owner.parent or owner
        if owner.step not in ("{}.__dict__", "{}.__globals__") or owner.parent is None:
            return f"{owner}['{named[1]}']"
        return f"{owner if owner.title else owner.parent}.{named[1]}"


def filled(step: str, start: str, others: Sequence[str]) -> str:
    """A step as Python, from what it starts with, and with what else it names."""
    for i, other in enumerate(others, 1):
        step = step.replace(f"{{{i}}}", other)
    return step.replace("{}", start)


_TABLES = ("_parameters", "_buffers", "_modules")
_TABLE_STEPS = frozenset(f"{{}}['{name}']" for name in _TABLES)
_ITEM = re.compile(r"\{\}\['(\w+)'\]")
