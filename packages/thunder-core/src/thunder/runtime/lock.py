# SPDX-License-Identifier: Apache-2.0
"""What tracing and compiling ask of the interpreter: one thread at a time, and no collection of garbage meanwhile."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collection_paused", "tracing_lock"]

tracing_lock = threading.RLock()

# Whoever freezes what is collected freezes thousands of objects; Python 3.12 does so with a few hundred of its own.
_FROZEN = 1000


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the garbage collection.

    Passes make many objects that live on and no cycles; a collection would walk through all of them, and through
    everything else in the process, over and over. Neither does one right after it, as what was made counts as old.
    """
    enabled = gc.isenabled()
    try:
        try:
            gc.disable()
            yield
        finally:
            _collect_again(enabled)
    finally:  # whatever has interrupted that
        _collect_again(enabled)


def _collect_again(enabled: bool) -> None:
    if enabled and not gc.isenabled():
        if gc.get_freeze_count() < _FROZEN:  # else what somebody froze would not stay so
            gc.freeze()
            gc.unfreeze()
        gc.enable()
