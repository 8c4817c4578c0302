# SPDX-License-Identifier: Apache-2.0
"""Messages of guards that fail: the name of the value that was read, its value while tracing, and its value now.

The name and the old value are known when the prologue is generated. The guard's line looks up the new value.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import NamedTuple

from thunder.capture.base.sources import Root, Scope, Source

__all__ = ["Message", "name_of"]


class Message(NamedTuple):
    """Texts and Python expressions in turn. In expressions, `{0}` is the guarded value and `{1}` the expected value."""

    text: str
    found: str = ""
    text_after: str = ""
    found_after: str = ""
    end: str = ""

    def code(self, names: Sequence[str]) -> str:
        """Return Python code for the exception's arguments."""
        parts = [repr(part) if i % 2 == 0 else part.format(*names) for i, part in enumerate(self) if part]
        return ", ".join(parts)


def name_of(source: Source) -> str:
    """Return the name of a source in messages. For the traced callable this is its own name."""
    if isinstance(source, Root):
        if isinstance(source.value, types.ModuleType):
            return f"the module {source.value.__name__}"
        return str(source) or f"a {type(source.value).__name__}"
    if isinstance(source, Scope):
        return f"the module {source.title}"
    return str(source) or "an object"
