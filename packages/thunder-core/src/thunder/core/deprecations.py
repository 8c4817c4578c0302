# SPDX-License-Identifier: Apache-2.0
"""Public names that were renamed or removed, and still work for one more minor version. This module is a leaf.

A deprecation is one entry of `NAMES`, and for anything other than a name of a public module one call of `warn`. A test
checks that each has a line in the changelog, and that none is kept longer than docs/plugins.md says.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["NAMES", "Deprecation", "old_names", "removal", "warn"]


class Deprecation(NamedTuple):
    """What replaces a name: `new` is the path of another name. `since` is the version that deprecated it."""

    new: str
    since: str


#: The deprecated names of public modules, e.g. `"thunder.extend.old": Deprecation("thunder.extend.new", since="0.2")`.
NAMES: dict[str, Deprecation] = {}


def removal(since: str) -> str:
    """Return the first version that may remove what a version deprecated: two minor versions later."""
    found = re.match(r"(\d+)\.(\d+)", since)
    if found is None:
        raise ValueError(f"{since!r} is no version")
    return f"{found[1]}.{int(found[2]) + 2}"


def warn(old: str, new: str, since: str, stacklevel: int = 2) -> None:
    """Warn about the use of something deprecated. `stacklevel=2` is the caller of the function that warns."""
    message = f"{old} is deprecated since thunder-core {since}, and {removal(since)} may remove it: use {new}"
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel + 1)


def old_names(module: str, stacklevel: int = 2) -> Callable[[str], Any]:
    """Return the `__getattr__` of a public module, which finds its deprecated names and warns about each use.

    `stacklevel=2` is the caller of this function.
    """

    def find(name: str) -> Any:
        deprecation = NAMES.get(f"{module}.{name}")
        if deprecation is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn(f"{module}.{name}", deprecation.new, deprecation.since, stacklevel)
        home, _, new = deprecation.new.rpartition(".")
        # By name at run time, because the module of the new name may import this one.
        return getattr(importlib.import_module(home), new)

    return find
