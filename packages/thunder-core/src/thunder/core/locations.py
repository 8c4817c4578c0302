# SPDX-License-Identifier: Apache-2.0
"""Where code belongs: files of thunder, torch, Python's standard library and the user, and the names of functions."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

__all__ = ["OWN_FOLDER", "is_ours", "is_user_code", "name_in_module"]

OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STANDARD_FOLDER = os.path.dirname(contextlib.__file__) + os.sep
_PACKAGES = os.sep + "site-packages" + os.sep
_WRAPS_FUNCTIONS = _PACKAGES + "typing_extensions.py"  # of torch that are deprecated
_user_code: dict[str, bool] = {}  # answers by the names of files, once torch is imported


def is_ours(filename: str) -> bool:
    """Check whether a file is part of thunder."""
    return filename.startswith(OWN_FOLDER)


def name_in_module(jitted: Any) -> str | None:
    """Return the qualified name by which the module of a jitted function refers to it, or None."""
    found: Any = sys.modules.get(getattr(jitted, "__module__", None) or "")
    name: str = getattr(jitted, "__qualname__", "")
    for part in name.split("."):
        found = getattr(found, part, None)
    return name if found is jitted else None


def is_user_code(filename: str) -> bool:
    """Check whether a file belongs neither to thunder, nor to torch, nor to the standard library."""
    known = _user_code.get(filename)  # tracing asks for each frame of the stack at each operation
    if known is not None:
        return known
    if filename.startswith(("<", OWN_FOLDER)) or filename.endswith(_WRAPS_FUNCTIONS):
        return False
    found = not filename.startswith(_STANDARD_FOLDER) or _PACKAGES in filename
    if "torch" in sys.modules:
        found = found and not filename.startswith(os.path.dirname(sys.modules["torch"].__file__ or "torch") + os.sep)
        _user_code[filename] = found
    return found
