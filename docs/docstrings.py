# SPDX-License-Identifier: Apache-2.0
"""Makes reStructuredText of our docstrings, and short signatures, for the reference; conf.py connects both.

Our docstrings have Markdown's `code`, indented programs, and paragraphs that describe parameters as `name: text`.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from sphinx.pycode import ModuleAnalyzer

# Functions with overloads for type checkers, whose signatures would repeat the same twenty options.
OVERLOADED = {"thunder.api": ("jit",)}


def rst(app: object, what: str, name: str, obj: Any, options: object, lines: list[str]) -> None:
    """Convert a docstring in place. A class without a docstring of its own has none, rather than that of `object`."""
    inherited = inspect.isclass(obj) and obj.__dict__.get("__doc__") is None
    if inherited or (lines and lines[0].startswith("Alias for field number")):
        lines.clear()
    text = "\n\n".join(_described(part, _names_of(obj)) for part in "\n".join(lines).split("\n\n"))
    text = re.sub(r"(?m)^((?! |\.\. ).*[^:\s]:?)\n\n(?=    \S)", r"\1\n\n.. code-block:: python\n\n", text)
    # "\ " ends inline code that a letter follows, as in `Proxy`s.
    text = re.sub(r"(?<![`:\w])`([^`\n]+)`(?![`_])(\w?)", lambda m: f"``{m[1]}``" + (m[2] and f"\\ {m[2]}"), text)
    lines[:] = text.split("\n")


def _names_of(obj: Any) -> set[str]:
    """Return the names of an object's parameters and annotated attributes."""
    try:
        return {*inspect.signature(obj).parameters, *getattr(obj, "__annotations__", ())}
    except (TypeError, ValueError):
        return set()


def _described(paragraph: str, names: set[str]) -> str:
    """Make a list of a paragraph whose lines begin with `name: `; other lines continue an entry."""
    entries: list[str] = []
    for line in paragraph.split("\n"):
        found = re.match(r"(\w+): +(?=\S)", line)
        if found and found[1] in names:
            entries.append(f"- `{found[1]}`: {line[found.end() :]}")
        elif entries:
            entries[-1] += f"\n  {line.strip()}"
        else:
            return paragraph
    return "\n".join(entries)


def signature(
    app: object, what: str, name: str, obj: Any, options: object, text: str | None, result: str | None
) -> Any:
    """Write `...` for defaults that are no expressions, e.g. `<factory>`, so that Sphinx can parse a signature."""
    return text and re.sub(r"=\s*<(?:[^<>]|<[^<>]*>)*>", "=...", text), result


def hide_overloads() -> None:
    """Show the signature of the implementation, where overloads differ in the types of one argument only."""
    for module, names in OVERLOADED.items():
        analyzer = ModuleAnalyzer.for_module(module)
        analyzer.analyze()
        for name in names:
            analyzer.overloads.pop(name, None)
