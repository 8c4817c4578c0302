# SPDX-License-Identifier: Apache-2.0
"""State of the interpreter during tracing and compilation: one thread at a time, and no garbage collection."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collection_paused", "tracing_lock"]

tracing_lock = threading.RLock()

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
            gc.disable()
            yield
        finally:
            _collect_again(enabled)
    finally:  # in case an interrupt, e.g. Ctrl-C, skipped the call above
        _collect_again(enabled)


def _collect_again(enabled: bool) -> None:
    if enabled and not gc.isenabled():
        if gc.get_freeze_count() < _FROZEN:  # otherwise `unfreeze` would undo a freeze by the user
            gc.freeze()
            gc.unfreeze()
        gc.enable()
