# SPDX-License-Identifier: Apache-2.0
"""The key under which the programs of a callable are saved, and the text of a call that finds likely programs first.

The key is a hash of the callable's code, of the versions of what compiles and runs it, and of the options. It is the
first step of a lookup. In the second step, each program of the key compares the digests of all objects that it refers
to (`constants.py`), and its prologue then decides as it does for a cached program.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from thunder.runtime.torch_private import autocast_devices
from thunder.saved.digests import class_digest, code_digest

__all__ = ["call_text", "environment", "is_importable", "key_of", "plugin_packages", "sources_of"]

#: The version of the format. Entries of other versions are never found.
FORMAT = 1
# Variables that change how programs are compiled.
_VARIABLES = ("THUNDER_EXECUTORS", "THUNDER_DISABLE_PLUGINS")
_PLUGINS = "[thunder.executors.v1]"
_BY_VALUE = (bool, int, float, str, type(None))


def key_of(fn: Any, options: Mapping[str, Any]) -> str:
    """Return the key of a callable that is compiled with these options."""
    return _hash([FORMAT, describe_callable(fn), environment(), devices(), options])


def _hash(x: Any) -> str:
    return hashlib.sha256(json.dumps(x, sort_keys=True, default=str).encode()).hexdigest()[:40]


# -- the callable -----------------------------------------------------------------------------------------------------
def describe_callable(fn: Any) -> Any:
    """Return what identifies a callable in another process: its names, its code, and the modules in a module."""
    if isinstance(fn, types.FunctionType):
        return ["function", fn.__module__, fn.__qualname__, code_digest(fn.__code__)]
    if isinstance(fn, types.MethodType):
        return ["method", describe_callable(fn.__func__), describe_callable(fn.__self__)]
    if isinstance(fn, functools.partial):
        return ["partial", describe_callable(fn.func), len(fn.args), sorted(fn.keywords)]
    if isinstance(fn, torch.nn.Module):
        classes: dict[type, str] = {}
        return ["module", [[name, _class(type(m), classes), m.training] for name, m in fn.named_modules()]]
    return ["object", _class(fn if isinstance(fn, type) else type(fn), {}), isinstance(fn, type)]


def _class(cls: type, known: dict[type, str]) -> str:
    found = known.get(cls)
    if found is None:
        found = known[cls] = f"{cls.__module__}.{cls.__qualname__} {class_digest(cls)}"
    return found


# -- versions ---------------------------------------------------------------------------------------------------------
@functools.cache
def _environment(variables: tuple[str, ...], path: tuple[str, ...]) -> list[Any]:
    packages, plugins = _installed(path)
    return [
        sys.version, sys.implementation.cache_tag, sys.platform, sys.flags.optimize, torch.__version__,
        torch.version.git_version, torch.backends.cpu.get_cpu_capability(), torch.cuda.is_available(), variables,
        packages, [[name, sources_of(name)] for name in ("thunder", *plugins)],
    ]  # fmt: skip


def environment() -> list[Any]:
    """Return the versions of Python, torch, thunder and its plugins, and the variables that change compilations."""
    return _environment(tuple(os.environ.get(name, "") for name in _VARIABLES), tuple(sys.path))


def devices() -> list[Any]:
    """Return the names and capabilities of the GPUs, if the process uses them."""
    if not torch.cuda.is_initialized():
        return []
    return [
        torch.version.cuda,
        [
            [torch.cuda.get_device_name(i), *torch.cuda.get_device_capability(i)]
            for i in range(torch.cuda.device_count())
        ],
    ]


def _installed(path: Sequence[str]) -> tuple[str, list[str]]:
    """Return a hash of the names and versions of all installed packages, and the packages of plugins.

    This reads the folders directly, because importing `importlib.metadata` takes longer than reading a program.
    """
    names, found = set(), set()
    for folder in path:
        try:
            entries = [x.name for x in os.scandir(folder or ".") if x.name.endswith((".dist-info", ".egg-info"))]
        except OSError:
            continue
        names.update(entries)
        for name in entries:
            try:
                with open(os.path.join(folder, name, "entry_points.txt"), encoding="utf-8", errors="replace") as file:
                    text = file.read()
            except OSError:
                continue
            _, group, rest = text.partition(_PLUGINS)
            for line in rest.partition("\n[")[0].splitlines() if group else ():
                found.add(line.partition("=")[2].strip().partition(":")[0].partition(".")[0])
    return _hash(sorted(names)), sorted(found - {""})


@functools.cache
def plugin_packages() -> frozenset[str]:
    """Return the packages of the installed plugins."""
    return frozenset(_installed(tuple(sys.path))[1])


def sources_of(package: str) -> str:
    """Return a text that changes with the sources of a package: the hash of its files' names, sizes and times."""
    spec = importlib.util.find_spec(package)
    found = hashlib.sha256()
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        for path, size, changed in sorted(_files(folder)):
            found.update(f"{path} {size} {changed}\n".encode())
    return found.hexdigest()[:40]


def _files(folder: str) -> Iterable[tuple[str, int, int]]:
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            if entry.name != "__pycache__":
                for path, size, changed in _files(entry.path):
                    yield f"{entry.name}/{path}", size, changed
        elif not entry.name.endswith((".pyc", ".pyo")):
            state = entry.stat()
            yield entry.name, state.st_size, state.st_mtime_ns


def is_importable(name: str) -> bool:
    """Check whether a module that is not loaded can be found, without importing the packages that contain it."""
    package = name.rpartition(".")[0]
    if package and package not in sys.modules:
        return is_importable(package)
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False


# -- calls ------------------------------------------------------------------------------------------------------------
def call_text(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the metadata of a call's arguments and the modes around it, by which most other programs are left out."""
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), str(torch.get_default_dtype())
    casts = [str(torch.get_autocast_dtype(d)) for d in autocast_devices() if torch.is_autocast_enabled(d)]
    return _hash([modes, casts, [_argument(x) for x in args], [[k, _argument(x)] for k, x in kwargs.items()]])


def _argument(x: Any, depth: int = 4) -> Any:
    if isinstance(x, torch.Tensor) and type(x) in (torch.Tensor, torch.nn.Parameter):
        return [list(x.shape), list(x.stride()), str(x.dtype), str(x.device), x.requires_grad]
    if type(x) in _BY_VALUE:
        return [type(x).__name__, repr(x)]
    if type(x) in (tuple, list) and depth:
        return [type(x).__name__, [_argument(i, depth - 1) for i in x]]
    if type(x) is dict and depth:
        return ["dict", [[str(k), _argument(v, depth - 1)] for k, v in x.items()]]
    return f"{type(x).__module__}.{type(x).__qualname__}"
