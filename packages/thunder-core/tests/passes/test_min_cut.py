# SPDX-License-Identifier: Apache-2.0
"""Minimum cuts: the cheapest vertices between sources and sinks, against trying all of them."""

from __future__ import annotations

from itertools import chain, combinations
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from thunder.passes.min_cut import cheapest_vertices


def cuts(chosen: Any, edges: Any, sources: Any, sinks: Any) -> bool:
    """Whether no path from a source to a sink avoids the chosen vertices."""
    reached = set(sources) - set(chosen)
    while True:
        more = {b for a, b in edges if a in reached and b not in chosen} - reached
        if not more:
            return not reached & set(sinks)
        reached |= more


@st.composite
def graphs(draw: Any) -> Any:
    """A small graph with costs, sources and sinks."""
    n = draw(st.integers(1, 7))
    vertices = st.integers(0, n - 1)
    cost = {v: draw(st.integers(1, 9)) for v in range(n)}
    pairs = draw(st.lists(st.tuples(vertices, vertices), max_size=12))
    edges = [(min(a, b), max(a, b)) for a, b in pairs if a != b]
    return cost, edges, draw(st.sets(vertices, max_size=3)), draw(st.sets(vertices, max_size=3))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(graphs())
def test_it_is_the_cheapest(graph: Any) -> None:
    """It cuts, and no other choice of vertices that does costs less."""
    cost, edges, sources, sinks = graph
    found = cheapest_vertices(cost, edges, sources, sinks)
    assert cuts(found, edges, sources, sinks)
    subsets = chain.from_iterable(combinations(cost, k) for k in range(len(cost) + 1))
    least = min(sum(cost[v] for v in s) for s in subsets if cuts(s, edges, sources, sinks))
    assert sum(cost[v] for v in found) == least


def test_of_equals_the_one_nearest_to_the_sinks() -> None:
    """What is saved late is computed once."""
    assert cheapest_vertices({"a": 1, "b": 1, "c": 1}, [("a", "b"), ("b", "c")], ["a"], ["c"]) == {"c"}
    assert cheapest_vertices({"a": 1, "b": 2, "c": 2}, [("a", "b"), ("a", "c")], ["a"], ["b", "c"]) == {"a"}


def test_nothing_to_cut() -> None:
    """What depends on no source is free."""
    assert cheapest_vertices({"a": 1, "b": 5}, [("a", "b")], [], ["b"]) == set()
    assert cheapest_vertices({}, [], [], []) == set()


def test_a_long_chain_takes_no_recursion() -> None:
    """20,000 vertices in a row, and as many side by side."""
    n = 20_000
    cost = {i: 1 + (i != n // 2) for i in range(n)}
    assert cheapest_vertices(cost, [(i, i + 1) for i in range(n - 1)], [0], [n - 1]) == {n // 2}
    assert len(cheapest_vertices(cost, [], cost, cost)) == n
