# SPDX-License-Identifier: Apache-2.0
"""The board that records every replacement made while a program is traced, and undoes them all afterwards.

The board covers functions of torch and of Python, hooks on classes, the interpreter's profile, the garbage collector,
modes, the state of this thread, the lock, and numbers and functions in the user's objects. It also undoes what the
program assigned to the user's objects. Each replacement first pushes the step that undoes it. Steps are idempotent, so
a step that an exception (e.g. Ctrl-C) interrupts can run again. An exception in one step does not skip the other steps.

`contextlib.ExitStack` removes a callback before calling it, so an interrupted callback is lost. The board removes a
step only after the step is done. `undone` runs a function and the board's steps behind two `finally` clauses, so an
exception at any line of this file leaves no replacement behind.
"""

from __future__ import annotations

import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar

from thunder.capture.base.absent import ABSENT
from thunder.capture.base.snapshots import CellSnapshot, Snapshot, VariableSnapshot, cell_value, slot
from thunder.runtime.containers import dict_type

__all__ = ["Substitutions", "undone"]

T = TypeVar("T")
# The number of times a step runs before its exception counts as the step's own failure.
ATTEMPTS = 3


class _InObject(NamedTuple):
    """A replacement inside one of the user's objects: how to write, read and delete the value, and both values."""

    put: Callable[[Any], None]
    get: Callable[[], Any]
    delete: Callable[[], None]
    target: Any
    key: Any
    before: Any
    new: Any


