# SPDX-License-Identifier: Apache-2.0
"""The bytecode of saved programs, which saves their compilation.

No check of bytecode is as strict as that of a text. It is therefore taken only from files that are signed with the
user's own key, which no other user knows: such a file contains what a process of this user has compiled.
"""

from __future__ import annotations

import base64
import marshal
import types
from typing import Any

__all__ = ["dump_code", "load_code"]


def dump_code(function: Any, printed: str) -> dict[str, Any] | None:
    """Describe the bytecode of a function that was compiled from `printed`, or return None if there is none.

    Saved texts contain no lines of comments, which the bytecode counts.
    """
    code = getattr(getattr(function, "__wrapped__", function), "__code__", None)
    if not isinstance(code, types.CodeType) or code.co_freevars:
        return None
    lines = enumerate(printed[printed.index("def ") :].split("\n"))
    comments = [i for i, line in lines if "#" in line and line.lstrip().startswith("#")]
    data = marshal.dumps(code.replace(co_filename="", co_firstlineno=1))
    return {"bytes": base64.b64encode(data).decode(), "comments": comments}


def load_code(content: dict[str, Any], text: str, filename: str) -> tuple[types.CodeType, list[str]]:
    """Return bytecode that `dump_code` has described, and the lines of its program."""
    found = marshal.loads(base64.b64decode(content["bytes"]))
    if not isinstance(found, types.CodeType):
        raise TypeError("no bytecode")
    comments, lines = {*content["comments"]}, iter(text.splitlines(keepends=True))
    count = text.count("\n") + 1 + len(comments)
    return found.replace(co_filename=filename), ["\n" if i in comments else next(lines) for i in range(count)]
