# SPDX-License-Identifier: Apache-2.0
"""Regions of a trace: operations that are run together, by a kernel, a compiler or a captured graph.

`execution/regions.py` finds regions; this module defines them, and moves views out of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence

from thunder.core.errors import ThunderError
from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol, OpTags

__all__ = ["Region", "flattened", "without_views"]


class Region:
    """Operations to run together, in order, with the values they read from outside and those that others read."""

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
    """Return the operations that a compiler accepts, and the parts of those that it does not.

    Operations that only return inputs are left out. One that is neither accepted nor has parts is an error.
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


def without_views(region: Region, *, reshapes: bool = True) -> tuple[list[BoundSymbol], Region, list[BoundSymbol]]:
    """Return the views at the border of a region, to be computed before it and after it, and the region without them.

    The results of a region must not be views. A view that others read is therefore computed outside, from its
    base, so that aliasing is preserved; one that is also read inside is computed there as well. A result of the
    region that is read only under another shape is computed in that shape, unless that needs a copy (`reshapes`).
    """
    views = _views_at_the_border(region)
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


def _views_at_the_border(region: Region) -> list[BoundSymbol]:
    """Return the views that others read, and the views among their bases."""
    wanted = {p.name for p in region.outputs}
    found: list[BoundSymbol] = []
    for op in reversed(region.operations):
        if OpTags.VIEW_OP in op.sym.tags and any(name in wanted for name in op.out_names):
            wanted.update(op.arg_names)
            found.append(op)
    return found[::-1]


def _outside(region: Region, views: list[BoundSymbol]) -> list[BoundSymbol]:
    """Return the views at the border that share memory with other values that are read."""
    shared = {p.name for p in region.outputs}
    seen = Counter(name for op in views for name in op.arg_names)
    shared.update(name for name, count in seen.items() if count > 1)
    own = {name for op in region.operations for name in op.out_names}
    own -= {name for op in views for name in op.out_names}
    found: list[BoundSymbol] = []
    for op in views:
        base = op.arg_names[0]
        if base in own and base not in shared and _regroups(op):
            own.update(op.out_names)
        else:
            found.append(op)
    return found


def _regroups(op: BoundSymbol) -> bool:
    """Check whether a view consists of primitives that keep the order of the elements."""
    return all(map(_regroups, op.subsymbols)) if op.subsymbols else op.sym.facts.keeps_order


def _without(region: Region, views: list[BoundSymbol]) -> Region:
    """Return the region without `views`; it computes their bases instead."""
    made_outside = {name for op in views for name in op.out_names}
    inside = {p.name for p in region.outputs if p.name not in made_outside}
    inside |= {name for op in views for name in op.arg_names if name not in made_outside}
    read: dict[str, int] = dict.fromkeys(inside, 1)
    operations: list[BoundSymbol] = []
    for op in reversed(region.operations):
        if not inside.isdisjoint(op.out_names):
            inside.update(op.arg_names)
            operations.append(op)
            for name in set(op.arg_names):
                read[name] = read.get(name, 0) + 1
    return Region(operations[::-1], region.key, read)
