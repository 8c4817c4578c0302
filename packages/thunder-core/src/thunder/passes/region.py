# SPDX-License-Identifier: Apache-2.0
"""Regions of a trace: operations that run together, in one kernel, one compiled program or one captured graph.

`execution/regions.py` finds regions. This module defines them and moves views out of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any

from thunder.core import prims
from thunder.core.errors import ThunderError
from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol, OpTags

__all__ = ["Region", "flattened", "without_views"]


class Region:
    """Operations that run together, in order. `inputs` are read from outside, and `outputs` are read outside."""

    __slots__ = ("inputs", "key", "operations", "outputs")

    def __init__(self, operations: Sequence[BoundSymbol], key: Hashable, read: dict[str, int]):
        self.operations = list(operations)
        self.key = key
        made: dict[str, Proxy] = {}
        inputs: dict[str, Proxy] = {}
        inside: dict[str, int] = {}
        for bsym in self.operations:
            for p in bsym.flat_args:
                if p.name not in made:
                    inputs.setdefault(p.name, p)
            for name in set(bsym.arg_names):
                inside[name] = inside.get(name, 0) + 1
            own = set(bsym.out_names)
            made.update({p.name: p for p in bsym.flat_outs if p.name in own})
        self.inputs: tuple[Proxy, ...] = tuple(inputs.values())
        self.outputs: tuple[Proxy, ...] = tuple(
            p for name, p in made.items() if read.get(name, 0) > inside.get(name, 0)
        )

    def __len__(self) -> int:
        return len(self.operations)

    def __repr__(self) -> str:
        names = ", ".join(op.sym.name for op in self.operations[:6])
        return f"<Region of {len(self)}: {names}{', …' if len(self) > 6 else ''}>"


def flattened(operations: Iterable[BoundSymbol], takes: Callable[[BoundSymbol], bool]) -> list[BoundSymbol]:
    """Return operations that a compiler accepts, and decompose the others until it accepts all parts.

    Operations that only return inputs are omitted. An operation that the compiler rejects and that has no decomposition
    is an error.
    """
    found: list[BoundSymbol] = []
    for op in operations:
        if not op.out_names:
            continue
        if takes(op):
            found.append(op)
        elif op.subsymbols:
            found += flattened(op.subsymbols, takes)
        else:
            raise ThunderError(f"{op.sym.name} is in a region of a compiler that does not support it:\n{op}")
    return found


def without_views(
    region: Region, *, reshapes: bool = True, inside: Collection[Any] = ()
) -> tuple[list[BoundSymbol], Region, list[BoundSymbol]]:
    """Return the views before a region, the region without these views, and the views after it.

    The results of a region must not be views. To preserve aliasing, a view that is read outside is therefore computed
    outside, from its base; if it is also read inside, the region computes it too. Sometimes only a reshaped view of a
    result is read. With `reshapes`, the region then returns the result in that shape, unless this needs a copy.
    Operations whose ids are `inside` stay, although they are views.
    """
    views = _views_at_the_border(region, inside)
    if reshapes:
        views = _outside(region, views)
    inner = _without(region, views)
    ready = {p.name for p in region.inputs}
    before: list[BoundSymbol] = []
    after: list[BoundSymbol] = []
    for op in views:
        if ready.issuperset(op.arg_names):
            ready.update(op.out_names)
            before.append(op)
        else:
            after.append(op)
    return before, inner, after


def _views_at_the_border(region: Region, inside: Collection[Any]) -> list[BoundSymbol]:
    """Return the views that are read outside the region, and the bases of these views that are views themselves."""
    wanted = {p.name for p in region.outputs}
    found: list[BoundSymbol] = []
    for op in reversed(region.operations):
        if _is_view(op) and op.sym.id not in inside and any(name in wanted for name in op.out_names):
            wanted.update(op.arg_names)
            found.append(op)
    return found[::-1]


def _is_view(op: BoundSymbol) -> bool:
    """Check whether an operation is a view, e.g. `torch.reshape` that an executor calls to compute a view."""
    if OpTags.VIEW_OP in op.sym.tags:
        return True
    parts = op.subsymbols if op.sym.executor is not None else ()
    return bool(parts) and all(OpTags.VIEW_OP in part.sym.tags for part in parts)


def _outside(region: Region, views: list[BoundSymbol]) -> list[BoundSymbol]:
    """Return the views that must stay outside, because they share memory with other values that are read."""
    shared = {p.name for p in region.outputs}
    seen = Counter(name for op in views for name in op.arg_names)
    shared.update(name for name, count in seen.items() if count > 1)
    own = {name for op in region.operations for name in op.out_names}
    own -= {name for op in views for name in op.out_names}
    # A reshape of a transposed value copies it, in eager mode too. The region computes the copy instead of the value.
    reshaped = {name for op in views if _regroups(op) for name in op.arg_names} - shared
    found: list[BoundSymbol] = []
    for op in views:
        base = op.arg_names[0]
        inside = _regroups(op) or (_permutes(op) and reshaped.issuperset(op.out_names))
        if base in own and base not in shared and inside:
            own.update(op.out_names)
        else:
            found.append(op)
    return found


def _regroups(op: BoundSymbol) -> bool:
    """Check whether a view only consists of primitives that keep the order of the elements (e.g. reshape)."""
    return all(map(_regroups, op.subsymbols)) if op.subsymbols else op.sym.facts.keeps_order


def _permutes(op: BoundSymbol) -> bool:
    """Check whether a view is a permutation of dimensions."""
    return all(map(_permutes, op.subsymbols)) if op.subsymbols else op.sym is prims.transpose


def _without(region: Region, views: list[BoundSymbol]) -> Region:
    """Return the region without `views`. It returns the bases of the views instead."""
    made_outside = {name for op in views for name in op.out_names}
    inside = {p.name for p in region.outputs if p.name not in made_outside}
    inside |= {name for op in views for name in op.arg_names if name not in made_outside}
    read: dict[str, int] = dict.fromkeys(inside, 1)
    operations: list[BoundSymbol] = []
    for op in reversed(region.operations):
        if op.has_effect or not inside.isdisjoint(op.out_names):
            inside.update(op.arg_names)
            operations.append(op)
            for name in set(op.arg_names):
                read[name] = read.get(name, 0) + 1
    return Region(operations[::-1], region.key, read)
