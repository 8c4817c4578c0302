# SPDX-License-Identifier: Apache-2.0
"""Kinds of values with nothing to read through them: plain values, values guarded by identity, generators, tensors."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import inspect
import operator
import pathlib
import re
import sys
import threading
import types
import uuid
import weakref
from typing import Any

import torch

from thunder.capture.base.predicates import is_mask_class, module_of
from thunder.capture.base.snapshots import Snapshot, container_snapshot
from thunder.capture.base.sources import Source
from thunder.capture.reads.guard_kinds import Equals, IsAlive, IsObject, IsSame
from thunder.capture.reads.kinds.base import Holder, Kind, Rebuilder, Recorder
from thunder.capture.reads.libraries import is_library_class
from thunder.capture.reads.streams import Stream, is_stream
from thunder.capture.tensors.handle import is_handle
from thunder.core.symbol import Symbol

__all__ = ["IMMUTABLE", "EnumMember", "Generator", "Identity", "Plain", "TensorKind", "TextStream", "is_plain"]

_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented), range, slice,
                    torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, torch.finfo,
                    torch.iinfo})  # fmt: skip


_IMMUTABLE = (pathlib.PurePath, uuid.UUID)


class Plain(Kind):
    """Immutable values compared by type and value: numbers, strings, dtypes and similar."""

    is_shared = False
    is_leaf = True

    def match(self, cls: type) -> bool:
        """Match plain types of Python and torch, and NumPy's numbers."""
        if cls in _PLAIN or (issubclass(cls, _IMMUTABLE) and is_library_class(cls)):
            return True
        return module_of(cls) == "numpy" and issubclass(cls, getattr(sys.modules.get("numpy"), "generic", ()))

    def record(
        self, source: Source, value: Any, recorder: Recorder, *, root: bool = False, holder: Holder | None = None
    ) -> None:
        """Guard the value. A symbolic number becomes an input instead, and its symbol replaces it in its holder."""
        symbol = recorder.symbolic_number(source, value) if holder is not None else None
        if symbol is None:
            recorder.add(Equals(source, value))
        else:
            recorder.substitute(holder, value, symbol)  # type: ignore[arg-type]

    def rebuild(self, value: Any, epilogue: Rebuilder) -> Any:
        """Write the value itself."""
        return epilogue.constant(value)


def is_plain(x: Any) -> bool:
    """Check whether a value and all values in it are compared by type and value."""
    return PLAIN.match(type(x)) or isinstance(x, enum.Enum) or (type(x) is tuple and all(is_plain(i) for i in x))


PLAIN = Plain()

# Immutable classes of the standard library, of which user classes may have instances with attributes.
IMMUTABLE = (datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, decimal.Decimal, fractions.Fraction)
# Immutable objects, or objects whose state does not affect computations (locks, streams).
_IDENTITY = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
             types.MethodWrapperType,
             types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType, types.ModuleType,
             types.CodeType, types.GenericAlias, types.UnionType, re.Pattern, *IMMUTABLE, torch.Generator, torch.Stream,
             type(threading.Lock()), type(threading.RLock()), inspect.Signature,
             inspect.Parameter, Symbol, operator.attrgetter, operator.itemgetter, operator.methodcaller,
             type(vars(collections.namedtuple("_", "field"))["field"]))  # fmt: skip


# Functions that read attributes by texts.
_READERS = (getattr, vars)
# Functions of NumPy: an array of the program's is denied where it is read.
_OF_NUMPY = frozenset({"ufunc", "_ArrayFunctionDispatcher"})


