# SPDX-License-Identifier: Apache-2.0
"""Collectives of `checked` groups are compared between ranks as they start, through the store of the process groups.

The first rank that starts the n-th collective of a jitted function in a group posts it. Each other rank compares its
own n-th collective with it before it starts: a difference is an error that names both lines, where ranks would compute
wrong numbers or hang. The collectives of two programs also differ if the programs have more or fewer of them, or if
ranks call two functions in different order: their numbers among all compared collectives of the group differ. No rank
waits for another one. A rank that waits in a collective that the other ranks never start gets the same error when its
wait fails, e.g. by the timeout of the group.

A rank may run a function eagerly that others run compiled, with the same collectives. Those of eager calls are not
counted, so `stop_comparing` then ends the comparisons of this function on all ranks.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch

from thunder.core.errors import RankMismatchError
from thunder.core.groups import Group
from thunder.core.tracebacks import sources
from thunder.runtime.decisions import path_of_thread

__all__ = ["compare_start", "difference", "raise_mismatch", "stop_comparing", "stop_comparing_order"]

_PREFIX = "thunder/collectives"
_ORDER_STOPPED = f"{_PREFIX}/order/stopped"

Posted = list[Any]  # a rank, its collective, the line, and the answers of the decisions before it


class _Comparisons:
    """The comparisons of this process in the groups of one store. A store ends with `destroy_process_group`."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.counts: dict[str, Iterator[int]] = defaultdict(itertools.count)  # by function and group, and by group
        self.stopped: set[str] = set()  # functions


_current: list[_Comparisons] = []


def _comparisons() -> _Comparisons | None:
    import torch.distributed.distributed_c10d as c10d  # loaded, because a group exists

    if not c10d.is_initialized() or c10d.get_backend() == "fake":
        return None
    store = c10d._get_default_store()
    if not _current or _current[0].store is not store:
        _current[:] = [_Comparisons(store)]
    return _current[0]


def compare_start(group: Group, name: str, described: tuple[Any, ...]) -> None:
    """Post the collective that this process starts in a group, or compare it with what another rank has posted."""
    found = _comparisons()
    if found is None or group.checked in found.stopped:
        return
    prefix = f"{_PREFIX}/{group.checked}"
    number, of_all = next(found.counts[f"{group.checked}/{group.name}"]), next(found.counts[group.name])
    own = [
        torch.distributed.get_rank(),
        _text(name, described, group.position),
        _line(),
        list(map(str, path_of_thread())),
    ]
    posted = json.dumps([own, of_all])
    first, first_of_all = json.loads(found.store.compare_set(f"{prefix}/{group.name}/{number}", "", posted))
    in_order = first_of_all == of_all
    if first[1] == own[1] and (in_order or found.store.check([_ORDER_STOPPED])):
        return
    if found.store.check([f"{prefix}/stopped"]):
        found.stopped.add(group.checked)
        return
    if first[1] == own[1]:
        first[1], own[1] = (f"{own[1]}, {n + 1} of all jitted functions" for n in (first_of_all, of_all))
    message = (
        f"{group.checked} starts different collectives on two ranks in {group!r}, at number {number + 1}:"
        f"{difference(first, own)}\n"
        "All ranks of a group must run the same collectives in the same order, or they hang or compute wrong numbers. "
        "Let a condition that differs between ranks not decide which collectives run, or reduce it first "
        "(torch.distributed.all_reduce)"
    )
    found.store.set(f"{prefix}/{group.name}/mismatch", message)
    raise RankMismatchError(message)


def raise_mismatch(group: Group, error: BaseException) -> None:
    """Raise the error of another rank, if it has not started the collective for which this rank has waited."""
    found = _comparisons() if group.checked else None
    if found is None:
        return
    key = f"{_PREFIX}/{group.checked}/{group.name}/mismatch"
    try:
        message = found.store.get(key).decode() if found.store.check([key]) else None
    except Exception:  # the process that serves the store has ended
        return
    if message is not None:
        raise RankMismatchError(message) from error


def stop_comparing(title: str) -> None:
    """Compare the collectives of a function no more, because this rank runs it eagerly."""
    found = _comparisons()
    if found is not None and title not in found.stopped:
        found.stopped.add(title)
        found.store.set(f"{_PREFIX}/{title}/stopped", "")
        stop_comparing_order()


def stop_comparing_order() -> None:
    """Compare no more in which order functions are called, because this rank runs collectives that are not counted."""
    found = _comparisons()
    if found is not None:
        found.store.set(_ORDER_STOPPED, "")


def difference(*posted: Posted) -> str:
    """Return the lines of a message that say what each rank does, by rank."""
    lines = []
    for rank, text, line, *decisions in sorted(posted, key=lambda each: each[0]):
        lines.append(f"\n  rank {rank}: {text}" + (f"  at {line}" if line else ""))
        lines += [f"\n    where {decision}" for decision in (decisions[0] if decisions else ())]
    return "".join(lines)


def _text(name: str, described: tuple[Any, ...], position: str) -> str:
    parts = []
    for x in described:
        if isinstance(x, torch.Tensor):
            parts.append(f"{x.dtype}{list(x.shape)}".removeprefix("torch."))
        else:
            parts.append(str(x).removeprefix("torch.") if isinstance(x, torch.dtype) else repr(x))
    return f"{name}({', '.join(parts)}){position and f', {position} in its program'}"


def _line() -> str:
    """Return the line of user code of the running line of a compiled program."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        lookup = sources.get(frame.f_code.co_filename)
        if lookup is not None:
            return str(lookup(frame.f_lineno) or "")
        frame = frame.f_back
    return ""
