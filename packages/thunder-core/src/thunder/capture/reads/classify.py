# SPDX-License-Identifier: Apache-2.0
"""Of which kind a value is."""

from __future__ import annotations

import sys
import types
from typing import Any

from thunder.capture.reads.kinds.base import Kind
from thunder.capture.reads.kinds.callables import Function, Memoized, Method, Partial
from thunder.capture.reads.kinds.containers import Container
from thunder.capture.reads.kinds.leaves import PLAIN, Generator, Identity, TensorKind
from thunder.capture.reads.kinds.objects import Jitted, Namespace, Object
from thunder.capture.reads.kinds.references import ClassKind, ContextVariable, WeakReference
from thunder.capture.reads.kinds.unguardable import Trusted, Unguardable
from thunder.capture.reads.nondeterminism import draws_or_reads_clock

__all__ = ["UNGUARDABLE", "classify"]

IDENTITY, UNGUARDABLE = Identity(), Unguardable()
# The first that matches claims a value.
_KINDS: tuple[Kind, ...] = (
    PLAIN, Container(), Function(), Method(), Memoized(), ContextVariable(), WeakReference(), TensorKind(), ClassKind(),
    Partial(), Generator(), IDENTITY, Jitted(), Object(), Namespace(), Trusted(), UNGUARDABLE,
)  # fmt: skip
_by_class: dict[type, Kind] = {}


def classify(value: Any) -> Kind:
    """Return the kind of a value. A few values are of another kind than the rest of their class."""
    cls = type(value)
    if cls is tuple and not value:
        return PLAIN
    if value is sys.modules:
        return IDENTITY  # what is imported meanwhile is no doing of the program's
    found = _by_class.get(cls)
    if found is None:
        found = next(kind for kind in _KINDS if kind.match(cls))
        if found is not UNGUARDABLE:
            _by_class[cls] = found
    if cls is types.BuiltinFunctionType and draws_or_reads_clock(value):
        return UNGUARDABLE
    return found
