# SPDX-License-Identifier: Apache-2.0
"""Minimum cuts: find the cheapest vertices of a graph whose removal leaves no path from its sources to its sinks.

The maximum flow is computed with Dinic's algorithm. A breadth-first search computes each node's distance from the
source; depth-first searches push flow along shortest paths until no more flow is possible. Each connected component of
the graph is solved separately. Programs consist of small parts with few values between them, so the time is close to
linear.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

__all__ = ["cheapest_vertices"]

V = TypeVar("V", bound=Hashable)
INFINITE = 1 << 62


class _Flow:
    """A network of directed edges with capacities. Edge `i ^ 1` is the reverse of edge `i`."""

    def __init__(self, nodes: int):
        self.edges: list[list[int]] = [[] for _ in range(nodes)]
        self.target: list[int] = []
        self.left: list[int] = []

    def connect(self, a: int, b: int, capacity: int) -> None:
        """Add an edge from `a` to `b`."""
        self.edges[a].append(len(self.target))
        self.edges[b].append(len(self.target) + 1)
        self.target += (b, a)
        self.left += (capacity, 0)

    def saturate(self, source: int, sink: int) -> None:
        """Push as much flow as possible from `source` to `sink`."""
        while (level := self._levels(source))[sink] >= 0:
            position = [0] * len(self.edges)
            while self._push(source, sink, level, position):
                pass

    def _levels(self, source: int) -> list[int]:
        level = [-1] * len(self.edges)
        level[source] = 0
        queue = deque([source])
        while queue:
            a = queue.popleft()
            for e in self.edges[a]:
                b = self.target[e]
                if level[b] < 0 and self.left[e] > 0:
                    level[b] = level[a] + 1
                    queue.append(b)
        return level

    def _push(self, source: int, sink: int, level: list[int], position: list[int]) -> bool:
        """Push flow along one path of the level graph. `position` is the index of the next edge to try at each node."""
        path: list[int] = []
        node = source
        while node != sink:
            edges = self.edges[node]
            while position[node] < len(edges):
                e = edges[position[node]]
                if self.left[e] > 0 and level[self.target[e]] == level[node] + 1:
                    break
                position[node] += 1
            else:
                if not path:
                    return False
                node = self.target[path.pop() ^ 1]
                position[node] += 1
                continue
            path.append(e)
            node = self.target[e]
        amount = min(self.left[e] for e in path)
        for e in path:
            self.left[e] -= amount
            self.left[e ^ 1] += amount
        return True

    def reaching(self, sink: int) -> set[int]:
        """Return the nodes from which more flow can still be pushed to `sink`."""
        found, stack = {sink}, [sink]
        while stack:
            for e in self.edges[stack.pop()]:
                a = self.target[e]
                if a not in found and self.left[e ^ 1] > 0:
                    found.add(a)
                    stack.append(a)
        return found


def cheapest_vertices(
    cost: Mapping[V, int], edges: Iterable[tuple[V, V]], sources: Iterable[V], sinks: Iterable[V]
) -> set[V]:
    """Return the cheapest set of vertices such that every path from a source to a sink contains one of them.

    The set may contain sources and sinks. Among cuts of equal cost, the one nearest to the sinks is returned.
    """
    following: dict[V, list[V]] = {v: [] for v in cost}
    touching: dict[V, list[V]] = {v: [] for v in cost}
    for a, b in edges:
        following[a].append(b)
        touching[a].append(b)
        touching[b].append(a)
    from_source, to_sink = set(sources), set(sinks)
    chosen: set[V] = set()
    seen: set[V] = set()
    for start in cost:
        if start in seen:
            continue
        part, stack = [], [start]
        seen.add(start)
        while stack:
            v = stack.pop()
            part.append(v)
            for w in touching[v]:
                if w not in seen:
                    seen.add(w)
                    stack.append(w)
        if len(part) > 1 or start not in from_source or start not in to_sink:
            chosen |= _cut(part, cost, following, from_source, to_sink)
        else:
            chosen.add(start)
    return chosen


def _cut(part: list[V], cost: Mapping[V, int], following: dict[V, list[V]], sources: set[V], sinks: set[V]) -> set[V]:
    """Return the cut of a component. Vertex `i` becomes an edge from its input node `2 * i` to its output node."""
    index = {v: i for i, v in enumerate(part)}
    source, sink = 2 * len(part), 2 * len(part) + 1
    flow = _Flow(2 * len(part) + 2)
    for v, i in index.items():
        flow.connect(2 * i, 2 * i + 1, cost[v])
        if v in sources:
            flow.connect(source, 2 * i, INFINITE)
        if v in sinks:
            flow.connect(2 * i + 1, sink, INFINITE)
        for w in following[v]:
            flow.connect(2 * i + 1, 2 * index[w], INFINITE)
    flow.saturate(source, sink)
    after = flow.reaching(sink)
    return {v for v, i in index.items() if 2 * i + 1 in after and 2 * i not in after}
