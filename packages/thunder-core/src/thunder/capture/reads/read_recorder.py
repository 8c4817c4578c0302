# SPDX-License-Identifier: Apache-2.0
"""The recorder of a program's reads: each value that the running program reads becomes a guard of the prologue.

The recorder registers each object that a read finds, with its source and a snapshot of its state. If the object's class
can be watched, hooks then see the reads of its attributes. Guards compare with the snapshot. The value's kind
(`kinds/`) determines how the value is guarded and what can be read through it. Classes and code have their own
recorders.
"""

from __future__ import annotations

import contextvars
import dataclasses
import enum
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import torch

from thunder.capture.base.absent import ABSENT
from thunder.capture.base.ending import end_trace
from thunder.capture.base.fallback import ModuleFallback, RunsEagerly
from thunder.capture.base.new_objects import functions_made, new_objects, watch_new_objects
from thunder.capture.base.phase import Reader, TracerPhase, active, pause_reads
from thunder.capture.base.snapshots import (
    AttributesSnapshot,
    Snapshot,
    Write,
    slot,
    slot_names,
    snapshots_of,
    variables,
)
from thunder.capture.base.sources import Root, Source
from thunder.capture.base.substitutions import Substitutions
from thunder.capture.base.user_lines import user_line
from thunder.capture.numbers.symbolic import Inputs
from thunder.capture.reads.assignments import guard_what_was_assigned, leave_out_logs
from thunder.capture.reads.attributes import AttributeReads
from thunder.capture.reads.classes import UNSHADOWED, ClassReads, names_asked_for
from thunder.capture.reads.classify import classify
from thunder.capture.reads.clocks import replace_clocks
from thunder.capture.reads.distinctness import may_become_identical
from thunder.capture.reads.functions import CodeReads, attention_kernels_source
from thunder.capture.reads.guard_kinds import Guard, HasType, IsSame, LacksKey, LacksKeys
from thunder.capture.reads.hooks import PROFILED, ClassHooks, CodeWatch
from thunder.capture.reads.identity import guarded_identity
from thunder.capture.reads.kinds.arrays import Array, array_handle
from thunder.capture.reads.kinds.base import Holder, Reached
from thunder.capture.reads.kinds.containers import item_source
from thunder.capture.reads.libraries import is_library_class
from thunder.capture.reads.output import Output
from thunder.capture.reads.pickling import replace_pickling
from thunder.capture.reads.unguardables import Unguardables
from thunder.capture.reads.value_hooks import ValueHooks
from thunder.capture.tensors.arrays import ArrayHandle
from thunder.core.errors import TraceHasEnded
from thunder.core.state import SourceLine
from thunder.core.symint.numbers import SymbolicNumber
from thunder.runtime import settings
from thunder.runtime.settings import decimal_settings

__all__ = ["ReadRecorder"]

_DECIMAL_SETTINGS = Root(settings, "decimal").attr("decimal_settings").call()
UNREACHABLE = "which thunder cannot find again from the arguments, or from the function's module, closure or globals"


# This many frames are searched for an `__exit__` that reads an attribute: hooks of the read, and its own functions.
_FRAMES_OF_EXIT = 12


