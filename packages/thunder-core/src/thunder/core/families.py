# SPDX-License-Identifier: Apache-2.0
"""Families of operations are found, not listed: a file in the folder of a language is a part of it.

What a package lists in its `__init__` is there for readers and for tools that do not run the code.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys

__all__ = ["import_families"]


def import_families(package: str) -> None:
    """Import every module of a package that is being imported, so that all its operations are declared."""
    for module in pkgutil.iter_modules(sys.modules[package].__path__, f"{package}."):
        importlib.import_module(module.name)  # a family that nobody lists is found all the same
