# SPDX-License-Identifier: Apache-2.0
"""The classes of torch and the standard library as features: made, held by an object, read, changed, read again.

Attributes and methods that a class inherits from another class of the list are enumerated there.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import re
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

from soak.feature import Feature
from soak.generate import steps_with
from soak.program import PRELUDE, Program, Use
from soak.recipes import ARGUMENTS, CHANGES, NOT_CALLED, NOT_CHANGED, NOT_MADE, RECIPES

MODULES = (
    "torch", "torch.nn", "torch.optim", "torch.optim.lr_scheduler", "torch.utils.data", "collections", "enum",
    "dataclasses", "functools",
    "logging", "threading", "queue", "random", "decimal", "contextvars", "numpy",
)  # fmt: skip
# torch's top level also has the C classes of the TorchScript compiler; of C classes only these are for users.
_TORCH = {
    "Event", "FloatStorage", "FloatTensor", "Future", "Generator", "Size", "Stream", "Tag", "Tensor", "device", "dtype",
    "finfo", "iinfo", "layout", "memory_format", "qscheme",
}  # fmt: skip
_COMPILER = ("torch", "torch._C", "torch.jit")
_PLAIN = (bool, int, float, str, type(None))
_MOST_CHANGES = 2


def public_classes() -> dict[str, type]:
    """Return the classes that public names of the modules reach, each by its first path."""
    found: dict[str, type] = {}
    for module in map(importlib.import_module, MODULES):
        for name in sorted(n for n in getattr(module, "__all__", dir(module)) if not n.startswith("_")):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value = getattr(module, name, None)
            if module.__name__ == "torch" and name not in _TORCH and getattr(value, "__module__", "") in _COMPILER:
                continue
            if isinstance(value, type) and value not in found.values() and value.__module__ != "typing":
                found[f"{module.__name__}.{name}"] = value
    return found


def namespace() -> dict[str, Any]:
    """Return what programs import."""
    names: dict[str, Any] = {"__name__": "program"}
    sys.modules.setdefault("program", types.ModuleType("program"))
    exec(PRELUDE.read_text(), names)
    return names


def construction(path: str, names: dict[str, Any]) -> str | None:
    """Return the expression that makes an instance of the class; None if there is none."""
    if path in NOT_MADE:
        return None
    candidates = [RECIPES[path]] if path in RECIPES else [f"{path}({arguments})" for arguments in ARGUMENTS]
    exec(f"import {path.rpartition('.')[0]}", names)
    for text in candidates:
        with contextlib.suppress(Exception), _quiet():
            eval(text, names)
            return text
    return None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def own_names(value: Any, known: set[type]) -> list[str]:
    """Return the public names of an object but those that an enumerated base class has."""
    cls = type(value)
    inherited: set[str] = set(dir(object))
    for base in cls.__mro__[1:]:
        if base in known:
            inherited.update(dir(base))
    if any(base.__name__ == "Module" and base in known for base in cls.__mro__[1:]):
        inherited.add("training")
    return [n for n in dir(value) if not n.startswith("_") and n not in inherited]


def reads_of(value: Any, known: set[type]) -> Iterator[tuple[str, str]]:
    """Yield the name and the expression of each attribute and of each method that needs no argument."""
    for name in own_names(value, known):
        try:
            with _quiet():
                attribute = getattr(value, name)
        except Exception:
            yield name, f"h$.v.{name}"
            continue
        if not callable(attribute):
            yield name, f"h$.v.{name}"
        elif name not in NOT_CALLED and _needs_no_argument(attribute):
            yield f"{name}()", f"h$.v.{name}()"


def _needs_no_argument(function: Any) -> bool:
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        return False
    return True


def changes_of(value: Any, name: str, path: str) -> list[str]:
    """Return statements that change the object: first the attribute that is read, then its other numbers."""
    if path in NOT_CHANGED:
        return []
    own = [n for n, v in getattr(value, "__dict__", {}).items() if isinstance(v, _PLAIN) and n != name]
    found = []
    for attribute in [name, *own]:
        with contextlib.suppress(Exception), _quiet():
            current = getattr(value, attribute)
            if isinstance(current, _PLAIN):
                found.append(f"h$.v.{attribute} = {_changed(current)!r}")
    return [*CHANGES.get(path, ()), *found]


def _changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    return value + "x" if isinstance(value, str) else 1


def class_features(pattern: str | None = None) -> Iterator[Feature]:
    """Yield a feature for each read of each class."""
    classes, names = public_classes(), namespace()
    known = set(classes.values())
    for path in classes:
        if pattern and not re.search(pattern, path):
            continue
        made = construction(path, names)
        if made is None:
            continue
        with _quiet():
            value = eval(made, names)
        setup = f"import {path.rpartition('.')[0]}\nh$ = Holder()\nh$.v = {made}"
        for name, read in reads_of(value, known):
            changes = tuple(dict.fromkeys(changes_of(value, name, path)))[:_MOST_CHANGES]
            yield Feature(f"{path}: {name}", setup, f"summary({read})", changes, undo="logging.disable(0)")


def class_programs(pattern: str | None = None) -> Iterator[Program]:
    """Yield a program for each read and change."""
    for feature in class_features(pattern):
        if not feature.mutate:
            yield Program((Use(feature),), steps_with(None))
        for i in range(len(feature.mutate)):
            yield Program((Use(feature),), steps_with(("mutate", 0, i)))


def unmade_classes() -> list[str]:
    """Return the classes that no recipe makes, but those that cannot be made."""
    names = namespace()
    return [path for path in public_classes() if path not in NOT_MADE and construction(path, names) is None]
