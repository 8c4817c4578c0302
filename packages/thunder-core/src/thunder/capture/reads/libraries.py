# SPDX-License-Identifier: Apache-2.0
"""Which code belongs to a library, whose own functions, classes and globals are assumed to be constant.

Functions of other files are part of the program: everything that they read is guarded. For functions of the folders
listed here, the guards check only that they are the same functions.
"""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
from typing import Any

import torch

from thunder.capture.base.predicates import module_of
from thunder.core.locations import OWN_FOLDER

__all__ = ["is_library", "is_library_class", "is_library_scope"]


def _folder(path: str | None) -> str:
    return os.path.dirname(os.path.abspath(path or "")) + os.sep


_SITE = ("site-packages", "dist-packages")
# The folders of the standard library, whose functions compute from their arguments. The exceptions, which read a clock,
# a random state or a file, are listed in `nondeterminism.py`.
_STANDARD = tuple({_folder(contextlib.__file__), sysconfig.get_path("stdlib") + os.sep})
_PURELIB = sysconfig.get_path("purelib") + os.sep
# Other trusted folders, each with the reason.
_TRUSTED: dict[str, str] = {
    _folder(torch.__file__): "every prologue guards torch's settings, or guards them where they are read (modes)",
    OWN_FOLDER: "thunder does the tracing; its own reads are not reads of the program",
    _PURELIB + "numpy" + os.sep: "computes from its arguments; its random state is listed in `nondeterminism.py`",
    _PURELIB + "optree" + os.sep: "flattens containers, whose items are guarded where they are read",
}
_libraries: dict[str, bool] = {}


def is_library(filename: str) -> bool:
    """Check whether a file belongs to a library, whose own globals are assumed to be constant."""
    found = _libraries.get(filename)
    if found is None:
        standard = filename.startswith(_STANDARD) and not any(part in filename for part in _SITE)
        trusted = filename.startswith(tuple(_TRUSTED)) and not filename.startswith(os.path.join(OWN_FOLDER, "tests"))
        generated = filename.startswith(("<frozen", "<thunder.", "<__array_function__"))
        found = _libraries[filename] = standard or trusted or generated
    return found


def is_library_scope(scope: dict[str, Any]) -> bool:
    """Check whether `scope` contains the globals of a library's module."""
    return is_library(str(scope.get("__file__") or "<string>"))


_library_classes: dict[str, bool] = {}


def is_library_class(cls: type) -> bool:
    """Check whether a library defines a class."""
    name = module_of(cls)
    found = _library_classes.get(name)
    if found is None:
        file = getattr(sys.modules.get(name), "__file__", None)
        found = name == "builtins" or (file is not None and is_library(file))
        if name in sys.modules:
            _library_classes[name] = found
    return found