class ReadRecorder:
    """The reads of one run of a program: the resulting guards, and the objects that reads found."""

    def __init__(self, substitutions: Substitutions) -> None:
        self.substitutions = substitutions
        self.guards: list[Guard] = []
        self.reached: dict[int, Reached] = {}
        self.tensors: dict[int, list[Source]] = {}
        self.tensors_read: list[tuple[Source, torch.Tensor]] = []
        self.unguardable: dict[str, SourceLine | None] = {}  # why the trace cannot be cached
        self.denied: RunsEagerly | None = None  # why the trace has ended
        self.assigned: set[tuple[int, str]] = set()
        self.arrays: dict[int, ArrayHandle] = {}  # by the ids of the arrays
        self.tuples: dict[int, tuple[Any, ...]] = {}  # the replacements of tuples of arrays, by the ids of the tuples
        self.handles: dict[int, Any] = {}  # of tensors among the arguments, by the ids of the tensors
        self.assigned_elsewhere: set[tuple[int, str]] = set()  # by other threads
        self.context = contextvars.copy_context()  # the context in which the program runs
        self.classes = ClassReads(self)
        self.code = CodeReads(self, self.classes)
        self._guarded: set[Source] = set()
        self._absent: set[tuple[Source, str]] = set()
        self.expected: set[int] = set()  # the ids of objects, from before their snapshots are taken
        self.functions: dict[int, Any] = {}  # weak references to those that the program has made, by their ids
        self._alive: list[Any] = []
        self._checks: list[Callable[[], None]] = []
        self._copies: set[int] = set()  # the ids of the copies of containers among the arguments
        self.source_of_input: Callable[[torch.Tensor], Source | None] = self.source_of
        self._not_replaced = False  # whether an argument was found where its handle cannot replace it, e.g. in a tuple
        self._generators: dict[int, tuple[torch.Generator, torch.Tensor]] = {}  # with their states before the run
        self._unguardables = Unguardables(self)
        self._attributes = AttributeReads(self, self.classes, self._unguardables)
        self._hooks = ClassHooks(substitutions)
        self._values = ValueHooks(substitutions)
        self._watch = CodeWatch(self._attributes)
        self.output = self._attributes.output = Output(self)

    @property
    def symbolic(self) -> Inputs | None:
        """The symbolic inputs, or None if no numbers are symbolic."""
        return self.code.symbolic

    @symbolic.setter
    def symbolic(self, inputs: Inputs) -> None:
        self.code.symbolic = inputs

    # -- the run ------------------------------------------------------------------------------------------------------
    def keep_others_out(self) -> None:
        """Make other threads wait before they read or assign attributes of objects that the program uses.

        Call this before a step that undoes the program's assignments is registered, so that the step runs earlier.
        """
        readers = (*active.readers, self._attributes)
        self.substitutions.assign(active, readers=readers, tracing=threading.get_ident(), intact=True, waits=True)
        self._hooks.step = len(self.substitutions)

    def watch_reads(self) -> None:
        """Start to record the program's reads, until the board is restored."""
        watch_new_objects(self.substitutions)
        self.output.watch(self.substitutions)
        replace_clocks(self.substitutions)
        replace_pickling(self.substitutions)
        self.substitutions.assign(active, reader=self._attributes, thread=0)

    def watch_identity(self) -> None:
        """Record whether code runs that may compare objects by identity."""
        self.code.identity_matters = False

    @property
    def identity_matters(self) -> bool | None:
        """Whether code ran that may compare objects by identity, or None if this was not watched."""
        return self.code.identity_matters

    def start(self, fn: Any) -> None:
        """Record the traced callable."""
        self.of_module = isinstance(fn, torch.nn.Module)
        title = getattr(fn, "__name__", type(fn).__name__).strip("<>")
        with TracerPhase():
            self.value(Root(fn, title=title), fn, root=True)

    @property
    def reader(self) -> Reader:
        """The reader that the hooks call."""
        return self._attributes

    def watch_code(self) -> None:
        """Start to record the code that runs, until the board is restored."""
        if not self._watch.start(self.substitutions):
            raise RunsEagerly(PROFILED)

    def end_watch(self) -> None:
        """Stop to record reads at the end of the program, and check that reads were recorded until then."""
        watched = pause_reads() is not None and active.intact and self._watch.is_intact()
        self.functions = functions_made(self.code.ran)
        if not watched:
            self.refuse(
                "the program replaces the interpreter's profiler, or goes on after an exception that interrupted "
                "thunder, so thunder has not seen all that it reads"
            )

    def finish(self) -> None:
        """Add guards at the end of the run for reads that no hook sees."""
        with TracerPhase():
            for check in self._checks:
                check()
        self.code.match_remaining()
        self.code.check_values()
        ran = self.code.ran
        if self._not_replaced and self.code.compares_objects:
            raise RunsEagerly("the program may compare an argument with the same tensor in a tuple or a similar object")
        if self.code.reads_streams and self.code.compares_objects:
            raise RunsEagerly("the program may compare a stream with another object")
        self.classes.guard_names_read_of_classes(ran, self.code.asked, any_name=self.code.reads_by_text)
        self.classes.guard_instance_names()
        self._guard_names_not_on_tensors(ran)
        leave_out_logs(self, ran)
        guard_what_was_assigned(self, ran, [*self.code.scopes.values()])
        self._unguardables.finish(ran)
        for obj in self._attributes.unreachable(new_objects):
            self.refuse(f"the program reads a {type(obj).__name__}, {UNREACHABLE}")

    def _guard_names_not_on_tensors(self, ran: list[types.CodeType]) -> None:
        """Guard that tensors lack attributes that code queries by name, e.g. with `hasattr`.

        Names that a hook has seen are left out. For other names, the queried object may have been a tensor.
        """
        if not self.tensors_read:
            return
        seen = {name for _, name in self._attributes.seen}
        names = frozenset(n for n in names_asked_for(ran) if n not in seen and not hasattr(torch.Tensor, n))
        for source, tensor in self.tensors_read if names else ():
            absent = names.difference(tensor.__dict__)
            if absent:
                self.add(LacksKeys(source.variables, absent))

    def undo(self) -> list[Write]:
        """Restore all objects that reads found, and return the program's changes to them as writes."""
        writes: list[Write] = []
        self._leave_writes_of_others()
        reassigned = self.substitutions.reassigned
        for reached in reversed(self.reached.values()):
            for snapshot in reached.snapshots:
                writes += snapshot.undo(reassigned)
        for scope in self.code.scopes.values():
            writes += scope.undo(reassigned)
        return [
            w._replace(value=self.substitutions.with_substitutes(w.target, w.value)) if w.kind == "replace_items" else w
            for w in writes
        ]

    def _leave_writes_of_others(self) -> None:
        """Treat values that other threads assigned to attributes meanwhile as if they had been there before the run."""
        for key, name in list(self.assigned_elsewhere):
            for snapshot in self.reached[key].snapshots if key in self.reached else ():
                if snapshot.target is not self.reached[key].thing or isinstance(snapshot, AttributesSnapshot):
                    snapshot.adopt(name)  # not a container's own items
            self.refuse(f"another thread assigned the attribute `{name}` of an object while the program was traced")

    def release(self) -> None:
        """Release references to the user's objects."""
        self.code.release()
        self._watch.release()
        self._unguardables.release()
        self.output.release()
        self._alive.clear()
        self._checks.clear()
        self.reached.clear()
        self._attributes.release()
        self._generators.clear()
        self.handles.clear()
        self.arrays.clear()
        self.tuples.clear()
        self.tensors_read.clear()
        self.context = contextvars.Context()

    # -- values -------------------------------------------------------------------------------------------------------
    def value(self, source: Source, value: Any, *, root: bool = False, holder: Holder | None = None) -> None:
        """Guard the value that a source had before the program ran, and register what can be read through it.

        `holder` is the object that contains the value, with the value's name or position. There, a symbol replaces a
        symbolic number.
        """
        if source in self._guarded or value is ABSENT:
            return
        if issubclass(type(value), SymbolicNumber):  # `isinstance` would run a user class's `__getattribute__`
            if self.symbolic is None or not self.symbolic.owns(value):
                self.refuse(f"`{source}` contains a symbolic number of another trace")
            return
        self._guarded.add(source)
        kind = classify(value)
        if kind.is_shared and id(value) in self.reached:
            known = self.reached[id(value)].source
            if known is not source:
                self.add(IsSame(source, known))
        else:
            kind.record(source, value, self, root=root, holder=holder)
        kind.held(source, value, self, holder)

    def add(self, guard: Guard) -> None:
        """Record a guard."""
        self.guards.append(guard)

    def guarded(self, source: Source) -> None:
        """Mark the value at a source as guarded."""
        self._guarded.add(source)

    def at_end(self, check: Callable[[], None]) -> None:
        """Call `check` at the end of the run, before the program's assignments are undone."""
        self._checks.append(check)

    def is_guarded(self, source: Source) -> bool:
        """Check whether the value at a source is already guarded."""
        return source in self._guarded

    def absent(self, source: Source, name: str) -> None:
        """Guard that the dict at `source` has no key `name`."""
        if name not in UNSHADOWED and (source, name) not in self._absent:
            self._absent.add((source, name))
            self.add(LacksKey(source, name))

    def refuse(self, reason: str) -> None:
        """Record a reason why the trace cannot be cached."""
        self.unguardable.setdefault(reason, user_line())

    def deny(self, reason: str, *, always: bool = False) -> NoReturn:
        """End the trace: the program is about to do what a compiled program could not repeat.

        With `always`, the program runs eagerly from now on, and the modules that it calls are compiled one by one.
        """
        self.go_on()
        self.denied = (ModuleFallback if always else RunsEagerly)(reason)  # the program may catch it
        self.denied.where = user_line()
        # If the program catches the exception, whatever it reads or calls next is reported, and ends it.
        self._attributes.report_again()
        self._watch.report_again()
        raise self.denied

    def expect(self, thing: Any) -> None:
        """Make other threads wait for the program before they assign attributes of an object that is recorded next."""
        self.expected.add(id(thing))
        self.watch(type(thing))

    def go_on(self) -> None:
        """End a program that has caught the exception of `deny`: what it does next would be done twice."""
        if self.denied is not None and not _runs_inside(_is_exit):
            # `Thread.start` removes the thread from the table of threads that start only for an `Exception`.
            end_trace(RunsEagerly if _runs_inside(_starts_thread) else TraceHasEnded)

    def register(self, source: Source, thing: Any, snapshots: list[Snapshot]) -> None:
        """Register an object that a read found, with snapshots of its state."""
        self.substitutions.hide_in_snapshots(snapshots)
        self.reached[id(thing)] = Reached(source, thing, snapshots)

    def substitute(self, holder: Holder, before: Any, stand_in: Any) -> None:
        """Replace a value with a stand-in while the program is traced."""
        self.substitutions.substitute(*holder, before, stand_in)

    def withdraw(self, holder: Holder) -> None:
        """Restore a value that was replaced with a stand-in before the program ends."""
        self.substitutions.withdraw(*holder)

    @property
    def substituted(self) -> int:
        """The number of replaced values."""
        return len(self.substitutions.in_objects)

    def watch(self, cls: type) -> bool:
        """Watch the attributes of a class's instances, and return whether that is possible."""
        return self._hooks.watch(cls)

    def observe(self, cls: type) -> bool:
        """Observe what instances of a class that cannot be watched return; return whether that is possible."""
        raw = next(vars(c)["__getattribute__"] for c in cls.__mro__ if "__getattribute__" in vars(c))
        self.classes.attribute_read(cls, "__getattribute__", raw)
        return self._hooks.observe(cls)

    def watch_value(self, x: Any) -> bool:
        """Watch the attributes of a class or a module itself, and return whether that is possible."""
        return self._values.watch(x)

    def member_found(self, member: enum.Enum) -> None:
        """Register a member of a user enumeration, and watch its attributes."""
        cls = type(member)
        made = {"_name_", "_value_"} <= member.__dict__.keys()  # else the program is about to make it, e.g. `A | B`
        if made and id(member) not in self.reached and not is_library_class(cls) and self.watch(cls):
            self.classes.know(cls)
            source = Root(member, f"{cls.__name__}.{member.__dict__.get('_name_')}")
            self.register(source, member, snapshots_of(source, member))

    def decimals(self) -> None:
        """Guard the decimal context, which decimal arithmetic depends on."""
        self.value(_DECIMAL_SETTINGS, decimal_settings())

    def code_starts(self, code: types.CodeType) -> None:
        """Check a code object that is about to run for uses of iterators."""
        self._unguardables.code_starts(code)

    def unguardable_found(self, source: Source, value: Any) -> None:
        """Record a value that no kind can guard."""
        self._alive.append(value)
        self._unguardables.found(source, value)

    # -- numbers and tensors ------------------------------------------------------------------------------------------
    def argument(self, source: Source, leaf: Any) -> Any:
        """Return a non-tensor argument, or its symbol if it is a symbolic number."""
        if classify(leaf).__class__ is Array:
            handle = array_handle(source, leaf, self)
            return leaf if handle is None else handle
        found = self.symbolic_number(source, leaf)
        return leaf if found is None else found

    def symbolic_number(self, source: Source, value: Any) -> Any:
        """Return the symbol of a symbolic number, or None for any other value."""
        if self.symbolic is None or not self.symbolic.dynamic.takes(source, value):
            return None
        return self.number(source, value)

    def number(self, source: Source, value: Any) -> Any:
        """Return the symbol of a number that becomes an input, and guard the number's type."""
        assert self.symbolic is not None
        self._guarded.add(source)
        self.add(HasType(source, type(value)))
        return self.symbolic.number(source, value)

    def is_read_by_item(self, source: Source) -> bool:
        """Check whether a container's plain items are guarded one by one, because some of them are symbolic."""
        return self.symbolic is not None and str(source) in self.symbolic.dynamic.containers

    def source_of_list(self, x: Any) -> tuple[int, Source] | None:
        """Return the length of a list before the run and the list's source, or None if they are not known."""
        reached = self.reached.get(id(x))
        return None if reached is None or not reached.snapshots else (len(reached.snapshots[0].before), reached.source)

    def tensor_found(self, source: Source, tensor: torch.Tensor) -> Source | None:
        """Record a tensor, and return the source where it was first found, or None if it is new."""
        if torch.nn.parameter.is_lazy(tensor):
            self.deny(f"`{source}` is a parameter that is not initialized yet")
        known = self.tensors.setdefault(id(tensor), [])
        known.append(source)
        if len(known) > 1:
            return known[0]
        self.tensors_read.append((source, tensor))
        return None

    def tensor_held(self, holder: Holder | None, tensor: torch.Tensor) -> None:
        """Replace a tensor that is also an argument with its handle, so that the program finds both to be identical."""
        handle = self.handles.get(id(tensor))
        if handle is not None and holder is not None:
            self.substitute(holder, tensor, handle)
        elif handle is not None:
            self._not_replaced = True

    def identified(self, obj: Any) -> Any:
        """Guard the identity of an object whose `id` the program reads; return the object that has it in eager mode."""
        return guarded_identity(self, obj)

    def is_copy(self, obj: Any) -> bool:
        """Check whether a container is the copy of an argument that the program received."""
        return id(obj) in self._copies

    def source_of(self, tensor: torch.Tensor) -> Source | None:
        """Return the source where a tensor was first found, or None."""
        found = self.tensors.get(id(tensor))
        return found[0] if found else None

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """Return the name of the input made from a tensor, or None."""
        found = self.tensors.get(id(tensor))
        return found[0].label or None if found else None

    def attribute_of_tensor(self, source: Source | None, tensor: torch.Tensor, name: str) -> Any:
        """Return an attribute that user code has set on a tensor, or `ABSENT`, and guard the result."""
        found = tensor.__dict__.get(name, ABSENT)
        if source is None:
            self.refuse(f"the program reads the attribute `{name}` of a tensor, {UNREACHABLE}")
        elif found is ABSENT:
            self.absent(source.variables, name)
        else:
            self.value(source.variable(name), found, holder=(tensor.__dict__, name))
        return tensor.__dict__.get(name, ABSENT)

    def tensor_is(self, source: Source | None, tensor: torch.Tensor, step: type[Source], *operands: Any) -> Any:
        """Return and guard the plain result of a step from one of the program's tensors."""
        condition = (source or Root(tensor, "x")).to(step, *operands)
        with TracerPhase():
            found = condition.read(tensor)
        if source is None:
            self.refuse(f"the program reads `{condition}` of a tensor x, {UNREACHABLE}")
        else:
            self.value(condition, found)
        return found

    def given_attributes(self, source: Source | None, tensor: torch.Tensor, given: dict[str, Any]) -> list[Write]:
        """Return the writes that set the attributes of an input's handle on the input itself."""
        if source is None:
            self.refuse(f"the program sets an attribute of a tensor, {UNREACHABLE}")
            return []
        return [Write("set_attribute", source, tensor, name, value) for name, value in given.items()]

    def unreachable(self, tensors: Iterable[torch.Tensor]) -> str | None:
        """Return why a trace that uses these tensors cannot be cached, or None if all tensors have sources."""
        for tensor in tensors:
            if id(tensor) not in self.tensors:
                return f"the program uses a tensor of shape {tuple(tensor.shape)}, {UNREACHABLE}"
        return None

    def attention_kernels(self, kernels: tuple[Any, ...]) -> None:
        """Guard which attention kernels torch has enabled."""
        self.value(attention_kernels_source(), kernels)

    def generator_found(self, generator: torch.Generator) -> None:
        """Save the state of a random generator."""
        self._generators.setdefault(id(generator), (generator, generator.get_state()))

    def seeded(self, used: Iterable[torch.Generator]) -> str | None:
        """Return why a program that draws from these generators cannot be traced: it creates or seeds one of them."""
        for generator, before in self._generators.values():
            if not torch.equal(generator.get_state(), before):
                generator.set_state(before)
                return "the program sets the state of a torch.Generator"
        if any(id(generator) not in self._generators for generator in used):
            return "the program draws from a torch.Generator that it creates"
        return None

    # -- arguments and targets ----------------------------------------------------------------------------------------
    def with_shared_copies(self, original: Any, copy: Any, source: Source, seen: dict[int, tuple[Any, Source]]) -> Any:
        """Return the copy of the arguments in which a container that was passed twice is one container, too."""
        if copy is original or not isinstance(copy, (dict, list, tuple)):
            return copy
        if not isinstance(copy, tuple):
            known = seen.setdefault(id(original), (copy, source))
            if known[0] is not copy:
                self.add(IsSame(source, known[1]))
                return known[0]
        pairs = list(dict.items(copy)) if isinstance(copy, dict) else list(enumerate(copy))
        for i, (key, item) in enumerate(pairs):
            if isinstance(item, (dict, list, tuple)):
                where = item_source(source, original, key, i)
                before = dict.get(original, key) if isinstance(original, dict) else original[key]
                new = self.with_shared_copies(before, item, where, seen)
                if new is not item and isinstance(copy, tuple):
                    copy = tuple.__new__(type(copy), [*copy[:i], new, *copy[i + 1 :]])
                elif new is not item:
                    (dict if isinstance(copy, dict) else list).__setitem__(copy, key, new)  # type: ignore[type-var]
        return copy

    def copied(self, original: Any, copy: Any, source: Source, aliases: dict[int, tuple[Source, Any]]) -> None:
        """Register containers among the arguments. The program gets copies of them, which contain handles."""
        if copy is original or (type(copy) is tuple and type(original) is not tuple) or id(copy) in self._copies:
            return
        self._copies.add(id(copy))
        if isinstance(copy, dict) and isinstance(original, dict):
            items = enumerate(dict.items(original))
            inner = [(item_source(source, {}, k, i), v, dict.get(copy, k)) for i, (k, v) in items]
        elif isinstance(copy, (list, tuple, deque)):
            inner = [(source.item(i), x, y) for i, (x, y) in enumerate(zip(original, copy))]
        elif dataclasses.is_dataclass(copy):
            copies = {name: y for _, name, y in _attributes_of(source, copy)}
            inner = [
                (where, x, y) for where, k, x in _attributes_of(source, original) if (y := copies.get(k)) is not None
            ]
        else:
            return
        if dataclasses.is_dataclass(copy) or hasattr(copy, "_fields"):
            self.classes.know(type(copy))  # for its methods
        if not isinstance(copy, tuple) and source.parent is not None:
            self.reached[id(copy)] = Reached(source, copy, snapshots_of(source, copy))
            for snapshot in self.reached[id(copy)].snapshots:
                own = snapshot.target is copy
                aliases[id(snapshot.target)] = (snapshot.source, original if own else original.__dict__)
        for where, x, y in inner:
            if not isinstance(x, torch.Tensor):
                self.copied(x, y, where, aliases)

    def must_differ(self, targets: Iterable[Source]) -> list[Source]:
        """Return the sources of objects that were different while tracing, and must be different in later calls.

        These are the objects that effects change, objects that might be identical to one of them, and objects that the
        program may have compared by identity.
        """
        wanted = set(targets)
        written = [r for r in self.reached.values() if any(s.source in wanted for s in r.snapshots)]
        types_written = {type(r.thing) for r in written} - {types.CellType, type, types.FunctionType}
        found = [r.source for r in self.reached.values() if type(r.thing) in types_written]
        if self.code.compares_objects:
            known = set(found)
            found += [x for x in may_become_identical(self.reached.values(), self.tensors_read) if x not in known]
        return found if len(found) > 1 else []


def _attributes_of(source: Source, x: Any) -> Iterator[tuple[Source, str, Any]]:
    """Yield the source, name and value of each attribute of a dataclass's instance: in its `__dict__` or in slots."""
    for name, value in (variables(x) or {}).items():
        yield source.variable(name), name, value
    for name in slot_names(type(x)):
        if (value := slot(x, name)) is not ABSENT:
            yield source.attr(name), name, value


def _runs_inside(is_meant: Callable[[types.CodeType], bool]) -> bool:
    """Check whether code for which `is_meant` returns True called the hook that runs now."""
    frame: types.FrameType | None = sys._getframe(2)
    for _ in range(_FRAMES_OF_EXIT):
        if frame is None:
            return False
        if is_meant(frame.f_code):
            return True
        frame = frame.f_back
    return False


def _is_exit(code: types.CodeType) -> bool:
    """Check for the exit of a context manager, which e.g. releases a lock."""
    return code.co_name == "__exit__"


def _starts_thread(code: types.CodeType) -> bool:
    return code is threading.Thread.start.__code__
