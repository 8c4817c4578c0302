# SPDX-License-Identifier: Apache-2.0
"""Environment variables with lists of names. (`frontend/environment.py` lists all variables of thunder.)"""

from __future__ import annotations

import os
from collections.abc import Mapping

__all__ = ["CACHE_VARIABLE", "DISABLE_VARIABLE", "EXECUTORS_VARIABLE", "names_in"]

CACHE_VARIABLE = "THUNDER_CACHE_DIR"
DISABLE_VARIABLE = "THUNDER_DISABLE_PLUGINS"
EXECUTORS_VARIABLE = "THUNDER_EXECUTORS"


def names_in(variable: str, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the names in a comma-separated environment variable, in order and without duplicates."""
    value = (os.environ if environ is None else environ).get(variable, "")
    return tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
