# SPDX-License-Identifier: Apache-2.0
"""Where code belongs: thunder's own files, by folder, and the names by which modules refer to functions."""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = ["OWN_FOLDER", "is_ours", "name_in_module"]

OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


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
