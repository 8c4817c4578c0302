# SPDX-License-Identifier: Apache-2.0
"""Features that thunder gets wrong or does not cache, by cause. What is mended is taken out.

CI's random programs leave out what is wrong, so a new failure is news; `nox -s soak` judges it unless `--new` is given.
Programs without what is not cached are *ordinary*: at least 95 % of their calls that are repeated unchanged hit.
"""

from __future__ import annotations

from collections.abc import Iterable

from soak.feature import Feature
from soak.program import Program

KNOWN_WRONG: dict[str, tuple[str, ...]] = {}

NOT_CACHED: dict[str, tuple[str, ...]] = {
    "names are listed or computed": (
        "dir of a class", "dir of a module", "dir of an object", "members of a class", "members of an object",
        "subclasses of a class", "variable by globals()", "variable in globals()", "variable by eval",
        "vars of a module", "dict of a module", "module by import_module", "module by sys.modules",
        "own module by name", "spec of a module",
    ),
    "files and the file system": (
        "file exists", "size of a file", "metadata of a file", "time of a file", "path exists", "text of a path",
        "contents of a file", "list of a folder", "absolute path", "source of a function",
    ),
    "state of objects written in C": (
        "thread local", "thread local absent", "thread local subclass", "array", "bytearray", "memoryview",
        "mapping proxy", "length of a mapping proxy", "view of a dict", "weak proxy", "weak set",
        "weak value dictionary", "descriptor that keeps state in a weak dictionary", "simple queue",
        "exception object", "incremental hash", "text buffer", "lock", "lock acquired", "reference count",
        "garbage collector", "information of an lru_cache", "precision of decimals", "local decimal context",
        "pickled object", "pickled list",
    ),
    "arrays of NumPy": ("numpy array", "numpy shape", "numpy function", "tensor from numpy"),
    "containers with objects as keys": (
        "dict with keys of objects", "dict keyed by a tensor", "missing key of a default dict",
        "state of an optimizer", "buffer of an optimizer",
    ),
    "iterators from outside are consumed": ("iterator", "cycle", "generator that reads state"),
    "random states that the program reads or sets": (
        "seeding inside", "seeding torch inside", "seeding a generator inside", "seed of a generator", "torch's seed",
        "state of a generator restored", "forked random state", "number of torch's threads",
        "matmul precision", "deterministic algorithms", "default dtype asked for",
    ),
    "gradients, graphs and memory, which exist only in eager mode": (
        "gradient of a tensor", "missing gradient", "gradient function", "clipped gradients", "clipped values",
        "zero_grad", "address of a tensor", "storage of a tensor", "saved tensors hooks inside", "batches of a loader",
        "tensor subclass", "layout of a tensor",
    ),
    "metaclasses with calls of their own": ("metaclass __call__", "metaclass __instancecheck__"),
    "texts of tensors, and streams that are compared": (
        "length of a tensor's text", "length of the input's text", "stream of a handler",
    ),
    "the logger is not found": ("message of a logger by name",),
}  # fmt: skip
# Programs that start threads run eagerly from that line on.
NOT_CACHED_WRAPPERS = ("thread", "executor")


def known_names() -> set[str]:
    """Return the names of the features that are known to be wrong."""
    return {name for names in KNOWN_WRONG.values() for name in names}


def without_known(features: Iterable[Feature]) -> list[Feature]:
    """Return the other features."""
    known = known_names()
    return [f for f in features if f.name not in known]


def is_ordinary(program: Program) -> bool:
    """Check whether calls of a program that are repeated unchanged should hit."""
    not_cached = {name for names in NOT_CACHED.values() for name in names}
    return not any(use.feature.name in not_cached or use.wrapper in NOT_CACHED_WRAPPERS for use in program.uses)
