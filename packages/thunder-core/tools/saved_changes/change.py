# SPDX-License-Identifier: Apache-2.0
"""The changes in the text files beside this module.

A change begins with a line `== name | before | after`, or `== name (not saved) | before | after` if a process must not
find the program of the one before it, or `(perhaps saved)` if that depends on the processes. In its source, `$1` stands
for what changes; more pairs are `$2` and so on. A line `-- name.py | before | after` adds a file that the source
imports or reads, or that only one version has (`-`). In all of these, `\n` is a new line, and `(nothing)` an empty
text.

A source defines `f`, which is jitted with the argument `X`, or `make()`, which returns a callable and its arguments. It
may define `reset()`, which runs before each call, `after()`, whose result must be eager mode's after the call, and
`OPTIONS` of `thunder.jit`.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

__all__ = ["Change", "changes"]

HEADER = """
import abc, collections, contextvars, copy, dataclasses, datetime, decimal, enum, fractions, functools, itertools
import json, math, numbers, operator, os, random, re, string, sys, types, typing
import torch
from torch import nn
from torch.nn import functional as F
X = torch.arange(6.0).reshape(2, 3) + 1
"""
MAKE = "def make(): return f, (X,)\n"
MARKS = {" (not saved)": False, " (perhaps saved)": None}


@dataclasses.dataclass
class Change:
    """A program in two versions: each a source and further files."""

    name: str
    is_saved: bool | None
    sources: tuple[str, str]
    files: tuple[dict[str, str], dict[str, str]]


def changes() -> list[Change]:
    """Return all changes."""
    texts = [path.read_text() for path in sorted(Path(__file__).parent.glob("*.txt"))]
    return [_parsed(text) for whole in texts for text in whole.split("\n== ")[1:]]


def _parsed(text: str) -> Change:
    head, *lines = text.split("\n")
    name, *values = head.split(" | ")
    files: tuple[dict[str, str], dict[str, str]] = {}, {}
    while lines and lines[0].startswith("-- "):
        file, *contents = lines.pop(0)[3:].split(" | ")
        for content, found in zip(contents, files):
            if content != "-":
                found[file] = _unescaped(content)
    sources = [HEADER + "\n".join(lines) + "\n" + ("" if "\ndef make():" in text else MAKE)] * 2
    for i, value in enumerate(values):
        sources[i % 2] = sources[i % 2].replace(f"${i // 2 + 1}", _unescaped(value))
    mark = next((mark for mark in MARKS if name.endswith(mark)), "")
    return Change(name.removesuffix(mark), MARKS.get(mark, True), (sources[0], sources[1]), files)


def _unescaped(text: str) -> str:
    return "" if text == "(nothing)" else text.replace("\\n", "\n").replace("\\\\", "\\")
