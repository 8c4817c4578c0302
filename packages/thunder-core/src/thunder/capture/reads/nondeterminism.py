# SPDX-License-Identifier: Apache-2.0
"""Sources of nondeterminism, and reads that no guard can check: clocks, random states, files, and `globals()`."""

from __future__ import annotations

import random
import sys
import types
from typing import Any

from thunder.capture.base.predicates import module_of
from thunder.capture.reads.bytecode import attribute_names, imported_modules

__all__ = ["READERS", "draws_or_reads_clock", "imported_nondeterminism", "nondeterminism_of", "of_today"]

# Built-in functions that read values without a source.
READERS = {
    "globals": "the program reads globals()", "dir": "the program lists attributes with dir()",
    "open": "the program opens a file", "input": "the program calls input()",
    "__import__": "the program imports a module by a computed name",
}  # fmt: skip

_CLOCKS = {
    "time", "monotonic", "perf_counter", "process_time", "time_ns", "monotonic_ns", "perf_counter_ns", "thread_time",
}  # fmt: skip
_DIFFERENT_EACH_TIME = {
    "urandom": ("os",), "getrandom": ("os",), "uuid1": ("uuid",), "uuid4": ("uuid",), "token_bytes": ("secrets",),
    "token_hex": ("secrets",), "randbelow": ("secrets",), "choice": ("secrets",),
}  # fmt: skip
_MODULES = ("time", "random", "os", "uuid", "secrets", "numpy", "datetime", "importlib")
_OF_TODAY = ("now", "today", "utcnow")


def draws_or_reads_clock(fn: types.BuiltinFunctionType) -> bool:
    """Check whether a C function draws from a random state that it is bound to, or reads a clock."""
    owner = fn.__self__
    if isinstance(owner, random.Random) or module_of(type(owner)).startswith("numpy.random"):
        return True
    return fn.__module__ == "time" and fn.__name__ in _CLOCKS


def imported_nondeterminism(code: types.CodeType) -> str | None:
    """Return why code with imports of its own is nondeterministic, or None if it is deterministic."""
    for name in _MODULES:
        module = sys.modules.get(name) if name in imported_modules(code) else None
        if module is None:
            continue
        for used in attribute_names(code):
            reason = of_today(name, used) or nondeterminism_of(module, used, getattr(module, used, None))
            if reason is not None:
                return reason
    return None


def of_today(owner: str, name: str) -> str | None:
    """Return why an attribute of a `datetime` class is nondeterministic, or None if it is deterministic."""
    return f"the program reads a clock ({owner}.{name})" if owner == "datetime" and name in _OF_TODAY else None


def nondeterminism_of(module: types.ModuleType, name: str, value: Any) -> str | None:
    """Return why `module.name` is nondeterministic, or None if it is deterministic."""
    owner = module.__name__
    if owner in _DIFFERENT_EACH_TIME.get(name, ()):
        return f"the program calls a nondeterministic function ({owner}.{name})"
    if owner == "importlib" and name == "import_module":
        return "the program imports a module by a computed name (importlib.import_module)"
    if owner == "random" and isinstance(getattr(value, "__self__", value), random.Random):
        return f"the program draws from Python's random state (random.{name})"
    if owner == "numpy" and name == "random":
        return "the program draws from NumPy's random state"
    if owner == "time" and name in _CLOCKS:
        return f"the program reads a clock (time.{name})"
    return None
