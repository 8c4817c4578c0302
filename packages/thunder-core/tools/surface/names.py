# SPDX-License-Identifier: Apache-2.0
"""torch's public surface: every public name that a program may call on tensors, as an `Entry`.

The names come from torch itself: its namespaces, tensor methods and properties, and its list of overridable functions.
This module omits nothing. `reasons.py` excludes names that are not tensor operations, with a reason.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.overrides

__all__ = ["NAMESPACES", "Entry", "entries", "entry_of"]

NAMESPACES: dict[str, Any] = {
    "torch": torch,
    "torch.nn.functional": torch.nn.functional,
    "torch.linalg": torch.linalg,
    "torch.fft": torch.fft,
    "torch.special": torch.special,
    "torch.Tensor": torch.Tensor,
}

# Python's own attributes of classes and modules, unrelated to tensors.
_OF_PYTHON = frozenset(
    (
        *dir(object),
        "__annotations__",
        "__dict__",
        "__module__",
        "__weakref__",
        "__firstlineno__",
        "__static_attributes__",
    )
)
# Attributes of `object` that tensors override.
_OVERRIDDEN = frozenset({"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__dir__",
                         "__format__", "__repr__", "__reduce_ex__", "__setstate__"})  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One public name, e.g. `torch.linalg.det`, `torch.Tensor.add_` or `torch.Tensor.T`."""

    namespace: str
    name: str

    @property
    def path(self) -> str:
        """The qualified name."""
        return f"{self.namespace}.{self.name}"

    @functools.cached_property
    def target(self) -> Any:
        """The object of torch with that name."""
        return getattr(NAMESPACES[self.namespace], self.name)

    @property
    def is_property(self) -> bool:
        """Whether it is a property rather than a function."""
        return self.namespace == "torch.Tensor" and not callable(self.target)

    @property
    def is_in_place(self) -> bool:
        """Whether it writes to its first argument, judging by its name."""
        plain = self.name.endswith("_") and not self.name.endswith("__")
        return plain or self.name in _AUGMENTED or self.name == "__setitem__"

    @property
    def call(self) -> Callable[..., Any]:
        """A function of the entry's arguments. For a method or property, the tensor is the first argument."""
        if self.namespace != "torch.Tensor":
            return self.target  # type: ignore[no-any-return]
        name = self.name
        if self.is_property:
            return lambda x: getattr(x, name)
        if name in _AS_STATEMENT:
            return _AS_STATEMENT[name]
        return lambda x, *args, **kwargs: getattr(x, name)(*args, **kwargs)


# Methods of Python's protocols, in the form that programs call them.
_AS_STATEMENT: dict[str, Callable[..., Any]] = {
    "__deepcopy__": copy.deepcopy,
    "__hash__": lambda x: hash(x) == hash(x),
    "__iter__": list,
}
_AUGMENTED = frozenset(f"__i{op}__" for op in ("add", "sub", "mul", "truediv", "div", "floordiv", "mod", "pow", "and",
                                               "or", "xor", "lshift", "rshift"))  # fmt: skip


def _is_public(namespace: str, name: str) -> bool:
    if namespace == "torch.Tensor":
        if name.startswith("__"):
            return name not in _OF_PYTHON or name in _OVERRIDDEN
        return not name.startswith("_")
    return not name.startswith("_")


def _is_callable_of_torch(value: Any) -> bool:
    """Check whether a value is a function.

    Classes (dtypes, layouts, types of tensors) and modules are not functions.
    """
    return callable(value) and not isinstance(value, (type, types.ModuleType))


def entries() -> list[Entry]:
    """Return every public name, by namespace and then by name."""
    found = []
    for namespace, owner in NAMESPACES.items():
        for name in sorted(dir(owner)):
            if not _is_public(namespace, name):
                continue
            if namespace == "torch.Tensor" or _is_callable_of_torch(getattr(owner, name)):
                found.append(Entry(namespace, name))
    return found


def entry_of(path: str) -> Entry:
    """Return the entry of a qualified name."""
    namespace, _, name = path.rpartition(".")
    return Entry(namespace, name)


def overridable() -> set[str]:
    """Return the public names in torch's list of overridable functions, to check that `entries` contains them."""
    found = set()
    for functions in torch.overrides.get_overridable_functions().values():
        for fn in functions:
            name = torch.overrides.resolve_name(fn)
            if name is not None:
                found.add(name.removesuffix(".__get__"))
    return found