class Substitutions:
    """The board of one session."""

    def __init__(self) -> None:
        self.finished = False  # whether the function that runs on the board has returned
        self._steps: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self._replaced: dict[int, tuple[Any, dict[str, Any]]] = {}  # owner and original values, by id of the owner
        self.in_objects: list[_InObject] = []
        self.reassigned: set[tuple[int, Any]] = set()  # where the program assigned over a replacement
        self._untouched: dict[tuple[int, Any], Any] = {}  # replacements of values that the program did not reassign

    def __len__(self) -> int:
        return len(self._steps)

    # -- swapping -----------------------------------------------------------------------------------------------------
    def callback(self, undo: Callable[..., Any], *args: Any) -> None:
        """Register `undo(*args)` as a step. `undo` must be idempotent. Call this before the change that it undoes."""
        self._steps.append((undo, args))

    def set(self, owner: Any, name: str, new: Any, *, step: int | None = None) -> None:
        """Replace an attribute of a module, of a class, or of an object that belongs to thunder or torch.

        The step that undoes this becomes the last one, or number `step`.
        """
        before = owner.__code__ if name == "__code__" else owner.__dict__.get(name, ABSENT)
        self._steps.insert(len(self) if step is None else step, (_put_back, (owner, name, before)))
        self._replaced.setdefault(id(owner), (owner, {}))[1].setdefault(name, before)
        _setter(owner)(owner, name, new)

    def assign(self, owner: Any, **new: Any) -> None:
        """Replace attributes of `owner`, which may be slots or thread-local."""
        for name, value in new.items():
            self._steps.append((setattr, (owner, name, getattr(owner, name))))
            setattr(owner, name, value)

    def change_class(self, x: Any, cls: type) -> None:
        """Assign the `__class__` of a class or a module."""
        self._steps.append((_assign_class, (x, type(x))))
        _assign_class(x, cls)

    def enter(self, context: AbstractContextManager[T]) -> T:
        """Enter a context. Restoring the board exits it."""
        left: list[bool] = [True]  # before `__enter__` returns there is nothing to exit
        self._steps.append((_leave, (context, left)))
        entered, left[:] = context.__enter__(), []
        return entered

    def hold(self, lock: Any) -> None:
        """Acquire a reentrant lock, unless this thread already holds it."""
        if not lock._is_owned():
            self._steps.append((_release, (lock,)))
            lock.acquire()

    def replaces(self, owner: Any, name: str) -> bool:
        """Check whether `owner.name` is replaced while the program is traced."""
        return id(owner) in self._replaced and name in self._replaced[id(owner)][1]

    def original(self, owner: Any, name: str, found: Any) -> Any:
        """Return the value that `owner.name` has outside tracing; `found` is its current value."""
        return self._replaced[id(owner)][1][name] if self.replaces(owner, name) else found

    def originals(self, owner: Any, found: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the attributes that `owner` has outside tracing; `found` are its current attributes."""
        entries = [entry for entry in self.in_objects if entry.target is owner]
        if not entries and id(owner) not in self._replaced:
            return found
        outside = {**found, **self._replaced.get(id(owner), (owner, {}))[1]}
        for entry in entries:
            if outside.get(entry.key) is entry.new:
                outside[entry.key] = entry.before
        return {name: value for name, value in outside.items() if value is not ABSENT}

    # -- the user's objects -------------------------------------------------------------------------------------------
    def substitute(self, target: Any, key: Any, before: Any, new: Any) -> None:
        """Replace `before` with `new` in an entry, an item, an attribute or a cell of the user's object `target`."""
        found = _InObject(*_access(target, key), target, key, before, new)
        self.in_objects.append(found)
        self._steps.append((self._restore_object, (found,)))
        found.put(new)

    def withdraw(self, target: Any, key: Any) -> None:
        """Restore a value that was replaced in the user's object `target` already now."""
        for found in [x for x in self.in_objects if x.target is target and x.key == key]:
            self._restore_object(found)
            self._steps[:] = [step for step in self._steps if not (step[1] and step[1][0] is found)]
            self.in_objects[:] = [x for x in self.in_objects if x is not found]

    def _restore_object(self, found: _InObject) -> None:
        """Restore a value, unless the program has assigned another value there."""
        if found.get() is not found.new:
            self.reassigned.add((id(found.target), found.key))
            return
        self._untouched[id(found.target), found.key] = found.new
        if found.before is ABSENT:
            found.delete()
        else:
            found.put(found.before)

    def hide_in_snapshots(self, snapshots: Iterable[Snapshot]) -> None:
        """Replace substitutes in snapshots with the user's original values."""
        known = {id(found.new): found.before for found in self.in_objects}
        if not known:
            return
        for snapshot in snapshots:
            before = snapshot.before
            if isinstance(snapshot, (CellSnapshot, VariableSnapshot)):  # the variable's value itself, even if a list
                snapshot.before = known.get(id(before), before)
            elif isinstance(before, dict):
                snapshot.before = {k: known.get(id(v), v) for k, v in before.items()}
            elif isinstance(before, list):
                snapshot.before = [known.get(id(v), v) for v in before]
            elif id(before) in known:
                snapshot.before = known[id(before)]

    def with_substitutes(self, target: Any, items: Any) -> Any:
        """Return a container's items as the program saw them, with symbols for numbers that it did not reassign."""
        if isinstance(items, dict):
            return {k: self._untouched.get((id(target), k), v) for k, v in items.items()}
        return [self._untouched.get((id(target), i), v) for i, v in enumerate(items)]

    def release(self) -> None:
        """Release the substitutes, which `with_substitutes` needs until the end of the session."""
        self._untouched.clear()

    # -- undoing ------------------------------------------------------------------------------------------------------
    def restore(self, down_to: int = 0) -> None:
        """Run the steps, the last one first, until `down_to` steps remain.

        After all steps have run, the first exception that occurred meanwhile is raised.
        """
        failure: BaseException | None = None
        attempts = 0
        while len(self._steps) > down_to:
            try:
                undo, args = self._steps[-1]
                undo(*args)
            except BaseException as error:
                failure = error if failure is None else failure
                attempts += 1
                if attempts < ATTEMPTS:
                    continue
            self._steps.pop()
            attempts = 0
        self._replaced.clear()
        self.in_objects.clear()
        self.reassigned.clear()
        if failure is not None:
            raise failure


# -- boards that nobody restored --------------------------------------------------------------------------------------
class _Boards(threading.local):
    def __init__(self) -> None:
        self.open: list[tuple[Substitutions, types.FrameType]] = []  # each board with the frame of its `undone` call


_boards = _Boards()


def undone(run: Callable[[Substitutions], T]) -> T:
    """Call `run` with a board, return its result, and always undo the board's replacements.

    If an exception arrives in the inner `finally`, the outer one runs the steps again. If that is interrupted too, the
    next call on this thread restores the board.
    """
    _restore_abandoned()
    board = Substitutions()
    try:
        try:
            _boards.open.append((board, sys._getframe()))
            result = run(board)
            board.finished = True
            return result
        finally:
            _close(board)
    finally:
        _close(board)


def _close(board: Substitutions) -> None:
    board.restore()
    board.release()
    _boards.open[:] = [opened for opened in _boards.open if opened[0] is not board]


def _restore_abandoned() -> None:
    """Restore the boards of this thread whose function no longer runs."""
    if not _boards.open:
        return
    running = set()
    frame: Any = sys._getframe()
    while frame is not None:
        running.add(id(frame))
        frame = frame.f_back
    for board in [board for board, frame in _boards.open if id(frame) not in running][::-1]:
        _close(board)


# -- steps ------------------------------------------------------------------------------------------------------------
def _setter(owner: Any) -> Callable[[Any, str, Any], None]:
    return type.__setattr__ if _metaclass_is_python(owner, "__setattr__") else setattr


def _metaclass_is_python(owner: Any, method: str) -> bool:
    """Check for a class whose metaclass would run user code. One written in C (pybind11's) accepts only `setattr`."""
    return isinstance(owner, type) and isinstance(getattr(type(owner), method), types.FunctionType)


def _put_back(owner: Any, name: str, before: Any) -> None:
    if before is not ABSENT:
        _setter(owner)(owner, name, before)
    elif name in owner.__dict__:
        (type.__delattr__ if _metaclass_is_python(owner, "__delattr__") else delattr)(owner, name)


def _assign_class(x: Any, cls: type) -> None:
    if type(x) is not cls:
        (type if isinstance(x, type) else object).__setattr__(x, "__class__", cls)


def _leave(context: AbstractContextManager[Any], left: list[bool]) -> None:
    if not left:
        context.__exit__(None, None, None)
        left.append(True)


def _release(lock: Any) -> None:
    if lock._is_owned():
        lock.release()


Access = tuple[Callable[[Any], None], Callable[[], Any], Callable[[], None]]


def _access(target: Any, key: Any) -> Access:
    """Return functions that set, read and delete a value without running user code."""
    if isinstance(target, types.CellType):
        cell: Any = target
        return (
            lambda value: setattr(cell, "cell_contents", value),
            lambda: cell_value(cell),
            lambda: delattr(cell, "cell_contents"),
        )
    if isinstance(target, dict):
        base = dict_type(target)
        return (
            lambda value: base.__setitem__(target, key, value),
            lambda: base.get(target, key, ABSENT),
            lambda: base.__delitem__(target, key),
        )
    if isinstance(target, (list, deque)):
        kind: Any = list if isinstance(target, list) else deque
        return (
            lambda value: kind.__setitem__(target, key, value),
            lambda: kind.__getitem__(target, key) if key < kind.__len__(target) else ABSENT,
            lambda: kind.__delitem__(target, key),
        )
    base = type if isinstance(target, type) else object
    return (
        lambda value: base.__setattr__(target, key, value),
        (lambda: target.__dict__.get(key, ABSENT)) if base is type else (lambda: slot(target, key)),
        lambda: base.__delattr__(target, key),
    )
