# SPDX-License-Identifier: Apache-2.0
"""Which code belongs to a library, whose own functions, classes and globals are assumed to be constant.

Functions of other files are part of the program: everything that they read is guarded. For functions of the folders
listed here, the guards check only that they are the same functions.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import sysconfig
from typing import Any

import torch

from thunder.capture.base.predicates import module_of
from thunder.core.locations import OWN_FOLDER

__all__ = ["TRUSTED", "is_library", "is_library_class", "is_library_scope", "is_trusted"]


def _folder(path: str | None) -> str:
    return os.path.dirname(os.path.abspath(path or "")) + os.sep


_SITE = ("site-packages", "dist-packages")
# The folders of the standard library, whose functions compute from their arguments. What reads a clock, a random state
# or a file calls a C function that `c_functions.py` does not list.
_STANDARD = tuple({_folder(contextlib.__file__), sysconfig.get_path("stdlib") + os.sep})


def _file(name: str) -> str:
    """Return the file of an installed module without importing it. It may be in any folder of `sys.path`."""
    spec = importlib.util.find_spec(name)
    return spec.origin if spec is not None and spec.origin else sysconfig.get_path("purelib") + f"/{name}/"


def _package_folder(name: str) -> str:
    return _folder(_file(name))


_NUMPY = _package_folder("numpy")
_RANDOM = os.path.join(_NUMPY, "random", "")
# Other trusted folders, each with the reason.
_TRUSTED: dict[str, str] = {
    _folder(torch.__file__): "every prologue guards torch's settings, or guards them where they are read (modes)",
    OWN_FOLDER: "thunder does the tracing; its own reads are not reads of the program",
    _NUMPY: "computes from its arguments; methods of its random states, written in C, are denied",
    _file("typing_extensions"): "the standard library's module `typing`, for other versions of Python",
    _package_folder("optree"): "flattens containers, whose items are guarded where they are read",
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


def is_imported_freely(filename: str) -> bool:
    """Check whether a traced program may import a file for the first time: no object that it creates has a state.

    It is a file of a library. `numpy.random`, which NumPy imports at its first use, creates a random state.
    """
    return is_library(filename) and not filename.startswith(_RANDOM)


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


# Library classes, modules or packages whose instances are trusted, each with the reason. A guard checks only that an
# instance is the same object. Delete an entry when its classes are guarded in another way.
TRUSTED: dict[str, str] = {
    # Immutable.
    "torch.distributed.tensor.placement_types": "a placement does not change",
    "torch.utils._pytree": "the structure of a container does not change",
    "torch.utils._cxx_pytree": "the structure of a container does not change",
    # Objects whose state does not affect results.
    "contextlib.nullcontext": "it has no state at all",
    "functools.singledispatchmethod": "dispatches calls; the functions in it are read",
    "functools.partialmethod": "a function with arguments, which are read",
    "functools.partial": "a function with arguments, which are read",
    "torch.fx.graph.Graph": "a graph module's description: its generated code, which runs, is guarded as a function",
    "torch.fx.node.Node": "a part of such a graph",
    "torch._ops": "an operator: the tracer sees its calls",
    "torch._library": "a user-defined operator: the tracer sees its calls",
    "torch.library": "a user-defined operator: the tracer sees its calls",
    "torch._higher_order_ops": "a higher-order operator: the tracer sees its calls",
    # Settings of torch, whose effects the tracer sees.
    "torch.autograd.profiler": "a context: it does not change results",
    "torch.backends": "settings: each attribute that the program reads is guarded",
    # A program that calls one of these falls back to Python.
    "torch._dynamo": "a function wrapped by torch.compile, which runs its own Python while it is traced",
    "torch.distributed": "objects that shard parameters: a program that runs them falls back to Python",
    "torch.jit": "compiled by TorchScript: a program that calls it falls back to Python",
    # Accepted, although the program reads state that no guard checks.
    "thunder": "thunder's own objects (e.g. dtypes and devices); objects with state have other kinds",
}


# Modules of trusted packages with objects that a traced program runs, e.g. ZeroRedundancyOptimizer. They are guarded.
_GUARDED = ("torch.distributed.optim", "torch.distributed.algorithms")


def is_trusted(cls: type) -> bool:
    """Check whether a library class is listed, or its module, or a package of its module."""
    if not is_library_class(cls) or module_of(cls).startswith(_GUARDED):
        return False
    parts = f"{module_of(cls)}.{cls.__qualname__}".split(".")
    return any(".".join(parts[:n]) in TRUSTED for n in range(1, len(parts) + 1))
