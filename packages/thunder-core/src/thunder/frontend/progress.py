# SPDX-License-Identifier: Apache-2.0
"""Progress on a terminal: a compilation or other work that takes longer than two seconds says so on stderr."""

from __future__ import annotations

import _thread
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["progress"]

QUIET_SECONDS = 2.0
_INTERVAL = 1.0


@contextmanager
def progress(title: str, doing: str = "compiling", done: str = "compiled") -> Iterator[None]:
    """Return a context that reports on stderr how long it has been running, if stderr is a terminal.

    `doing` and `done` say what it does and has done.
    """
    stream: Any = sys.stderr
    if stream is None or not _is_terminal(stream):
        yield
        return
    stop, ended, reported = _thread.allocate_lock(), _thread.allocate_lock(), [False]
    stop.acquire()
    ended.acquire()
    # A thread of `threading` would be visible to the program, which may count threads.
    _thread.start_new_thread(_report, (f"{title}: {doing}", f"{title}: {done}", stream, stop, ended, reported))
    try:
        yield
    finally:
        stop.release()
        if reported[0]:
            ended.acquire(timeout=_INTERVAL)  # the last line is printed before the program's own output


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except Exception:  # a closed stream, or an object that only has `write`
        return False


def _report(doing: str, done: str, stream: Any, stop: Any, ended: Any, reported: list[bool]) -> None:
    start = time.monotonic()
    try:
        if stop.acquire(timeout=QUIET_SECONDS):
            return
        reported[0] = True
        finished = False
        while not finished:
            stream.write(f"\r{doing} ({time.monotonic() - start:.0f} s)")
            stream.flush()
            finished = stop.acquire(timeout=_INTERVAL)
        stream.write(f"\r{done} in {time.monotonic() - start:.1f} s \n")
        stream.flush()
    except Exception:  # e.g. the terminal is closed
        return
    finally:
        ended.release()
