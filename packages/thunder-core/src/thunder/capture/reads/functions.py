# SPDX-License-Identifier: Apache-2.0
"""Recorder of the functions and code that a program runs: their code, defaults, closures and globals.

A frame does not reference its function. The recorder therefore matches running code with the functions that were read
before.
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import os
import sys
import types
import typing
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import Any

import torch

from thunder.capture.base.absent import ABSENT
from thunder.capture.base.fallback import ModuleFallback, fall_back
from thunder.capture.base.modes import is_state
from thunder.capture.base.predicates import module_of
from thunder.capture.base.snapshots import CellSnapshot, GlobalsSnapshot, cell_value
from thunder.capture.base.sources import Cell, CellContents, Global, IsSubclass, Root, Scope, Source
from thunder.capture.numbers.overrides import ANSWERS, override_of
from thunder.capture.numbers.symbolic import Inputs
from thunder.capture.reads import bytecode
from thunder.capture.reads.builtin_readers import BUILTIN_READERS
from thunder.capture.reads.c_functions import communicates, denied, never_denied, setting_read_by
from thunder.capture.reads.classes import ClassReads
from thunder.capture.reads.classify import classify
from thunder.capture.reads.clocks import clock_of
from thunder.capture.reads.function_attributes import FunctionAttributes
from thunder.capture.reads.guard_kinds import IsObject
from thunder.capture.reads.kinds.base import Recorder
from thunder.capture.reads.kinds.callables import Function
from thunder.capture.reads.kinds.leaves import Identity, Plain, is_plain
from thunder.capture.reads.kinds.references import ClassKind
from thunder.capture.reads.libraries import is_imported_freely, is_library, is_library_class, is_library_scope
from thunder.capture.reads.modules import ModuleReads
from thunder.capture.reads.order_of_sets import OrderOfSets, sorted_sets
from thunder.capture.reads.output import replacement_of
from thunder.capture.reads.set_uses import set_uses
from thunder.capture.reads.streams import is_stream
from thunder.capture.reads.value_hooks import is_watched
from thunder.capture.reads.value_uses import value_uses
from thunder.core.errors import ReplacedBuiltinError
from thunder.core.locations import is_ours
from thunder.runtime import settings

__all__ = ["CodeReads", "attention_kernels_source"]

_CHECKS_OF_ABCS = frozenset({"_abc_instancecheck", "_abc_subclasscheck"})
# Variables of libraries whose content is the same before and after a program: the objects that are being printed, and
# the modules of a group (`fully_shard([a, b])`) that have not run yet in this forward, with those of the group.
_NOT_READ = frozenset({"repr_running", "modules_to_run", "modules_set"})
_BUILTINS = Root(builtins, "builtins")
# Functions of the standard library that read the attributes of a function.
_INSPECTING = frozenset(
    id(fn.__code__)
    for fn in (inspect.signature, inspect.getfullargspec, inspect.get_annotations, typing.get_type_hints)
)

# Functions of the standard library whose reads no hook sees.
_UNSEEN = {id(fn.__code__): fn.__name__ for fn in (inspect.getattr_static, inspect.findsource)}


def attention_kernels_source() -> Source:
    """Return the source of the enabled attention kernels."""
    return Root(settings, "torch").attr("attention_kernels").call()


class CodeReads:
    """The functions and code objects of one run of a program."""

    def __init__(self, recorder: Recorder, classes: ClassReads):
        self._recorder = recorder
        self._classes = classes
        self.modules = ModuleReads(recorder, self)
        self.symbolic: Inputs | None = None  # set if numbers of inputs are symbolic
        self.scopes: dict[int, GlobalsSnapshot] = {}  # by the ids of the dicts of globals
        self._ran: dict[int, CodeType] = {}
        self.identity_matters: bool | None = None  # whether code ran that compares identities; None if not watched
        self.reads_streams = False  # whether the program found a stream, which another object replaces while tracing
        self.compares_objects = False  # whether user code ran that may compare objects by identity
        self._functions: dict[int, list[tuple[Source, Any]]] = {}  # by the ids of their code objects
        self._alive: list[CodeType] = []
        self._unmatched: dict[int, tuple[CodeType, dict[str, Any]]] = {}  # code without a known function; its globals
        self._nested: set[int] = set()  # the ids of code objects of functions defined in code that ran
        self._cells: set[int] = set()
        self._checks_of_abcs: dict[tuple[type, type], None] = {}  # classes, each with an abstract base class
        self.attributes = FunctionAttributes(recorder)
        self.sets = OrderOfSets()
        self.asked: set[str] = set()  # attributes that objects such as `operator.attrgetter("k")` read
        self.reads_by_text = False  # whether the program may read attributes of objects by texts that nothing reports
        self._settings: set[Any] = set()  # functions that read settings, which the program has called
        self._replaced: set[tuple[int, str]] = set()  # ids of dicts of globals, and the names of replaced functions
        self._used_as_value: str | None = None  # a function or class that is replaced while tracing

    @property
    def ran(self) -> list[CodeType]:
        """The code objects that have run."""
        return [*self._ran.values()]

    def release(self) -> None:
        """Release references to the user's objects."""
        self.scopes.clear()
        self._functions.clear()
        self._unmatched.clear()
        self._checks_of_abcs.clear()
        self.attributes.release()
        self._alive.clear()

    # -- functions ----------------------------------------------------------------------------------------------------
    def found(self, source: Source, fn: types.FunctionType) -> None:
        """Record a function that a read found. Its own reads are guarded when it runs."""
        code = fn.__code__
        self._functions.setdefault(id(code), []).append((source, fn))
        self._alive.append(code)
        if is_library(code.co_filename):
            self._read_cells(source, fn)
            if is_state(fn.__module__, fn.__name__):  # it returns a setting
                with contextlib.suppress(Exception):  # the program's own call raises, too
                    self._recorder.value(source.call(), fn())
            return
        self.attributes.found(source, fn)
        if id(code) in self._ran:
            self._function_ran(source, fn)

    def _function_ran(self, source: Source, fn: types.FunctionType) -> None:
        code = fn.__code__
        self._scope(fn.__globals__, source)
        self._read_code(code, fn.__globals__)
        if code.co_argcount:
            self._read_defaults(source.attr("__defaults__"), fn.__defaults__)
        if code.co_kwonlyargcount:
            self._read_defaults(source.attr("__kwdefaults__"), fn.__kwdefaults__)
        if fn.__dict__:
            self._recorder.value(source.variables, fn.__dict__)
        self._read_cells(source, fn)

    def _read_defaults(self, source: Source, defaults: Any) -> None:
        if defaults is None:
            self._recorder.add(IsObject(source, None))
            return
        if isinstance(defaults, dict) and self._recorder.is_read_by_item(source):
            for name, value in defaults.items():  # constants: the running code has already been called with them
                self._recorder.value(source.item(name), value)
        self._recorder.value(source, defaults)

    def _read_cells(self, source: Source, fn: types.FunctionType) -> None:
        recorder = self._recorder
        for i, (name, cell) in enumerate(zip(fn.__code__.co_freevars, fn.__closure__ or ())):
            if name == "dispatch_cache" and fn.__globals__.get("__name__") == "functools":
                continue  # a cache of `singledispatch`, which depends on the guarded registry
            inner = source.to(Cell, i)
            before = cell_value(cell)
            if id(cell) not in self._cells:
                self._cells.add(id(cell))
                recorder.register(inner, cell, [CellSnapshot(inner, cell, before)])
            if name in _NOT_READ and is_library(fn.__code__.co_filename):
                continue
            variable = inner.to(CellContents, name)
            found = recorder.reached[id(cell)].snapshots[0].before if id(cell) in recorder.reached else before
            recorder.value(variable, found, holder=(cell, None) if found is before else None)
            if issubclass(type(found), (types.ModuleType, type)):
                nested = [c for c in bytecode.nested_codes(fn.__code__) if name in c.co_freevars]
                for code in (fn.__code__, *nested):  # functions that the program defines share the cell
                    for used in bytecode.uses(code, bytecode.VARIABLE, name):
                        self._read_attributes(variable, found, (used,) if used else (), code)
                    self._watch_if_value(found, name, code)

    def asks_for(self, names: Iterable[str]) -> None:
        """Record names of attributes that may be read of any object, and are no names in code."""
        self.asked.update(names)
        self.attributes.names_read({*names})

    def reader_found(self, source: Source | None = None) -> None:
        """Record a function such as `getattr`, which the program has got from a source or makes itself.

        Under its own name, the program calls a function of `builtin_readers.py`, which reports what it reads.
        """
        if source is None or source.parent is not _BUILTINS:
            self.reads_by_text = self.sets.reads_by_text = True
            self.attributes.names_read({"__dict__"})

    # -- code ---------------------------------------------------------------------------------------------------------
    def code_ran(self, code: CodeType, frame: FrameType) -> None:
        """Record what a code object reads, when it runs for the first time."""
        if self.identity_matters is False:
            self.identity_matters = not is_ours(code.co_filename) and bytecode.compares_identity(code)
        if code.co_name == "<module>" and not is_imported_freely(code.co_filename) and _is_imported_now(frame):
            # Its objects look like objects of this call, but they stay, and their states with them.
            module = frame.f_globals.get("__name__")
            self._recorder.refuse(f"the program imports the module {module} for the first time")
        if id(code) in _INSPECTING:
            self.attributes.inspected()
        if id(code) in _UNSEEN and not (frame.f_back is not None and is_ours(frame.f_back.f_code.co_filename)):
            self._recorder.refuse(f"the program calls inspect.{_UNSEEN[id(code)]}, whose reads thunder does not see")
        if id(code) in self._ran or is_library(code.co_filename):
            return
        if code.co_name == "__annotate__":
            return  # since Python 3.14 annotations are evaluated on access, and no longer at definition
        if code.co_filename == "<string>" and is_library_scope(frame.f_globals):
            return  # the library generated this code, e.g. a dataclass's __init__
        functions = self._functions.get(id(code))
        if functions is None and self._classes.has_method(code):
            self._classes.method_ran(code)
            functions = self._functions.get(id(code))
        if functions is None and id(code) not in self._nested:
            if _is_imported_now(frame):
                return
            self._unmatched[id(code)] = (code, frame.f_globals)
        for source, fn in functions or ():
            self._function_ran(source, fn)
        self._read_code(code, frame.f_globals)
        unseen = bytecode.reads_past_hooks(code)
        if unseen is not None and not (unseen == "__getattribute__" and self._classes.has_lookup_with(code)):
            self._recorder.refuse(f"the program reads by `{unseen}`, which thunder does not see")
        self._recorder.code_starts(code)

    def c_function_called(self, fn: Any, owner: Any, frame: FrameType) -> bool:
        """End the trace before a call of a C function that no guard covers; guard the settings that it reads.

        Return True if later calls of the function, or of this method of the class, need no recording.
        """
        reason = denied(fn, owner, frame.f_globals, frame.f_code.co_name)
        writes_stream = is_stream(type(owner))
        if reason is None and writes_stream and id(owner) in self._recorder.reached:
            reason = f"the program calls {type(owner).__name__}.{fn.__name__}"
        if reason is not None and not _imports(frame):
            self._recorder.deny(reason, always=communicates(fn))
        checks_class = fn.__name__ in _CHECKS_OF_ABCS and getattr(fn, "__module__", None) == "_abc"
        if checks_class:
            checked, base = _checked_class(frame)
            outer = frame.f_back
            # The check of a class asks the subclasses of the abstract class, too, whose answers are part of its own.
            is_part = outer is not None and outer.f_code.co_filename == frame.f_code.co_filename
            if (
                isinstance(base, type)
                and isinstance(checked, type)
                and not (is_part and outer is not None and _checked_class(outer)[0] is checked)
            ):
                self._checks_of_abcs[checked, base] = None
        if fn not in self._settings and (setting := setting_read_by(fn)) is not None:
            self._settings.add(fn)
            try:
                found = fn()
            except TypeError:  # it has arguments
                self._recorder.deny(f"the program calls {setting}, which thunder cannot guard")
            self._recorder.value(setting, found)
        return not (writes_stream or checks_class) and never_denied(fn, owner)

    def match_remaining(self) -> None:
        """At the end of the run, search for the functions of code that ran although no read had found it."""
        for cls, base in self._checks_of_abcs:
            if not (is_library_class(cls) and is_library_class(base)) and not issubclass(cls, torch.Tensor):
                check = self._classes.know(cls).to(IsSubclass, self._classes.know(base))
                self._recorder.value(check, issubclass(cls, base))
        for code, module in self.modules.missing_imports():
            for used in bytecode.attribute_names(code):
                self._read_attributes(Root(module, module.__name__.rpartition(".")[2]), module, (used,), code)
        for code, scope in self._unmatched.values():
            self._match(code, scope)
        self.attributes.finish()

    def _match(self, code: CodeType, scope: dict[str, Any]) -> None:
        """Find the function of `code` in its module or in a class, or refuse to cache the trace."""
        if id(code) in self._functions or id(code) in self._nested:
            return
        self._classes.method_ran(code)
        found = scope.get(code.co_name)
        if isinstance(found, types.FunctionType) and found.__code__ is code:
            self._recorder.value(self._scope(scope).source.to(Global, code.co_name), found)
        if id(code) not in self._functions:
            self._classes.find_in_tables(code)
        if id(code) not in self._functions:
            self._recorder.refuse(f"`{code.co_name}` belongs to an object thunder cannot guard")

    def _read_code(self, code: CodeType, scope: dict[str, Any]) -> None:
        if id(code) in self._ran:
            return
        self._ran[id(code)] = code
        if not self.compares_objects:
            self.compares_objects = any(not _is_constant(chain, scope) for chain in bytecode.compared_objects(code))
        self._nested.update(id(c) for c in bytecode.nested_codes(code))
        self.attributes.code_runs(code)
        if bytecode.makes_readers(code):
            self.reader_found()
        self._read_globals(code, scope)
        self.sets.code_runs(code, scope, self._scope(scope).before)
        for source, module in self.modules.imports(code, scope):
            for used in bytecode.attribute_names(code):
                if not is_watched(module):
                    self._read_attributes(source, module, (used,), code)
        if "find_spec" in code.co_names:
            self.modules.asked_for(code)

    # -- globals ------------------------------------------------------------------------------------------------------
    def scope_of(self, module: types.ModuleType) -> GlobalsSnapshot:
        """Return the snapshot of the variables of a module."""
        return self._scope(module.__dict__, module=module)

    def _scope(
        self, scope: dict[str, Any], function: Source | None = None, module: types.ModuleType | None = None
    ) -> GlobalsSnapshot:
        """Return the snapshot of a module's globals, found through the module or through one of its functions."""
        found = self.scopes.get(id(scope))
        if found is None:
            module = module or sys.modules.get(scope.get("__name__", ""))
            title = scope.get("__name__", "the globals").rpartition(".")[2]
            if module is not None and module.__dict__ is scope:
                source = Root(module).to(Scope, "__dict__", title)
            elif function is not None:
                source = function.to(Scope, "__globals__", title)
            else:
                source = Root(types.SimpleNamespace()).to(Scope, "__dict__", title)
                self._recorder.refuse("the program called a function whose globals belong to no module")
            found = self.scopes[id(scope)] = GlobalsSnapshot(source, scope)
        return found

    def _read_globals(self, code: CodeType, scope: dict[str, Any]) -> None:
        snapshot = self._scope(scope)
        snapshot.stored |= bytecode.stored_globals(code)
        for chain in bytecode.global_loads(code):
            name = chain[0]
            if name in snapshot.before:
                before = snapshot.before[name]
                if scope.get(name, ABSENT) is before:
                    source = snapshot.source.to(Global, name)
                    if issubclass(type(before), types.ModuleType) and ("type",) in bytecode.global_loads(code):
                        self._leave_plain(before, name, code)
                    self._recorder.value(source, before, holder=(scope, name))
                    override = ANSWERS.get(id(before)) or replacement_of(before) or clock_of(before)
                    if self.symbolic and self.symbolic.dynamic.overrides_math:
                        override = override or override_of(before)
                    if override is not None:
                        self._replace(scope, name, before, override)
                    self._read_attributes(source, before, chain[1:], code)
                self._watch_if_value(before, name, code)
            elif name not in scope and not hasattr(builtins, name):
                self._recorder.absent(snapshot.source, name)
                self._recorder.absent(_BUILTINS.variables, name)
            elif name not in scope:  # else the program assigned the global
                self._recorder.absent(snapshot.source, name)
                found = self._recorder.substitutions.original(builtins, name, getattr(builtins, name))
                self._recorder.value(_BUILTINS.attr(name), found)
                override = ANSWERS.get(id(getattr(builtins, name)))
                if override is None and self.symbolic:
                    override = self.symbolic.stands_for(name)
                override = override or BUILTIN_READERS.get(name)
                if name == "sorted" and set_uses(code).sorts:
                    override = override or sorted_sets
                if override is not None:
                    self._replace(scope, name, ABSENT, override)
        self._find_replaced_values(code, scope)

    def _replace(self, scope: dict[str, Any], name: str, before: Any, replacement: Any) -> None:
        self._replaced.add((id(scope), name))
        self._recorder.substitute((scope, name), before, replacement)

    def _find_replaced_values(self, code: CodeType, scope: dict[str, Any]) -> None:
        """Find uses of what is replaced while tracing that show that it is another object, e.g. `x.kind is int`."""
        uses = value_uses(code)
        for name in sorted(uses.kept | uses.passed):
            found = self._replacement(name, scope)
            if found is not None and (name in uses.kept or isinstance(found, type)):
                self._used_as_value = self._used_as_value or name

    def check_values(self) -> None:
        """Raise if the program uses what is replaced while tracing as a value. It may have returned or compared it."""
        if self._used_as_value is None:
            return
        why = f"the program uses `{self._used_as_value}` as a value, and another object replaces it while tracing"
        if self.symbolic and self.symbolic.dynamic.overrides_math:
            raise ReplacedBuiltinError(why)
        raise ModuleFallback(why)

    def _replacement(self, name: str, scope: dict[str, Any]) -> Any:
        """Return what replaces a global or an attribute of a module, by its name in a program; None if nothing does."""
        root, *chain = name.split(".")
        found = scope.get(root, getattr(builtins, root, None))
        holder: Any = builtins if root not in scope else None
        for attribute in chain:
            if not issubclass(type(found), types.ModuleType):
                return None
            holder, root, found = found, attribute, found.__dict__.get(attribute)
        if holder is None:
            return found if (id(scope), root) in self._replaced else None
        return found if self._recorder.substitutions.replaces(holder, root) else None

    def _leave_plain(self, module: types.ModuleType, name: str, code: CodeType) -> None:
        """Do not watch a module whose class the code may read: `type(m)` would return the watching class."""
        if "" in bytecode.uses(code, bytecode.VARIABLE, name):
            self.modules.leave_plain(module)

    def _watch_if_value(self, value: Any, name: str, code: CodeType) -> None:
        """Watch a module of a library that code does not only use for reading attributes by their names."""
        if issubclass(type(value), types.ModuleType) and "" in bytecode.uses(code, bytecode.VARIABLE, name):
            self.modules.watch(value)

    def _read_attributes(self, source: Source, value: Any, chain: Iterable[str], code: CodeType) -> None:
        """Read a chain of attributes that code reads by name from a module or class, e.g. `a.b.c`."""
        for name in chain:
            if module_of(type(value)).startswith("torch.backends"):  # settings, computed at each read
                source, value = source.attr(name), getattr(value, name, ABSENT)
                if isinstance(classify(value), (Plain, Identity)):
                    self._recorder.value(source, value)
            elif issubclass(type(value), types.ModuleType):
                found = self._read_of_module(source, value, name, code)
                if found is None:
                    return
                source, value = found
            elif issubclass(type(value), type):
                raw = self._classes.lookup(value, name)
                is_constant = is_library_class(value) and not is_plain(raw)
                if raw is not ABSENT and not is_constant:
                    self._classes.attribute_read(value, name, raw)
                return
            else:
                return

    def _read_of_module(
        self, source: Source, module: types.ModuleType, name: str, code: CodeType
    ) -> tuple[Source, Any] | None:
        """Read an attribute of a module; return None if the attribute does not exist."""
        recorder = self._recorder
        if is_watched(module):
            return self.modules.variable(module, name)
        found = recorder.substitutions.original(module, name, module.__dict__.get(name, ABSENT))
        if module.__name__ == "importlib" and name == "import_module":  # which runs no C function
            recorder.refuse("the program imports a module by a computed name (importlib.import_module)")
        standard = module is sys and name in ("stdout", "stderr")  # looked up at each call
        self.reads_streams |= standard
        if found is ABSENT or standard:
            return None
        if module is os and name == "getenv":
            recorder.value(source.attr("environ"), os.environ)
        if module is sys and name == "modules":
            if not bytecode.only_asks(code, ("sys", "modules")):
                recorder.refuse("the program reads sys.modules")
            self.modules.asked_for(code)
        if module is builtins and id(found) in ANSWERS:
            fall_back(f"the program calls builtins.{name}, which would return classes of thunder: use {name} instead")
        inner = source.attr(name)
        inner.label = name
        recorder.value(inner, found)
        if is_state(module.__name__, name):  # a function that returns a setting of torch
            with contextlib.suppress(Exception):  # the program's own call raises, too
                recorder.value(inner.call(), found())
        return inner, found


