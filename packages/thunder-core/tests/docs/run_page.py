# SPDX-License-Identifier: Apache-2.0
"""Run the Python of one Markdown page the way a reader would: top to bottom, in one namespace, in a fresh interpreter.

``python run_page.py PAGE.md`` exits with 0, or names the line of the page that is wrong. It runs the blocks fenced as
```` ```python ````; an HTML comment on the line above a fence says more. ``<!-- check -->`` above a ```` ```text ````
block: the Python block before it printed exactly this (``...`` stands for anything, and the milliseconds
that a pass took do not count). ``<!-- raises: TypeError -->`` above a Python block: it ends in this error, whose last
line counts as printed. ``<!-- gpu -->`` above either: only where there is a CUDA device.
"""

from __future__ import annotations

import contextlib
import difflib
import doctest
import io
import re
import sys
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# What follows the language is an option: "```{code-block} python" is shown, and does not run.
FENCE = re.compile(r"^(?P<ticks>`{3,})\s*(?P<language>[^\s`]*)[^`]*$")
MARK = re.compile(r"^<!--\s*(?P<mark>check|gpu|raises:\s*(?P<error>\w+))\s*-->$")


class Block(NamedTuple):
    """One fenced block of a page: its language, its text, the line of its fence, what the comments above it ask for."""

    language: str
    text: str
    line: int
    marks: frozenset[str]
    error: str | None


class PageError(Exception):
    """A page does not do what it says."""


def blocks_of(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    lines = iter(enumerate(page.splitlines(), start=1))
    marks: set[str] = set()
    error: str | None = None
    for number, line in lines:
        if mark := MARK.match(line.strip()):
            marks.add(mark["mark"].partition(":")[0])
            error = mark["error"] or error
        elif fence := FENCE.match(line):
            body: list[str] = []
            for _, inner in lines:
                if inner.rstrip() == fence["ticks"]:
                    break
                body.append(inner + "\n")
            else:
                raise PageError(f"line {number}: this fence is never closed")
            yield Block(fence["language"], "".join(body), number, frozenset(marks), error)
            marks, error = set(), None
        elif line.strip():
            marks, error = set(), None


def comparable(text: str) -> str:
    """Text without what differs from run to run, and without the spaces that end a line."""
    text = re.sub(r"\(took \d+ (\w+)\)", r"(took 0 \1)", text)
    return "".join(line.rstrip() + "\n" for line in text.strip("\n").splitlines())


def check(block: Block, printed: str) -> None:
    """Compare what was printed with what the page says."""
    want, got = comparable(block.text), comparable(printed)
    if not doctest.OutputChecker().check_output(want, got, doctest.ELLIPSIS):
        diff = "\n".join(difflib.unified_diff(want.splitlines(), got.splitlines(), "the page", "printed", lineterm=""))
        raise PageError(f"line {block.line}: the page shows another output than the code prints\n{diff}")


def execute(block: Block, page: str, namespace: dict[str, object]) -> str:
    """Run one block; returns what it printed. Line numbers in tracebacks are the page's."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * block.line + block.text, page, "exec"), namespace)
    except Exception as error:
        if type(error).__name__ != block.error:
            sys.stdout.write(printed.getvalue())
            raise
        return printed.getvalue() + "".join(traceback.format_exception_only(type(error), error))
    if block.error is not None:
        raise PageError(f"line {block.line}: the page announces {block.error}, and nothing was raised")
    return printed.getvalue()


def run(path: Path, *, gpu: bool) -> None:
    """Run every Python block of a page."""
    # A reader's code is the main module, and its globals are that module's.
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    namespace = module.__dict__
    printed = ""
    for block in blocks_of(path.read_text(encoding="utf-8")):
        if "gpu" in block.marks and not gpu:
            continue
        if block.language == "python":
            printed = execute(block, str(path), namespace)
        elif "check" in block.marks:
            check(block, printed)


def main() -> str | None:
    """Run the page named on the command line; returns what was wrong with it."""
    import torch

    path = Path(sys.argv[1])
    try:
        run(path, gpu=torch.cuda.is_available())
    except PageError as error:
        return f"{path}: {error}"
    return None


if __name__ == "__main__":
    sys.exit(main())
