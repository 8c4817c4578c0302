# SPDX-License-Identifier: Apache-2.0
"""Classification of values: the kind of each value determines how it is guarded."""

from __future__ import annotations

import sys
from typing import Any

from thunder.capture.reads.kinds.arrays import Array
from thunder.capture.reads.kinds.base import Kind
from thunder.capture.reads.kinds.callables import Function, Memoized, Method, Partial
from thunder.capture.reads.kinds.containers import Container
from thunder.capture.reads.kinds.leaves import PLAIN, EnumMember, Generator, Identity, TensorKind, TextStream
from thunder.capture.reads.kinds.objects import Jitted, Namespace, Object, ThreadLocal
from thunder.capture.reads.kinds.references import ClassKind, ContextVariable, WeakReference
from thunder.capture.reads.kinds.unguardable import Trusted, Unguardable
from thunder.core.classes import ClassCache

__all__ = ["UNGUARDABLE", "classify"]

IDENTITY, UNGUARDABLE = Identity(), Unguardable()
# The first kind that matches a value's class is used.
_KINDS: tuple[Kind, ...] = (
    PLAIN, Container(), Function(), Method(), Memoized(), ContextVariable(), WeakReference(), TensorKind(), Array(),
    ClassKind(), EnumMember(), Partial(), Generator(), IDENTITY, TextStream(), Jitted(), Object(), Namespace(),
    ThreadLocal(), Trusted(), UNGUARDABLE,
)  # fmt: skip
_by_class: ClassCache[Kind] = ClassCache()


def classify(value: Any) -> Kind:
    """Return the kind of a value. For a few values it differs from the kind of the other instances of their class."""
    cls = type(value)
    if cls is tuple and not value:
        return PLAIN
    if value is sys.modules:
        return IDENTITY  # its contents are not guarded: imports during the run are not the program's doing
    found = _by_class.get(cls)
    if found is None:
        found = next(kind for kind in _KINDS if kind.match(cls))
        if found is not UNGUARDABLE:
            _by_class[cls] = found
    return found
