# SPDX-License-Identifier: Apache-2.0
"""Modules of generated kernels, imported from their source."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
from types import FunctionType, ModuleType

from thunder_ex_triton.disk_cache import kept

__all__ = ["load", "source_of"]

_SOURCE = "__thunder_source__"


@functools.lru_cache(maxsize=4096)
def load(text: str) -> ModuleType:
    """Import the source as a module, from a file whose name is a hash of its contents."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:24]
    path = kept(f"fused_{digest}.py", lambda: text)
    spec = importlib.util.spec_from_file_location(f"thunder_triton_{digest}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    setattr(module, _SOURCE, text)
    spec.loader.exec_module(module)
    return module


def source_of(function: FunctionType) -> str:
    """Return the source of the module of a generated kernel."""
    text: str = function.__globals__[_SOURCE]
    return text
