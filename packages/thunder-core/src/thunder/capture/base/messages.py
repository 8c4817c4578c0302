# SPDX-License-Identifier: Apache-2.0
"""What guards say when they refuse a call: what was read, what it was, and what it is now.

The first two are known when a prologue is written; the third is looked up by the line that refuses.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import NamedTuple

from thunder.capture.base.sources import Root, Scope, Source

__all__ = ["Message", "name_of"]


class Message(NamedTuple):
    """Texts, and the expressions of what follows each: `{0}` is what the guard looks at, `{1}` what it was."""

    text: str
    found: str = ""
    text_after: str = ""
    found_after: str = ""
    end: str = ""

    def code(self, names: Sequence[str]) -> str:
        """Return the arguments of the exception, as Python."""
        parts = [repr(part) if i % 2 == 0 else part.format(*names) for i, part in enumerate(self) if part]
        return ", ".join(parts)


def name_of(source: Source) -> str:
    """Return what a message calls a source: the callable itself has no name but its own."""
    if isinstance(source, Root):
        if isinstance(source.value, types.ModuleType):
            return f"the module {source.value.__name__}"
        return str(source) or f"a {type(source.value).__name__}"
    if isinstance(source, Scope):
        return f"the module {source.title}"
    return str(source) or "an object"
