# SPDX-License-Identifier: Apache-2.0
"""Guards on the attributes of the user's functions: `f.__name__`, and those that user code sets, e.g. `f.calls`.

No hook sees these reads. The code that runs contains the names that it may read of any object, and a function has few
attributes, so an attribute of a function is guarded if code that runs reads its name. Reads with `getattr` and
`hasattr` are reported (`builtin_readers.py`).
"""

from __future__ import annotations

import contextlib
import types
from types import CodeType
from typing import Any, NamedTuple

from thunder.capture.base.absent import ABSENT
from thunder.capture.base.sources import Source
from thunder.capture.reads import bytecode
from thunder.capture.reads.guard_kinds import LacksKeys
from thunder.capture.reads.kinds.base import Recorder

__all__ = ["FunctionAttributes"]


class _Function(NamedTuple):
    source: Source
    fn: types.FunctionType
    standard: tuple[Any, ...]  # the attributes that each function has, when the function was found
    own: dict[str, Any]  # a copy of its `__dict__`


class FunctionAttributes:
    """The attributes of the functions that one run of a program has found."""

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._found: dict[int, list[_Function]] = {}  # by the ids of the functions
        self._standard: set[str] = set()  # the attributes of each function that code reads
        self._names: set[str] = set()  # all attributes that code reads
        self._caught: set[str] = set()  # attributes read by code that catches the error if there is none

    def release(self) -> None:
        """Release references to the user's objects."""
        self._found.clear()

    def found(self, source: Source, fn: types.FunctionType) -> None:
        """Record a function of the user that a read found."""
        known = self._found.setdefault(id(fn), [])
        standard, own = known[0][2:] if known else (_standard_attributes(fn), {**fn.__dict__})
        found = _Function(source, fn, standard, own)
        known.append(found)
        if found.own:
            self._read(found, self._names)

    def code_runs(self, code: CodeType) -> None:
        """Record code of the user that is about to run for the first time."""
        self._standard |= bytecode.attributes_of_functions(code)
        names = {*bytecode.attribute_names(code)}
        if bytecode.catches_missing_attributes(code):
            self._caught |= names
        names.update(part for c in code.co_consts if type(c) is str for part in c.split("."))  # e.g. of `attrgetter`
        if ("vars",) in bytecode.global_loads(code):
            names.add("__dict__")
        self.names_read(names)

    def names_read(self, names: set[str]) -> None:
        """Guard the attributes with these names of all functions, also of those that are found later."""
        new = names - self._names
        self._names |= new
        for found in [f for known in self._found.values() for f in known if f.own]:
            self._read(found, new)

    def inspected(self) -> None:
        """Record that the standard library looks at functions, as `inspect.signature` does."""
        self._standard |= {"__dict__", "__name__", "__defaults__", "__kwdefaults__", "__annotations__"}

    def read(self, fn: Any, name: str) -> None:
        """Guard an attribute that the program reads by `getattr`, or queries by `hasattr`."""
        for found in self._found.get(id(fn), ()):
            self._read(found, {name})
            if name not in found.own and not hasattr(types.FunctionType, name):
                self._recorder.absent(found.source.variables, name)

    def _read(self, found: _Function, names: set[str]) -> None:
        source, fn, _, own = found
        if "__dict__" in names and fn.__dict__ == own:
            self._recorder.value(source.variables, fn.__dict__)
        for name in names.intersection(own):
            if fn.__dict__.get(name, ABSENT) is own[name]:  # else `finish` finds that the program assigned it
                self._recorder.value(source.variable(name), own[name], holder=(fn.__dict__, name))

    def finish(self) -> None:
        """Guard the attributes that each function has, and the absence of others; find assignments."""
        absent = frozenset(name for name in self._caught if not hasattr(types.FunctionType, name))
        for source, fn, standard, own in [f for known in self._found.values() for f in known]:
            now = fn.__dict__
            assigned = now.keys() != own.keys() or any(now[name] is not own[name] for name in own)
            if any(a is not b for a, b in zip(standard, _standard_attributes(fn))) or (
                assigned and id(now) not in self._recorder.reached
            ):
                self._recorder.refuse(f"the program assigns an attribute of the function `{source}`")
            for name in self._standard:
                if name == "__dict__":
                    self._recorder.value(source.variables, now)
                    continue
                with contextlib.suppress(Exception):  # annotations may fail to evaluate, in the program, too
                    self._recorder.value(source.attr(name), getattr(fn, name))
            if missing := absent.difference(own):
                self._recorder.add(LacksKeys(source.variables, missing))


def _standard_attributes(fn: types.FunctionType) -> tuple[Any, ...]:
    """Return the attributes of a function that can be assigned. Annotations are left out: reading evaluates them."""
    return fn.__name__, fn.__qualname__, fn.__module__, fn.__doc__, fn.__defaults__, fn.__kwdefaults__
