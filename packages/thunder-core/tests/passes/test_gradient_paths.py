# SPDX-License-Identifier: Apache-2.0
"""Values on the way of gradients, found from the results and from the leaves."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

import thunder
from thunder.passes.gradient_paths import add_paths_through, gradient_path

STEPS = ["mul", "detach", "max", "sort", "equal", "cat", "cast"]


def program(steps: list[tuple[str, int, int]]) -> Any:
    """Return a function of a tensor and of its values' earlier ones."""

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        values = [x, x * 2]
        for name, i, j in steps:
            a, b = values[i % len(values)], values[j % len(values)]
            if name == "mul":
                values.append(a * b)
            elif name == "detach":
                values.append(a.detach())
            elif name == "equal":
                values.append((a == b).float())
            elif name == "cat":
                values.append(torch.cat([a, b])[:4])
            elif name == "cast":
                values.append(a.int().double() + b)
            elif name == "max":
                values += [y.to(a.dtype) for y in torch.max(a, 0, keepdim=True)]
            else:
                values += [y.to(a.dtype) for y in torch.sort(a)]
        return values

    return run


@given(
    st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 9), st.integers(0, 9)), max_size=9),
    st.sets(st.integers(0, 30)), st.integers(0, 30),
)  # fmt: skip
def test_both_directions_agree(steps: Any, chosen: set[int], middle: int) -> None:
    """The paths through some results, added in two parts, are those of the values that lead to these results."""
    jitted = thunder.jit(program(steps))
    jitted(torch.ones(4, requires_grad=True))
    operations = thunder.last_traces(jitted)[0].bound_symbols
    names = [name for op in operations for name in op.out_names]
    results = {names[i] for i in chosen if i < len(names)}
    found: set[str] = set()
    for part in (operations[:middle], operations[middle:]):
        add_paths_through(results, found, part)
    assert found == {name for name in names if not results.isdisjoint(gradient_path(operations, [name]).results)}