class Identity(Kind):
    """Objects that do not change, or whose state does not affect computations: guarded to be the same object."""

    is_shared = False
    is_leaf = True

    def match(self, cls: type) -> bool:
        """Match sentinels (`object()`), objects of `typing`, and the listed classes."""
        if issubclass(cls, IMMUTABLE):
            return is_library_class(cls)
        if module_of(cls) == "numpy" and cls.__name__ in _OF_NUMPY:
            return True
        if module_of(cls) in ("numpy", "numpy.dtypes") and "void" not in cls.__name__.lower():
            return issubclass(cls, getattr(sys.modules.get("numpy"), "dtype", ()))
        return cls is object or issubclass(cls, _IDENTITY) or module_of(cls).partition(".")[0] == "typing"

    def guard(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Guard that the value is the same object."""
        recorder.add(IsObject(source, value))

    def reach(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Watch a module's attributes, and read what a method or an `attrgetter` uses.

        The result of decimal arithmetic depends on the decimal context.
        """
        if isinstance(value, types.ModuleType):
            recorder.code.modules.found(source, value)
        elif isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            if value in _READERS:
                recorder.code.reader_found(source)
            owner = value.__self__
            if owner is not None and not isinstance(owner, (type, types.ModuleType)):  # e.g. `append = items.append`
                recorder.value(source.attr("__self__"), owner)
        elif isinstance(value, (operator.attrgetter, operator.methodcaller)):
            recorder.code.asks_for(_attributes_read_by(value))
        elif isinstance(value, decimal.Decimal):
            recorder.decimals()

    def rebuild(self, value: Any, epilogue: Rebuilder) -> Any:
        """Write the object itself."""
        return epilogue.constant(value)


def _attributes_read_by(x: operator.attrgetter[Any] | operator.methodcaller) -> list[str]:
    reduced: Any = x.__reduce__()
    made, names = reduced[:2]
    if isinstance(x, operator.methodcaller):
        names = (getattr(made, "args", names))[:1]  # a partial application, if the call has keywords
    return [part for name in names for part in name.split(".")]


class EnumMember(Identity):
    """Members of enumerations, each a single object. Hooks see reads of its attributes, e.g. of a value set later."""

    def match(self, cls: type) -> bool:
        """Match members, also if they are strings or numbers."""
        return issubclass(cls, enum.Enum)

    def reach(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Watch the attributes of the member."""
        recorder.member_found(value)


class Generator(Identity):
    """Random generators. The program may draw from a generator that exists before the run, but not seed it."""

    def match(self, cls: type) -> bool:
        """Match torch's generators."""
        return cls is torch.Generator

    def guard(self, source: Source, value: Any, recorder: Recorder, *, root: bool) -> None:
        """Guard that the value is the same generator, and save its state."""
        recorder.add(IsObject(source, value))
        recorder.generator_found(value)


class TextStream(Kind):
    """Streams of text, e.g. open files. The epilogue writes what the program writes; other uses end the trace."""

    is_shared = False

    def match(self, cls: type) -> bool:
        """Match streams that are written in C."""
        return is_stream(cls)

    def record(
        self, source: Source, value: Any, recorder: Recorder, *, root: bool = False, holder: Holder | None = None
    ) -> None:
        """Guard that the value is the same stream, and replace it while tracing by an object that records effects."""
        recorder.add(IsAlive(source, weakref.ref(value)))
        if id(value) not in recorder.reached:
            recorder.register(source, value, [])
        if holder is not None:
            recorder.substitute(holder, value, Stream(value))
            recorder.code.reads_streams = True

    def rebuild(self, value: Any, epilogue: Rebuilder) -> Any:
        """Write the stream itself."""
        return epilogue.not_rebuilt(value)


class TensorKind(Kind):
    """Tensors. Those that the program uses become inputs, and one check compares the metadata of all tensors."""

    is_shared = False

    def match(self, cls: type) -> bool:
        """Match tensors and their subclasses, except causal masks."""
        return issubclass(cls, torch.Tensor) and not is_mask_class(cls)

    def record(
        self, source: Source, value: Any, recorder: Recorder, *, root: bool = False, holder: Holder | None = None
    ) -> None:
        """Record the tensor's source, and read all attributes that the user has set on the tensor."""
        if is_handle(value):
            return
        first = recorder.tensor_found(source, value)
        recorder.tensor_held(holder, value)
        if first is not None:
            recorder.add(IsSame(source, first))
        elif id(value.__dict__) not in recorder.reached:
            if value.__dict__:
                recorder.value(source.variables, value.__dict__)
            else:  # without attributes, but the program may add some
                recorder.register(source.variables, value.__dict__, self.snapshot(source, value, recorder))

    def snapshot(self, source: Source, value: Any, recorder: Recorder) -> list[Snapshot]:
        """Return a snapshot of the attributes that the user has set on the tensor."""
        return [container_snapshot(source.variables, value.__dict__)]
