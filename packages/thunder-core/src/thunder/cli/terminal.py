# SPDX-License-Identifier: Apache-2.0
"""Colors for programs on a terminal. Other outputs, e.g. files and pipes, and `NO_COLOR` have none."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

__all__ = ["has_colors", "highlighted", "painted"]

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35"}
_KEYWORD = re.compile(r"^(\s*)(def|return|del|import|from|if|raise)\b")


def has_colors(stream: Any = None) -> bool:
    """Check whether a stream (the default: stdout) is a terminal that shows colors."""
    stream = sys.stdout if stream is None else stream
    try:
        terminal = bool(stream.isatty())
    except Exception:  # a closed stream, or an object that only has `write`
        return False
    return terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str, *styles: str, stream: Any = None) -> str:
    """Return text with colors, if the stream shows them."""
    if not text or not has_colors(stream):
        return text
    return f"\x1b[{';'.join(_STYLES[style] for style in styles)}m{text}\x1b[0m"


def highlighted(program: str) -> str:
    """Return the text of a trace with colors, if stdout shows them: keywords, decorators and comments."""
    return "\n".join(map(_line, program.splitlines())) if has_colors() else program


def _line(line: str) -> str:
    code, mark, comment = line.partition("#")
    if (mark and "'" in code) or '"' in code:
        code, comment = line, ""  # the mark may be part of a string
        mark = ""
    code = _KEYWORD.sub(lambda m: m[1] + painted(m[2], "magenta"), code)
    if code.startswith("@"):
        code = painted(code, "yellow")
    return code + painted(mark + comment, "dim")
