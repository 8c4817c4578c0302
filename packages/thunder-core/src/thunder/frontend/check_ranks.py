# SPDX-License-Identifier: Apache-2.0
"""The option `check_ranks`: compare the collectives of the programs of all ranks before they run for the first time.

Ranks that run different collectives hang, or compute wrong numbers without an error. At the first call of a jitted
callable, each rank posts the texts of its collectives to the store of the process groups, and reads those of the other
members of its groups. The comparison itself runs no collective. A rank that compiles again later does not compare its
program, so it never waits for a rank that does not compile. Instead, each collective is compared when it starts
(`runtime/rank_checks.py`).
"""

from __future__ import annotations

import datetime
import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from thunder.core import dtypes
from thunder.core.errors import RankMismatchError
from thunder.core.groups import Group
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, OpTags
from thunder.core.trace import Trace, construct
from thunder.runtime.rank_checks import difference
from thunder.torch.private import timeout_of_group

__all__ = ["TIMEOUT", "check_groups", "check_ranks", "is_distributed", "numbered_for_checks", "text_of_collective"]

#: The most seconds that a rank waits for the first calls of the other ranks. It waits no longer than a collective.
TIMEOUT = 300.0

# Different ranks call these with different arguments, or do not call them at all.
_OF_PAIRS = frozenset({"send", "receive"})
_WITHOUT_SHAPE = frozenset({"all_to_all", "scatter_from"})

_first_calls: Counter[str] = Counter()

Lines = dict[str, list[tuple[str, str]]]  # by the name of the group: each collective, and the line that calls it


def is_distributed() -> bool:
    """Check whether there are process groups whose ranks have a common store."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    return bool(distributed.get_world_size() > 1 and distributed.get_backend() != "fake")


def check_groups(title: str, trace: Trace) -> None:
    """Let the ranks compare the collectives of a captured program as they start."""
    stack = [*trace.bound_symbols]
    while stack:
        op = stack.pop()
        stack += op.subsymbols
        for x in op.args:
            if isinstance(x, Group) and x.size > 1:
                x.checked = title


def numbered_for_checks(trace: Trace) -> Trace:
    """Return an executable trace whose compared collectives know their position among those of their group."""

    def group_of(op: BoundSymbol) -> Group | None:
        is_start = OpTags.COLLECTIVE in op.sym.tags and op.sym.name not in _OF_PAIRS
        return next((x for x in op.args if isinstance(x, Group) and x.checked), None) if is_start else None

    groups = [group_of(op) for op in trace.bound_symbols]
    totals = Counter(group.name for group in groups if group is not None)
    if not totals:
        return trace
    numbers: Counter[str] = Counter()
    with construct(trace, "Number Compared Collectives") as out:
        for op, group in zip(trace.bound_symbols, groups):
            if group is not None:
                numbers[group.name] += 1
                position = f"{numbers[group.name]} of {totals[group.name]}"
                new = Group(group.name, group.ranks, group.description, group.checked, position)
                op = op.replace(args=tuple([new if x is group else x for x in op.args]))
            out.bound_symbols.append(op)
    return out


def check_ranks(title: str, programs: Sequence[Trace], eager: str | None = None) -> None:
    """Compare the collectives of `programs` with those of the other ranks, and raise an error if they differ.

    `eager` is the reason if this rank runs the callable eagerly, which the other ranks then report.
    """
    import torch.distributed.distributed_c10d as c10d

    _first_calls[title] += 1
    prefix = f"thunder/check_ranks/{title}/{_first_calls[title]}"
    store, rank = c10d._get_default_store(), c10d.get_rank()
    lines, groups = _collectives(programs)
    store.set(f"{prefix}/{rank}", json.dumps({"lines": lines, "eager": eager}))
    others = sorted({r for group in groups.values() for r in group.ranks} - {rank})
    posted = {other: _posted_by(other, f"{prefix}/{other}", store, title) for other in others}
    for name, group in groups.items():
        for other in group.ranks:
            if other != rank:
                _compare(title, group, (rank, lines[name]), (other, posted[other]))


def _posted_by(rank: int, key: str, store: Any, title: str) -> dict[str, Any]:
    seconds = min(TIMEOUT, timeout_of_group() or TIMEOUT)
    try:
        store.wait([key], datetime.timedelta(seconds=seconds))
    except Exception as error:
        raise RankMismatchError(
            f"{title} communicates with rank {rank}, which has not called it within {seconds:g} s. All ranks of a "
            "group must call the same jitted functions in the same order"
        ) from error
    return json.loads(store.get(key))  # type: ignore[no-any-return]


def _collectives(programs: Sequence[Trace]) -> tuple[Lines, dict[str, Group]]:
    lines: Lines = {}
    groups: dict[str, Group] = {}
    stack = [op for trace in reversed(programs) for op in reversed(trace.bound_symbols)]
    while stack:
        op = stack.pop()
        if OpTags.COLLECTIVE not in op.sym.tags:
            stack += reversed(op.subsymbols if op.has_effect else ())
            continue
        group = next((x for x in op.args if isinstance(x, Group)), None)
        if group is not None and group.size > 1 and op.sym.name not in _OF_PAIRS:
            groups[group.name] = group
            lines.setdefault(group.name, []).append((text_of_collective(op), str(op.source or "")))
    return lines, groups


def text_of_collective(op: BoundSymbol) -> str:
    """Return the text of a collective, as far as it is equal on all ranks: without names of values and devices."""
    operand = next((x for x in op.args if isinstance(x, TensorProxy)), None)
    parts: list[str] = []
    if operand is not None:
        shape = "" if op.sym.name in _WITHOUT_SHAPE else str(list(operand.shape))
        parts = [f"{dtypes.to_torch_dtype(operand.dtype)}{shape}".removeprefix("torch.")]
    parts += [repr(x) for x in op.args if isinstance(x, (str, int)) and not isinstance(x, TensorProxy)]
    return f"{op.sym.name}({', '.join(parts)})"


def _compare(title: str, group: Group, own: tuple[int, Any], other: tuple[int, dict[str, Any]]) -> None:
    rank, mine = own
    other_rank, posted = other
    if posted["eager"] is not None:
        raise RankMismatchError(
            f"{title} is compiled on rank {rank}, and runs eagerly on rank {other_rank}: {posted['eager']}"
        )
    theirs = posted["lines"].get(group.name, [])
    for i in range(max(len(mine), len(theirs))):
        (ours, at), (others, there) = (x[i] if i < len(x) else ("nothing", "") for x in (mine, theirs))
        if ours != others:
            listed = difference([rank, ours, at], [other_rank, others, there])
            raise RankMismatchError(
                f"the collectives of {title} differ between ranks in {group!r}, at number {i + 1}:{listed}\n"
                "All ranks of a group must run the same collectives in the same order, or they hang or compute wrong "
                "numbers. Let a condition that differs between ranks not decide which collectives run"
            )
