# SPDX-License-Identifier: Apache-2.0
"""Features and wrappers that thunder is known to get wrong, by cause. What is mended is taken out.

CI's random programs leave these out, so a new failure is news; `nox -s soak` judges them unless `--new` is given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from soak.feature import Feature

KNOWN_WRONG: dict[str, tuple[str, ...]] = {
    "whether two objects are the same is not guarded": (
        "identity of two objects", "identity of two attributes", "identity of two lists", "identity of items",
        "identity with id", "membership by identity", "identity of parameters", "index by identity in a dict",
    ),
    "values of subclasses of numbers and text are not guarded": (
        "int subclass", "int subclass in an attribute", "float subclass", "str subclass", "int subclass with state",
    ),
    "modules of Python are guarded in the literal chain only": (
        "attribute of a module", "attribute of a module by another name", "attribute of a module by getattr",
        "attribute of a module with a default", "dict of a module", "hasattr of a module", "module in a list",
        "module in an attribute", "vars of a module", "module in sys.modules", "import inside", "absent module",
        "spec of a module", "dict in a module",
    ),
    "absence is not guarded": ("absent variable", "absent builtin"),
    "classes are not guarded by all ways that read them": (
        "vars of a class", "dict of a class", "get from the dict of a class", "members of a class",
        "members of an object", "subclasses of a class", "name of the class", "metaclass __getattr__",
        "metaclass attribute", "truth of an object", "callable of an instance", "named tuple", "enum member",
        "abstract class registered", "subclass of an abstract class", "sequence registered",
    ),
    "state behind custom descriptors is not guarded, and their writes are lost": (
        "custom descriptor", "custom data descriptor", "descriptor that counts",
        "descriptor that keeps state in a weak dictionary",
    ),
    "what a function has besides code and defaults is not guarded": (
        "annotations of a function", "name of a function", "signature of a function", "default in a signature",
        "information of an lru_cache", "keyword-only default",
    ),
    "containers": (
        "UserList", "factory of a default dict", "list subclass with __iter__", "maximal length of a deque",
        "ordered dict",
    ),
    "state of the standard library's objects is trusted": (
        "attribute of a logger", "effective level of a logger", "handlers of a logger", "level of a logger",
        "logger.handle", "lock", "lock acquired", "name of the current thread", "number of threads",
        "default of a context variable", "decimal context", "precision of decimals", "shallow copy", "deep copy",
        "pickled object",
    ),
    "state of the process is trusted": (
        "absolute path", "working directory", "working directory by pathlib", "file exists", "size of a file",
        "metadata of a file", "time of a file", "path exists", "text of a path", "recursion limit", "reference count",
        "garbage collector",
    ),
    "output is not repeated": (
        "message of a logger", "message of a logger by name", "printing", "printing a tensor's sum",
    ),
    "a trace that is given up has drawn, taken and written": (
        "queue", "priority queue", "last in, first out", "counting iterator", "iterator", "cycle", "generator",
        "random number", "random integer", "random choice", "random generator", "shuffled list", "seeding inside",
        "numpy's random number", "numpy's generator", "torch's random number", "torch's random number as a number",
        "seeding torch inside", "torch's generator", "seeding a generator inside", "forked random state", "dropout",
        "number of torch's threads", "file handle", "bytes buffer",
    ),
    "handles are seen as handles": (
        "type of the input", "type of an item of a tensor", "has_torch_function", "type of a tensor",
        "class of a tensor", "dispatch by type",
    ),
    "builtins are replaced while tracing": ("match statement",),
    "-0.0 is taken for 0.0": (
        "negative zero", "negative zero as text", "negative zero in an attribute",
    ),
    "objects with slots": ("dataclass with slots",),
    "facts of tensors": (
        "negative bit", "conjugate bit", "offset of a tensor", "version of a tensor", "storage of a tensor",
        "address of a tensor",
        "view of a tensor",
    ),
    "torch's state is read or written unseen": (
        "torch's seed", "seed of a generator", "state of a generator restored", "default dtype asked for",
        "deterministic algorithms", "matmul precision", "saved tensors hooks inside", "random sampler",
    ),
}  # fmt: skip
KNOWN_WRONG_WRAPPERS = ("thread", "executor", "class body")
# What a program wrote before it raised is undone.
KNOWN_WRONG_KINDS = ("state after an exception",)
# Numbers that a program writes back are lost where they equal what was traced.
KNOWN_WRONG_WRITES = (
    "attribute of an object", "integer attribute", "variable", "integer variable", "identity with None",
    "class attribute", "item of a list", "item of a dict", "slots", "dataclass",
)  # fmt: skip


def known_names() -> set[str]:
    """Return the names of the features that are known to be wrong."""
    return {name for names in KNOWN_WRONG.values() for name in names}


def without_known(features: Iterable[Feature]) -> list[Feature]:
    """Return the other features, without the writes that are known to be lost."""
    known = known_names()
    others = [f for f in features if f.name not in known]
    return [dataclasses.replace(f, write=()) if f.name in KNOWN_WRONG_WRITES else f for f in others]
