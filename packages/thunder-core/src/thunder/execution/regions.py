# SPDX-License-Identifier: Apache-2.0
"""Partition a trace into regions: groups of operations that a fusion executor runs together.

`partition(trace, can_fuse)` reorders a program so that dependent operations that can be fused are adjacent. Each group
of adjacent operations is a `Region`. `fused` returns the trace in which operators replace regions.

The algorithm: each operation has a *level*. The level is that of the operands, or one more if the operation cannot be
in one region with the operations that compute the operands. Levels never decrease along a path, and increase on a path
that leaves a region and comes back. Connected operations on one level can therefore become one region without any
check. Then regions on different levels are joined if no path outside of them leads from one region to the other. The
search for such a path ends at the second region's level. Except for these searches, the time is linear. The searches
are bounded: if a search exceeds the bound, the regions are not joined.

Contract: every operation occurs once, values are computed before they are read, and random operations keep their order.
No operation is moved across an operation that writes memory or has another effect.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence

from thunder.core.nbytes import bytes_of
from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol, OpTags
from thunder.core.trace import Trace, construct
from thunder.extend import FusionExecutor
from thunder.passes.region import Region, flattened, without_views

__all__ = ["Region", "by_device", "flattened", "fused", "partition", "without_views"]

CanFuse = Callable[[BoundSymbol], Hashable]
MayJoin = Callable[[Sequence[BoundSymbol], Sequence[BoundSymbol]], bool]

# The maximal number of regions that a search for a path visits. Programs are local: a longer search is about distant
# regions, and joining distant regions would keep memory alive for long.
SEARCH_LIMIT = 400
# For horizontal joins: a reader of a tensor is compared with at most this many other readers of the tensor.
NEIGHBOURS = 2


def by_device(fuser: FusionExecutor) -> CanFuse:
    """Return a `can_fuse` for `partition`, for operations that `fuser` can fuse, in regions of one device."""

    def device(bsym: BoundSymbol) -> Hashable:
        if not bsym.out_names or not fuser.can_fuse(bsym):
            return None
        return next(p.device for p in bsym.flat_outs if isinstance(p, TensorProxy))

    return device


def partition(
    trace: Trace,
    can_fuse: CanFuse,
    *,
    may_join: MayJoin | None = None,
    horizontal: bool = True,
    max_size: int | None = None,
) -> list[BoundSymbol | Region]:
    """Return the operations of `trace` in a legal order, with fusible operations grouped into regions.

    `can_fuse(operation)` returns None or False if an operation cannot be fused, otherwise any hashable. Only operations
    with equal values share a region. E.g. the value is True for all operations, or the device, or an iteration space.
    `may_join(first, second)` may veto the union of two lists of operations. `horizontal` also joins independent regions
    that read the same tensor. `max_size` limits the operations of a region.
    """
    backward: list[frozenset[str]] = trace.info.get("backward", [])
    if backward:
        can_fuse = _apart(can_fuse, backward)
    read: dict[str, int] = {}
    for bsym in trace.bound_symbols:
        for name in set(bsym.arg_names):
            read[name] = read.get(name, 0) + 1
    parts: list[BoundSymbol | Region] = []
    segment: list[BoundSymbol] = []

    def close() -> None:
        if segment:
            found = _Segment(segment, can_fuse, may_join, math.inf if max_size is None else max_size, read)
            found.divide(horizontal)
            parts.extend(found.parts())
            segment.clear()

    for bsym in trace.bound_symbols:
        if _is_barrier(bsym):
            close()
            parts.append(bsym)
        else:
            segment.append(bsym)
    close()
    return parts


def _apart(can_fuse: CanFuse, backward: Sequence[frozenset[str]]) -> CanFuse:
    """Return a `can_fuse` that keeps backward operations apart: they compute values again to use less memory."""

    def key(bsym: BoundSymbol) -> Hashable:
        found = can_fuse(bsym)
        if found is None or found is False:
            return found
        return found, next((k for k, names in enumerate(backward) if not names.isdisjoint(bsym.out_names)), None)

    return key


def fused(
    trace: Trace,
    parts: Iterable[BoundSymbol | Region],
    replace: Callable[[Region], Sequence[BoundSymbol] | None],
    name: str,
) -> Trace:
    """Return the trace in the order of `parts`, with `replace(region)` for each region.

    If it returns None, the region's operations stay.
    """
    with construct(trace, name) as out:
        for part in parts:
            if isinstance(part, Region):
                out.bound_symbols.extend(replace(part) or part.operations)
            else:
                out.record(part)
    return out


_ORDERED = frozenset({OpTags.IN_PLACE_OP, OpTags.SIDE_EFFECT, OpTags.CHECK_OP, OpTags.UNPACK_OP})


def _is_barrier(bsym: BoundSymbol) -> bool:
    return bsym.has_effect and (
        not _ORDERED.isdisjoint(bsym.sym.tags) or any(_is_barrier(sub) for sub in bsym.subsymbols)
    )


# The operations with one of these tags keep their order among each other, but others may move across them.
_SEQUENCES = (OpTags.RANDOM_OP, OpTags.COLLECTIVE)


def _has_tag(bsym: BoundSymbol, tag: OpTags) -> bool:
    return bsym.has_effect and (tag in bsym.sym.tags or any(_has_tag(sub, tag) for sub in bsym.subsymbols))


class _Node:
    """The operations of one region, or one operation that cannot be fused (key None).

    It has predecessors and successors.
    """

    __slots__ = ("after", "before", "first", "key", "last", "level", "makes_for", "ordered", "reads_of")

    def __init__(self, index: int, key: Hashable):
        self.ordered: list[int] = [index]  # the operations of the node
        self.first = self.last = index
        self.key = key
        self.level = 0
        self.before: set[_Node] = set()
        self.after: set[_Node] = set()
        self.reads_of: set[_Node] = set()  # the subset of `before` whose values the node reads
        self.makes_for: set[_Node] = set()


class _Segment:
    """A part of the program without effects, which is being partitioned."""

    def __init__(
        self,
        operations: list[BoundSymbol],
        can_fuse: CanFuse,
        may_join: MayJoin | None,
        max_size: float,
        read: dict[str, int],
    ):
        self.operations = operations
        self.read = read  # for each value, the number of operations that read it
        self.can_fuse = can_fuse
        self.may_join = may_join
        self.max_size = max_size
        self.node_of: list[_Node] = []
        self.readers: dict[str, list[int]] = {}
        self.value: dict[str, Proxy] = {}  # the values that the node reads

    def divide(self, horizontal: bool) -> None:
        """Join nodes into regions."""
        self._connect()
        for _ in range(3):  # A join may enable another join. A further round rarely finds any.
            if not self._join_down():
                break
        if horizontal:
            self._join_across()

    def _nodes(self) -> list[_Node]:
        return list(dict.fromkeys(self.node_of))

    def _group(self, node: _Node) -> list[BoundSymbol]:
        return [self.operations[i] for i in sorted(node.ordered)]

    def _allowed(self, *nodes: _Node) -> bool:
        """Check whether the caller allows these two nodes to be one region."""
        if sum(len(node.ordered) for node in nodes) > self.max_size:
            return False
        if self.may_join is None:
            return True
        region = self._group(nodes[0])
        for node in nodes[1:]:
            more = self._group(node)
            if not self.may_join(region, more):
                return False
            region = region + more
        return True

    # -- within a level -----------------------------------------------------------------------------------------------
    def _connect(self) -> None:
        """Assign a level to each operation, and join connected operations of one level."""
        maker: dict[str, int] = {}
        last: dict[OpTags, int] = {}  # the last operation of each sequence
        for i, bsym in enumerate(self.operations):
            key = self.can_fuse(bsym)
            node = _Node(i, None if key is False else key)
            makers = [maker[name] for name in dict.fromkeys(bsym.arg_names) if name in maker]
            for p in bsym.flat_args:
                self.value[p.name] = p
            for name in dict.fromkeys(bsym.arg_names):
                self.readers.setdefault(name, []).append(i)
            for m in makers:
                _link(self.node_of[m], node, reads=True)
            for tag in _SEQUENCES:
                if _has_tag(bsym, tag):
                    if tag in last:
                        _link(self.node_of[last[tag]], node, reads=False)
                    last[tag] = i
            self.node_of.append(node)
            for name in bsym.out_names:
                maker[name] = i
            self._place(node)

    def _place(self, node: _Node) -> None:
        """Compute the level of an operation, and the region of that level that it joins."""
        if node.key is None:
            node.level = max((b.level for b in node.before), default=0)
            return
        below = [b.level + 1 for b in node.before if b.key != node.key or b not in node.reads_of]
        node.level = max((*below, *(b.level for b in node.reads_of if b.key == node.key)), default=0)
        own = [b for b in node.reads_of if b.key == node.key and b.level == node.level]
        own.sort(key=lambda b: b.first)
        if own and not self._allowed(*own, node):
            node.level += 1
            return
        for b in own:
            node = self._join(b, node)

    def _join(self, a: _Node, b: _Node) -> _Node:
        """Merge two nodes. The larger node absorbs the other. The caller sets the level."""
        if len(a.ordered) + len(a.before) + len(a.after) < len(b.ordered) + len(b.before) + len(b.after):
            a, b = b, a
        for i in b.ordered:
            self.node_of[i] = a
        a.ordered += b.ordered
        a.first, a.last = min(a.first, b.first), max(a.last, b.last)
        for x in b.before:
            x.after.discard(b)
            if x is not a:
                _link(x, a, reads=x in b.reads_of)
            x.makes_for.discard(b)
        for x in b.after:
            x.before.discard(b)
            if x is not a:
                _link(a, x, reads=x in b.makes_for)
            x.reads_of.discard(b)
        for linked in (a.before, a.after, a.reads_of, a.makes_for):
            linked.discard(a)
            linked.discard(b)
        return a

    # -- across levels ------------------------------------------------------------------------------------------------
    def _join_down(self) -> bool:
        """Join regions with their readers. Return whether any regions were joined."""
        joined = False
        for node in self._nodes():
            if node.key is None or self.node_of[node.first] is not node:
                continue
            for maker in sorted((b for b in node.reads_of if b.key == node.key), key=lambda b: -b.last):
                if maker in node.reads_of and self._may_follow(maker, node):
                    node = self._join(maker, node)
                    joined = True
        return joined

    def _may_follow(self, a: _Node, b: _Node) -> bool:
        """Check whether `b`, which reads from `a`, can be one region with `a`. Set the level of that region."""
        between: set[_Node] | None = set()
        if a.after != {b} and b.before != {a}:
            between = _reached(a, b, b.level)
        if between is None or not self._allowed(a, b) or self._holds_memory(a, b):
            return False
        if b.before == {a}:
            b.level = a.level
        else:
            for x in between:  # they are now also successors of `b`
                x.level = max(x.level, b.level)
            a.level = b.level
        return True

    def _holds_memory(self, a: _Node, b: _Node) -> bool:
        """Check whether delaying `a` until `b` keeps more memory alive than it saves."""
        if a.level == b.level or b.before == {a}:
            return False
        members = set(a.ordered)
        made = {p.name: p for i in members for p in self.operations[i].flat_outs}
        read = {p.name: p for i in members for p in self.operations[i].flat_args if p.name not in made}
        freed = sum(bytes_of(p) for name, p in read.items() if not self._read_outside(name, members))
        kept = sum(bytes_of(p) for name, p in made.items() if self._read_outside(name, members))
        return freed > kept

    def _read_outside(self, name: str, members: set[int]) -> bool:
        readers = self.readers.get(name, [])
        return self.read.get(name, 0) > len(readers) or not members.issuperset(readers)

    # -- horizontally -------------------------------------------------------------------------------------------------
    def _join_across(self) -> None:
        """Join independent regions that read the same tensor."""
        stay = [0]  # for each index, the number of unfused operations before it
        for op, node in zip(self.operations, self.node_of):
            stay.append(stay[-1] + (node.key is None and OpTags.VIEW_OP not in op.sym.tags))
        for name, readers in list(self.readers.items()):
            found: dict[Hashable, deque[_Node]] = {}
            for node in dict.fromkeys(self.node_of[i] for i in readers):
                if node.key is None or self.node_of[node.first] is not node:
                    continue
                others = found.setdefault(node.key, deque(maxlen=NEIGHBOURS))
                for i, other in enumerate(others):
                    distant = stay[max(node.first, other.first)] > stay[min(node.last, other.last)]
                    if (not distant or self._worth_sharing(name, other, node)) and self._beside(other, node):
                        others[i] = self._join(other, node)
                        break
                else:
                    others.append(node)

    def _worth_sharing(self, name: str, *nodes: _Node) -> bool:
        """Check whether a tensor that regions share is large compared with their results.

        Otherwise joining gains nothing.
        """
        shared = bytes_of(self.value[name])
        return all(shared * 4 >= self._made(node) for node in nodes)

    def _made(self, node: _Node) -> int:
        """Return the bytes of a region's results that other regions read."""
        members = set(node.ordered)
        made = [p for i in members for p in self.operations[i].flat_outs]
        return sum(bytes_of(p) for p in made if self._read_outside(p.name, members))

    def _beside(self, a: _Node, b: _Node) -> bool:
        """Check whether independent regions can be one region. Set the level of that region."""
        if a.level > b.level:
            a, b = b, a
        if b in a.after or a in b.after or not self._allowed(a, b):
            return False
        between = _reached(a, b, b.level)
        if between is None or _reached(b, a, a.level) is None or self._holds_memory(a, b):
            return False
        for x in between:  # they are now also successors of `b`
            x.level = max(x.level, b.level)
        a.level = b.level
        return True

    # -- the result ---------------------------------------------------------------------------------------------------
    def parts(self) -> list[BoundSymbol | Region]:
        """Return regions and single operations in a legal order, close to the program's order."""
        nodes = self._nodes()
        waits = {node: len(node.before) for node in nodes}
        ready = [(node.last, node.first) for node in nodes if not node.before]
        heapq.heapify(ready)
        parts: list[BoundSymbol | Region] = []
        while ready:
            node = self.node_of[heapq.heappop(ready)[1]]
            if node.key is None:
                parts.append(self.operations[node.first])
            else:
                parts.append(Region(self._group(node), node.key, self.read))
            for x in node.after:
                waits[x] -= 1
                if not waits[x]:
                    heapq.heappush(ready, (x.last, x.first))
        assert not any(waits.values()), "a cycle of regions"
        return parts


def _link(a: _Node, b: _Node, *, reads: bool) -> None:
    a.after.add(b)
    b.before.add(a)
    if reads:
        a.makes_for.add(b)
        b.reads_of.add(a)


def _reached(a: _Node, b: _Node, level: int) -> set[_Node] | None:
    """Return the nodes after `a` up to `level`, without `b`; None if they lead to `b` or if there are too many."""
    seen = {x for x in a.after if x is not b and x.level <= level}
    todo = list(seen)
    while todo:
        x = todo.pop()
        if b in x.after or len(seen) > SEARCH_LIMIT:
            return None
        for y in x.after:
            if y.level <= level and y not in seen:
                seen.add(y)
                todo.append(y)
    return seen