def _checked_class(frame: FrameType) -> tuple[Any, Any]:
    """Return the class that a function of the module `abc` checks, and the abstract class."""
    found = frame.f_locals
    return found["subclass"] if "subclass" in found else type(found.get("instance")), found.get("cls")


def _is_constant(chain: tuple[str, ...], scope: dict[str, Any]) -> bool:
    """Check whether a global, or an attribute of it, has a value whose identity is guarded, e.g. a class or a dtype."""
    if not chain:
        return False
    value = scope.get(chain[0], ABSENT)
    if value is ABSENT:
        value = getattr(builtins, chain[0], ABSENT)
    for name in chain[1:]:
        if not isinstance(value, (types.ModuleType, type)):
            return False
        value = value.__dict__.get(name, ABSENT)
    return value is not ABSENT and isinstance(classify(value), (Plain, Identity, ClassKind, Function))


def _imports(frame: FrameType) -> bool:
    """Check whether a C function is called by an import. Guards check which modules are imported."""
    back: FrameType | None = frame
    while back is not None and back.f_globals.get("__name__") in _IMPORT_SYSTEM:
        back = back.f_back
    if back is not None and back.f_globals.get("__name__") == "importlib.util":  # `find_spec`, whose result is no guard
        return _is_imported_now(back)  # a module asks for it when it is imported
    return _is_imported_now(frame)


_IMPORT_SYSTEM = frozenset({"importlib._bootstrap", "importlib._bootstrap_external", "zipimport"})


def _is_imported_now(frame: FrameType) -> bool:
    """Check whether code runs during the import of a module, or was generated by `namedtuple`."""
    if str(frame.f_globals.get("__name__", "")).startswith("namedtuple_"):
        return True
    back: FrameType | None = frame
    while back is not None:
        if back.f_code.co_filename.startswith("<frozen importlib"):
            return True
        back = back.f_back
    return False
