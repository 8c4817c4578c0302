# SPDX-License-Identifier: Apache-2.0
"""The lines of a kernel as records, so that schedules and templates do not have to parse text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

__all__ = ["CHECK", "DRAW", "VALUE", "Access", "Line", "Loop", "lines_in", "mapped", "rendered"]

# Kinds of lines: a line computes or moves a value, draws random numbers, or checks that an index is in bounds.
VALUE, DRAW, CHECK = "value", "draw", "check"


class Access(NamedTuple):
    """A load or a store (of `value`) at an offset of a pointer."""

    pointer: str
    offset: str
    mask: str = ""
    value: str | None = None
    policy: str = ""  # the eviction policy of a load
    other: str = "0"  # the value of elements that the mask excludes
    itemsize: int = 0  # the bytes of an element of a load

    def __str__(self) -> str:
        where, mask = f"{self.pointer} + {self.offset}", f", mask={self.mask}" if self.mask else ""
        if self.value is not None:
            return f"tl.store({where}, {self.value}{mask})"
        policy = f', eviction_policy="{self.policy}"' if self.policy else ""
        return f"tl.load({where}{f'{mask}, other={self.other}' if mask else ''}{policy})"


class Line(NamedTuple):
    """A line of code. `@` in the text stands for the load or store."""

    text: str
    access: Access | None = None
    kind: str = VALUE
    instead: str = ""  # the text of the access, if it is not the usual load or store

    def __str__(self) -> str:
        return self.text if self.access is None else self.text.replace("@", self.instead or str(self.access))

    @property
    def is_load(self) -> bool:
        """Whether the line loads from memory."""
        return self.access is not None and self.access.value is None


class Loop(NamedTuple):
    """A loop: the head (the `for` line and the lines that compute the position) and the body."""

    head: tuple[str, ...]
    body: tuple[Line, ...]


def lines_in(items: Iterable[Line | Loop]) -> Iterator[Line]:
    """Yield the lines in order, including the lines of loops."""
    for item in items:
        if isinstance(item, Loop):
            yield from item.body
        else:
            yield item


def mapped(items: Iterable[Line | Loop], change: Callable[[Line], Line]) -> list[Line | Loop]:
    """Map a function over the lines, including the lines of loops."""
    return [
        item._replace(body=tuple(map(change, item.body))) if isinstance(item, Loop) else change(item) for item in items
    ]


def rendered(items: Sequence[str | Line | Loop]) -> list[str]:
    """Return the text of lines and loops."""
    out: list[str] = []
    for item in items:
        if isinstance(item, Loop):
            first, *rest = item.head
            out += [first, *(f"    {line}" for line in (*rest, *item.body))]
        else:
            out.append(str(item))
    return out
