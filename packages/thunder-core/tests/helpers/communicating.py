# SPDX-License-Identifier: Apache-2.0
"""Random programs with collectives in a group of one process, which run without a process group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from recording import float_tensor, record

from thunder.core import prims
from thunder.core.groups import ONE_RANK
from thunder.core.trace import Trace
from thunder.execution.claim import transform_for_execution
from thunder.extend import get_always_executors
from thunder.passes.deletion import delete_last_used

STARTS: dict[str, Callable[[Any], Any]] = {
    "all_reduce": lambda a: prims.all_reduce(a, "sum", ONE_RANK),
    "all_gather": lambda a: prims.all_gather(a, ONE_RANK),
    "reduce_scatter": lambda a: prims.reduce_scatter(a, "sum", ONE_RANK),
    "broadcast": lambda a: prims.broadcast(a, 0, ONE_RANK),
}
OTHERS: dict[str, Callable[[Any], Any]] = {
    "sin": prims.sin,
    "square": lambda a: prims.matmul(a, a),
    "transpose": lambda a: prims.transpose(a, (1, 0)),
}


@st.composite
def programs(draw: Any, *, returned: int = 3) -> Trace:
    """A program of one matrix in which starts and waits are mixed with other operations."""
    names = [*STARTS, *OTHERS, "wait"]
    steps = draw(st.lists(st.tuples(st.sampled_from(names), st.integers(0, 9)), min_size=2, max_size=25))

    def program(a: Any) -> Any:
        values, flying = [a], []
        for name, i in steps:
            if name == "wait":
                values += [prims.wait(flying.pop(i % len(flying)))] if flying else []
            elif name in STARTS:
                flying.append(STARTS[name](values[-1 - i % len(values)]))
            else:
                values.append(OTHERS[name](values[-1 - i % len(values)]))
        values += [prims.wait(each) for each in flying]
        return tuple(values[-returned:])

    return record(program, [float_tensor("a", 3, 3)], unpack=True)


def claimed(trace: Trace) -> Trace:
    """Return a program that torch runs."""
    return transform_for_execution(trace, get_always_executors())[-1]


def results(trace: Trace) -> list[torch.Tensor]:
    """Run a claimed program."""
    a = torch.linspace(-0.5, 0.5, 9).reshape(3, 3)
    return list(delete_last_used(trace).python_callable()(a))


def starts(trace: Trace) -> list[str]:
    """Return the collectives of a trace, in order."""
    return [f"{op.sym.name} {op.out_names}" for op in trace.bound_symbols if op.sym.name in STARTS]
