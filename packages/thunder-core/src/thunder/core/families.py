# SPDX-License-Identifier: Apache-2.0
"""Discovery of families of operations: imports each module in the package of a language, e.g. `thunder.torch`.

The import statements in the package's `__init__` are only for readers and static tools.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys

__all__ = ["families", "import_families"]


def import_families(package: str) -> None:
    """Import every module of a package that is being imported, so that all its operations are declared."""
    for module in families(package):
        importlib.import_module(module)  # includes the families that no `__init__` imports


def families(package: str) -> list[str]:
    """Return the names of the modules of a package."""
    return [module.name for module in pkgutil.iter_modules(sys.modules[package].__path__, f"{package}.")]
