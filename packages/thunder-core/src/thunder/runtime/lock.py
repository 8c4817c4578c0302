# SPDX-License-Identifier: Apache-2.0
"""State of the process during tracing and compilation: locks, forks, and no garbage collection.

`tracing_lock` is held by the thread that traces and compiles. `runs` is held while a program runs on handles, which is
the first part of that time. Only then do objects of user code contain handles, symbols and assignments that are undone
later, so other threads wait for the end of the run and not for the end of the compilation.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Runs", "collection_paused", "program_lock", "runs", "tracing_lock"]

tracing_lock: Any = threading.RLock()

# The longest time in seconds that another thread waits for a traced program before it reads or writes an object that
# the program uses. The limit is reached only if the program itself waits for the other thread, e.g. for its lock.
MAX_WAIT = 10.0
# The longest time in seconds that a fork waits for another thread's trace.
MAX_WAIT_OF_FORK = 60.0


class Runs:
    """The lock that a thread holds while a program runs on handles, with a token that changes at each such run.

    `stable` is None during a run, and a new object after it. A thread that found the same object before and after it
    read objects of user code has read no handle and no symbol.
    """

    __slots__ = ("lock", "stable")

    def __init__(self) -> None:
        self.lock: Any = threading.RLock()
        self.stable: object | None = object()

    def acquire(self) -> None:
        """Begin a run on this thread, after the epilogues and runs of other threads."""
        self.lock.acquire()
        self.stable = None

    def release(self) -> None:
        """End the run. An interrupted call may be repeated."""
        self.stable = object()
        self.lock.release()

    def _is_owned(self) -> bool:
        return self.lock._is_owned()  # type: ignore[no-any-return]

    @property
    def is_mine(self) -> bool:
        """Whether the program runs on this thread."""
        return self.stable is None and self._is_owned()

    def wait(self, timeout: float = -1) -> bool:
        """Wait until no other thread runs a program on handles; return False if that takes longer than `timeout`."""
        if self._is_owned():
            return True
        try:
            try:
                return self.lock.acquire(timeout=timeout)  # type: ignore[no-any-return]
            finally:
                self._release_if_owned()
        finally:  # in case an interrupt, e.g. Ctrl-C, skipped the call above
            self._release_if_owned()

    def _release_if_owned(self) -> None:
        if self._is_owned():
            self.lock.release()

    def forget(self) -> None:
        """Drop the run of a thread that does not exist in this process."""
        self.lock._at_fork_reinit()
        self.stable = object()


runs = Runs()

_collection_paused_by: list[int] = []  # the thread that turned the collector off, as a child process needs to know

# A user's `gc.freeze()` freezes thousands of objects. Python 3.12 itself freezes only a few hundred.
_FROZEN = 1000


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause garbage collection.

    Passes create many objects that stay alive, and no cycles. Each collection would traverse all of them, and all other
    objects of the process. On exit, the new objects move to the oldest generation, so that the next collection does not
    traverse them either.
    """
    enabled = gc.isenabled()
    try:
        try:
            if enabled:
                _collection_paused_by.append(threading.get_ident())
            gc.disable()
            yield
        finally:
            _collect_again(enabled)
    finally:  # in case an interrupt, e.g. Ctrl-C, skipped the call above
        _collect_again(enabled)


def _collect_again(enabled: bool) -> None:
    if enabled:
        _collection_paused_by.clear()
    if enabled and not gc.isenabled():
        if gc.get_freeze_count() < _FROZEN:  # otherwise `unfreeze` would undo a freeze by the user
            gc.freeze()
            gc.unfreeze()
        gc.enable()


# -- forks ------------------------------------------------------------------------------------------------------------
_held_for_fork: list[bool] = []


_of_programs: weakref.WeakSet[Any] = weakref.WeakSet()


def program_lock() -> Any:
    """Return a new reentrant lock, which a child process finds released."""
    lock = threading.RLock()
    _of_programs.add(lock)
    return lock


def _before_fork() -> None:
    """Wait for the end of another thread's trace: in the child no thread would undo its replacements."""
    _held_for_fork.append(tracing_lock.acquire(timeout=MAX_WAIT_OF_FORK))


def _after_fork_in_parent() -> None:
    if _held_for_fork and _held_for_fork.pop():
        tracing_lock.release()


def _after_fork_in_child() -> None:
    """Replace the state of locks, whose owner and waiters may be threads that the child does not have."""
    mine = runs.is_mine
    _held_for_fork.clear()
    for lock in (tracing_lock, *_of_programs):
        lock._at_fork_reinit()
    if any(thread != threading.get_ident() for thread in _collection_paused_by):
        gc.enable()
    if not mine:
        runs.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
