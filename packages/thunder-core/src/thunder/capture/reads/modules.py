# SPDX-License-Identifier: Apache-2.0
"""Recorder of the Python modules that a program reads: their attributes, and which modules are imported.

User modules are watched, so their attributes are seen in any form, e.g. `getattr(m, "k")` or `self.backend.k`. Modules
of libraries are watched only if code uses them in another way than by a chain of names (`np.pi`): the recorder of code
reads chains from the bytecode.
"""

from __future__ import annotations

import dis
import re
import sys
from types import CodeType, ModuleType
from typing import Any, Protocol

from thunder.capture.base.absent import ABSENT
from thunder.capture.base.snapshots import GlobalsSnapshot
from thunder.capture.base.sources import Attr, CellContents, Global, ModuleVariable, Root, Source
from thunder.capture.reads import bytecode
from thunder.capture.reads.guard_kinds import IsObject
from thunder.capture.reads.kinds.base import Recorder
from thunder.capture.reads.libraries import is_library_scope
from thunder.capture.reads.value_hooks import is_watchable_module, is_watched, unwatched_class
from thunder.core.state import state

__all__ = ["ModuleReads"]

_SYS_MODULES = Root(sys, "sys").attr("modules")
# Attributes that the import system reads.
_OF_IMPORTS = frozenset({"__spec__", "__loader__", "__path__", "__package__", "__cached__", "__builtins__"})
_MODULE_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class _Scopes(Protocol):
    """The method of the recorder of code that this recorder calls."""

    def scope_of(self, module: ModuleType) -> GlobalsSnapshot: ...


class ModuleReads:
    """The Python modules that one run of a program reads."""

    def __init__(self, recorder: Recorder, code: _Scopes):
        self._recorder = recorder
        self._code = code
        self._plain: set[int] = set()
        self.not_loaded: set[str] = set()  # modules that code asks for; whether they can be imported may matter
        self._imported: dict[str, CodeType] = {}  # modules that were missing when code that imports them started

    # -- modules as values --------------------------------------------------------------------------------------------
    def found(self, source: Source, module: ModuleType) -> None:
        """Watch a user module that a read found, and a library's module that is not found through a variable."""
        by_name = isinstance(source, (Global, CellContents, Attr))
        if not by_name or not is_library_scope(module.__dict__):
            self.watch(module)

    def leave_plain(self, module: ModuleType) -> None:
        """Do not watch a module. The trace cannot be cached, because reads of its attributes are not seen."""
        if is_watchable_module(module) and not is_watched(module):
            self._plain.add(id(module))
            self._code.scope_of(module).any_stored = True
            self._recorder.refuse(f"the program may read the class of the module {module.__name__}")

    def watch(self, module: ModuleType) -> None:
        """Watch the attributes of a module."""
        if id(module) not in self._plain and is_watchable_module(module) and self._recorder.watch_value(module):
            self._code.scope_of(module)
            if unwatched_class(module) is not ModuleType:  # its methods may run, e.g. `__getattr__` of a lazy module
                self._recorder.classes.know(unwatched_class(module))

    def variable(self, module: ModuleType, name: str) -> tuple[Source, Any] | None:
        """Guard an attribute of a watched module; return None if it does not exist or the program assigned it."""
        recorder = self._recorder
        if name in _OF_IMPORTS:
            return None
        if name == "__dict__":
            recorder.refuse(f"the program reads all variables of the module {module.__name__}")
            return None
        snapshot = self._code.scope_of(module)
        before, now = snapshot.before.get(name, ABSENT), module.__dict__.get(name, ABSENT)
        now = recorder.substitutions.original(module, name, now)
        if before is ABSENT and now is ABSENT:
            self._missing(module, snapshot, name)
        if before is ABSENT or now is not before:
            return None
        inner = snapshot.source.to(ModuleVariable, name)
        recorder.value(inner, before, holder=(module.__dict__, name))
        return inner, before

    def _missing(self, module: ModuleType, snapshot: GlobalsSnapshot, name: str) -> None:
        if hasattr(unwatched_class(module), name):
            return
        self._recorder.absent(snapshot.source, name)
        computed = snapshot.before.get("__getattr__", ABSENT)
        if computed is ABSENT:
            self._recorder.absent(snapshot.source, "__getattr__")
        else:
            self._recorder.value(snapshot.source.to(ModuleVariable, "__getattr__"), computed)

    def assigned(self, module: ModuleType, name: str, value: Any) -> None:
        """Record that the program assigns or deletes an attribute of a watched module."""
        if isinstance(value, ModuleType) and sys.modules.get(f"{module.__name__}.{name}") is value:
            return  # the import system stores a module in its package
        self._code.scope_of(module).stored.add(name)

    # -- imports ------------------------------------------------------------------------------------------------------
    def imports(self, code: CodeType, scope: dict[str, Any]) -> list[tuple[Source, ModuleType]]:
        """Guard and watch the user modules that code imports, and return them."""
        found: list[tuple[Source, ModuleType]] = []
        for name in bytecode.imported_modules(code):
            module = sys.modules.get(name) or sys.modules.get(f"{scope.get('__package__')}.{name}")
            if module is None:
                self._imported[name] = code
            elif isinstance(module, ModuleType) and not is_library_scope(module.__dict__):
                self._load_lazy_names(code, module)
                self._recorder.value(_SYS_MODULES.item(module.__name__), module)
                found.append((Root(module, module.__name__.rpartition(".")[2]), module))
                parts = name.split(".")
                for n in range(1, len(parts)):
                    self._is_loaded(".".join(parts[:n]))
        return found

    def _load_lazy_names(self, code: CodeType, module: ModuleType) -> None:
        """Load the names that code imports from a module whose class loads them at the first read.

        The module stores these names itself (e.g. Transformers' lazy modules), so they are no assignments of the
        program.
        """
        if not hasattr(unwatched_class(module), "__getattr__"):
            return
        names = [x.argval for x in dis.get_instructions(code) if x.opname == "IMPORT_FROM"]
        for name in [name for name in names if name not in module.__dict__]:
            before, state.frontend = state.frontend, None
            try:
                getattr(module, name, None)
            finally:
                state.frontend = before
            if name in module.__dict__:
                self._code.scope_of(module).before[name] = module.__dict__[name]

    def missing_imports(self) -> list[tuple[CodeType, ModuleType]]:
        """Guard at the end of the run that modules are still missing; return those imported meanwhile."""
        found = []
        for name, code in self._imported.items():
            module = sys.modules.get(name)
            if module is None:
                self._absent(name)
            elif isinstance(module, ModuleType) and not is_library_scope(module.__dict__):
                found.append((code, module))
        return found

    def asked_for(self, code: CodeType) -> None:
        """Guard which modules are loaded, for code that queries `sys.modules` or `find_spec` by names."""
        names = [x for x in code.co_consts if isinstance(x, str) and _MODULE_NAME.fullmatch(x)]
        if not names and any(
            chain[:2] == ("sys", "modules") for chain in bytecode.global_loads(code) if len(chain) > 2
        ):
            self._recorder.refuse("the program reads sys.modules by a computed name")
        for name in names:
            self._is_loaded(name)

    def _is_loaded(self, name: str) -> None:
        module = sys.modules.get(name)
        if module is None:
            self._absent(name)
        elif isinstance(module, ModuleType):
            self._recorder.value(_SYS_MODULES.item(name), module)
        else:
            self._recorder.add(IsObject(_SYS_MODULES.item(name), module))

    def _absent(self, name: str) -> None:
        self.not_loaded.add(name)
        self._recorder.absent(_SYS_MODULES, name)
