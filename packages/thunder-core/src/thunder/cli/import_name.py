# SPDX-License-Identifier: Apache-2.0
"""Detect other distributions that install a module called `thunder`.

Other distributions use this import name too. If one of them is installed together with thunder-core, the two overwrite
each other's files, and uninstalling either removes files of both. Installers do not detect this, but `python -m thunder
doctor` does.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata

from thunder.plugins.discovery import CORE_DISTRIBUTION
from thunder.plugins.version import normalize_name

__all__ = ["other_owners"]

IMPORT_NAME = "thunder"


def other_owners(distributions: Iterable[metadata.Distribution] | None = None) -> list[str]:
    """Return the distributions, with versions, that install the module `thunder` and are not thunder-core."""
    owners = set()
    for distribution in metadata.distributions() if distributions is None else distributions:
        try:
            name, version = distribution.metadata["Name"], distribution.version
            if name and normalize_name(name) != CORE_DISTRIBUTION and _installs(distribution, IMPORT_NAME):
                owners.add(f"{name} {version}")
        except Exception:  # unreadable metadata does not identify the owner
            continue
    return sorted(owners)


def _installs(distribution: metadata.Distribution, module: str) -> bool:
    # The texts are searched, not parsed: the file list of a large library has tens of thousands of lines.
    if module in (distribution.read_text("top_level.txt") or "").split():
        return True
    files = "\n" + (distribution.read_text("RECORD") or distribution.read_text("SOURCES.txt") or "")
    return f"\n{module}/" in files or f"\n{module}.py" in files
