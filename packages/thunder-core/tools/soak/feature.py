# SPDX-License-Identifier: Apache-2.0
"""What a feature is: a place where state lives, how a program reads it, and what changes it."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
import textwrap
from collections.abc import Iterable
from typing import Any

ENTRIES = ("function", "closure", "module", "method", "argument")


@dataclasses.dataclass(frozen=True)
class Feature:
    """A place where state lives, as source text. `$` in names becomes the feature's number in its program.

    `setup` makes the state; `read` is the expression that a program reads; `mutate` are statements that change the
    state between calls; `keep` are statements that change nothing that is read; `write` are statements that a program
    may run itself; `state` are expressions that are compared after each call, beside every name that `setup` assigns;
    `undo` restores what belongs to the process. `entries` are those that suit: where a name must be a global, only
    "function".
    """

    name: str
    setup: str
    read: str
    mutate: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    undo: str = ""
    entries: tuple[str, ...] = ENTRIES

    def __post_init__(self) -> None:
        object.__setattr__(self, "setup", lines(self.setup))

    def numbered(self, number: int) -> Feature:
        """Return this feature with its number in place of `$`."""
        values: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name not in ("name", "entries"):
                value = value.replace("$", str(number)) if isinstance(value, str) else _numbered(value, number)
            values[field.name] = value
        return Feature(**values)

    def to_json(self) -> dict[str, Any]:
        """Return the fields, for a worker."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Feature:
        """Return the feature that `to_json` described."""
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
        return cls(**values)


def lines(source: str) -> str:
    """Return an indented block of source text at the margin."""
    return textwrap.dedent(source).strip("\n ")


def _numbered(texts: Iterable[str], number: int) -> tuple[str, ...]:
    return tuple(text.replace("$", str(number)) for text in texts)


@functools.lru_cache(4096)
def assigned_names(source: str) -> tuple[str, ...]:
    """Return the variables that statements assign or delete, in order, not those inside functions and classes."""
    found: dict[str, None] = {}
    pending: list[ast.AST] = [ast.parse(source)]
    while pending:
        node = pending.pop(0)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found[node.id] = None
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Lambda, ast.ListComp, ast.GeneratorExp)):
            pending += ast.iter_child_nodes(node)
    return tuple(found)


def prefixed(source: str, names: Iterable[str], prefix: str) -> str:
    """Return the text with `prefix` before each of the names."""
    for name in names:
        source = re.sub(rf"(?<![\w.'\"]){name}\b", prefix + name, source)
    return source
