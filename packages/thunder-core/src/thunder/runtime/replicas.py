# SPDX-License-Identifier: Apache-2.0
"""`DistributedDataParallel` modules in programs whose caller calls `backward()`: torch itself reduces the gradients.

A module is the copy of a model that one rank has. Its reducer, in C++, has hooks on the gradients of parameters. A
program prepares it where the forward of the module begins, as that forward does in eager mode. When the backward
program returns gradients in stages, the reducer therefore reduces them while the rest is computed.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

__all__ = ["number_of", "prepare_reducer"]

_next = itertools.count()
_numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_modules: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def number_of(ddp: Any) -> int:
    """Return the number by which a program finds a module. Prologues compare it, so a program is for one module."""
    if ddp not in _numbers:
        _numbers[ddp] = number = next(_next)
        _modules[number] = ddp
    return _numbers[ddp]


def prepare_reducer(number: int, synchronizes: bool) -> None:
    """Prepare the reducer of a module for a forward, and for the backward if that reduces gradients.

    After the first backward, this forms the final buckets, in a collective that runs as in eager mode.
    """
    ddp = _modules[number]
    if not ddp._lazy_init_ran:
        ddp._lazy_init()
    if synchronizes:
        ddp.logger.set_runtime_stats_and_log()
        ddp.reducer.prepare_for_forward()
    if ddp.reducer._rebuild_buckets():
        ddp._has_rebuilt_buckets = True
    if synchronizes:
        ddp.reducer.prepare_for_backward([])
