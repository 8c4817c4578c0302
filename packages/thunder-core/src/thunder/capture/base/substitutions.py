# SPDX-License-Identifier: Apache-2.0
"""Whatever is swapped while a program is traced, and how it is put back.

Everything goes through one board: functions of torch and of Python, hooks on classes, the interpreter's profile, the
collector, modes, this thread's state, the lock, numbers and functions in the user's objects, and what the program
assigned to them. Each swap leaves the step that undoes it before it happens. Steps are idempotent, so that one that an
exception (Ctrl-C, say) interrupted is run again; no exception keeps the other steps from running.

`contextlib.ExitStack` takes a callback off before it calls it, so what interrupts the callback loses it. The board
takes a step off once it is done; `undone` runs a function and the board's steps behind two `finally`, so that an
exception at any line of this file leaves none.
"""

from __future__ import annotations

import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar

from thunder.capture.base.absent import ABSENT
from thunder.capture.base.snapshots import CellSnapshot, Snapshot, VariableSnapshot, cell_value, slot
from thunder.runtime.containers import dict_type

__all__ = ["Substitutions", "undone"]

T = TypeVar("T")
# So often a step is tried before what it raises counts as its own failure.
ATTEMPTS = 3


class _InObject(NamedTuple):
    """What stands in one of the user's objects for a value of it."""

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
        self.finished = False  # whether what was run on the board has returned
        self._steps: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self._replaced: dict[tuple[int, str], Any] = {}  # owners and values, by ids of owners and names
        self.in_objects: list[_InObject] = []
        self._untouched: dict[tuple[int, Any], Any] = {}  # what stood for values that the program left as they were

    def __len__(self) -> int:
        return len(self._steps)

    # -- swapping -----------------------------------------------------------------------------------------------------
    def callback(self, undo: Callable[..., Any], *args: Any) -> None:
        """Have `undo(*args)` called, which has to be idempotent. Call this before the swap that it undoes."""
        self._steps.append((undo, args))

    def set(self, owner: Any, name: str, new: Any) -> None:
        """Replace an attribute of a module, a class or an object of thunder's or torch's."""
        before = owner.__dict__.get(name, ABSENT)
        self._steps.append((_put_back, (owner, name, before)))
        self._replaced[id(owner), name] = owner, before
        _setter(owner)(owner, name, new)

    def assign(self, owner: Any, **new: Any) -> None:
        """Replace attributes of an object that may have them in slots or one value a thread."""
        for name, value in new.items():
            self._steps.append((setattr, (owner, name, getattr(owner, name))))
            setattr(owner, name, value)

    def enter(self, context: AbstractContextManager[T]) -> T:
        """Enter a context, which is left when the board is restored."""
        left: list[bool] = [True]  # until it is entered there is nothing to leave
        self._steps.append((_leave, (context, left)))
        entered, left[:] = context.__enter__(), []
        return entered

    def hold(self, lock: Any) -> None:
        """Acquire a reentrant lock, unless this thread has it already."""
        if not lock._is_owned():
            self._steps.append((_release, (lock,)))
            lock.acquire()

    def replaces(self, owner: Any, name: str) -> bool:
        """Check whether an attribute is another one now, for as long as the program is traced."""
        return (id(owner), name) in self._replaced

    def original(self, owner: Any, name: str, found: Any) -> Any:
        """Return what an attribute is when no program is traced; `found` is what it is now."""
        return self._replaced[id(owner), name][1] if self.replaces(owner, name) else found

    # -- the user's objects -------------------------------------------------------------------------------------------
    def substitute(self, target: Any, key: Any, before: Any, new: Any) -> None:
        """Put something where the program finds `before`: an entry, an item, an attribute, a cell's content."""
        found = _InObject(*_access(target, key), target, key, before, new)
        self.in_objects.append(found)
        self._steps.append((self._restore_object, (found,)))
        found.put(new)

    def _restore_object(self, found: _InObject) -> None:
        """Put a value back, unless the program has assigned something else."""
        if found.get() is not found.new:
            return
        self._untouched[id(found.target), found.key] = found.new
        if found.before is ABSENT:
            found.delete()
        else:
            found.put(found.before)

    def hide_in_snapshots(self, snapshots: Iterable[Snapshot]) -> None:
        """Give snapshots the values that stood in the user's objects before they were replaced."""
        known = {id(found.new): found.before for found in self.in_objects}
        if not known:
            return
        for snapshot in snapshots:
            before = snapshot.before
            if isinstance(snapshot, (CellSnapshot, VariableSnapshot)):  # what a variable holds, be it a list
                snapshot.before = known.get(id(before), before)
            elif isinstance(before, dict):
                snapshot.before = {k: known.get(id(v), v) for k, v in before.items()}
            elif isinstance(before, list):
                snapshot.before = [known.get(id(v), v) for v in before]
            elif id(before) in known:
                snapshot.before = known[id(before)]

    def with_substitutes(self, target: Any, items: Any) -> Any:
        """Return a container's items as the program saw them: numbers that it left alone are their symbols again."""
        if isinstance(items, dict):
            return {k: self._untouched.get((id(target), k), v) for k, v in items.items()}
        return [self._untouched.get((id(target), i), v) for i, v in enumerate(items)]

    # -- undoing ------------------------------------------------------------------------------------------------------
    def restore(self, down_to: int = 0) -> None:
        """Run the steps, the last one first, until so many are left.

        The first exception that a step raises, or that arrives meanwhile, is raised when all have run.
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
        if failure is not None:
            raise failure


# -- boards that nobody restored --------------------------------------------------------------------------------------
class _Boards(threading.local):
    def __init__(self) -> None:
        self.open: list[tuple[Substitutions, types.FrameType]] = []  # each with the frame of its `undone`


_boards = _Boards()


def undone(run: Callable[[Substitutions], T]) -> T:
    """Call `run` with a board and return its result; whatever it swaps is put back, come what may.

    An exception that arrives in the inner `finally` is followed by the outer one. If even that is interrupted, the next
    call on this thread restores the board.
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
    _boards.open[:] = [opened for opened in _boards.open if opened[0] is not board]


def _restore_abandoned() -> None:
    """Restore the boards of this thread whose function is not running any more."""
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
    return type.__setattr__ if isinstance(owner, type) else setattr


def _put_back(owner: Any, name: str, before: Any) -> None:
    if before is not ABSENT:
        _setter(owner)(owner, name, before)
    elif name in owner.__dict__:
        (type.__delattr__ if isinstance(owner, type) else delattr)(owner, name)


def _leave(context: AbstractContextManager[Any], left: list[bool]) -> None:
    if not left:
        context.__exit__(None, None, None)
        left.append(True)


def _release(lock: Any) -> None:
    if lock._is_owned():
        lock.release()


Access = tuple[Callable[[Any], None], Callable[[], Any], Callable[[], None]]


def _access(target: Any, key: Any) -> Access:
    """Return how a value is set, read and deleted without code of the user's."""
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
