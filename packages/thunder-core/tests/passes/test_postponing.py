# SPDX-License-Identifier: Apache-2.0
"""Operations that no decision needs come after it, if nothing that they read can change and they cannot fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder
from thunder.core import devices, dtypes, prims
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.trace import Trace
from thunder.core.verify import verify
from thunder.passes.postponing import cannot_fail, may_fail, postponed_past_decisions


def traced(fn: Callable[..., Any], *args: Any) -> Trace:
    """Return the first trace of a program that runs `fn`."""
    jitted = thunder.jit(fn, sharp_edges="error")
    jitted(*args)
    return thunder.last_traces(jitted)[0]


def order(trace: Trace) -> list[str]:
    """Return the names of the operations that compute something."""
    return [op.sym.name for op in trace.bound_symbols if not op.sym.is_structural and op.sym.name != "unpack_trivial"]


def unneeded_before(x: Any, w: Any) -> Any:
    y = x.sin() * 2
    return y.cos() if w.sum() > 0 else y


def needed_before(x: Any, w: Any) -> Any:
    y = x.sin()
    return y.cos() if (y * w).sum() > 0 else y


def draws(x: Any, w: Any) -> Any:
    y = x.sin() + torch.rand(2)
    return y.cos() if torch.rand(()) + w.sum() > 0 else y


def positions(x: Any, w: Any) -> Any:
    y = x.sin()[(w > 0).long()]
    return y.cos() if w.sum() > 0 else y


def creates(x: Any, w: Any) -> Any:
    y = torch.arange(2) * x.clone()
    return y.cos() if w.sum() > 0 else y


def twice(x: Any, w: Any) -> Any:
    y = x.sin()
    if w.sum() > 0:
        y = y.cos()
    z = w.tan()
    return y + z if z.sum() > 0 else y


CASES: dict[Callable[..., Any], list[str]] = {
    unneeded_before: ["sum", "gt", "decide", "sin", "mul", "cos"],
    needed_before: ["sin", "mul", "sum", "gt", "decide", "cos"],
    creates: ["sum", "gt", "decide", "arange", "clone", "mul", "cos"],
    twice: ["sum", "gt", "decide", "tan", "sum", "gt", "decide", "sin", "cos", "add"],
}


@pytest.mark.parametrize("fn", CASES)
def test_what_a_decision_does_not_need_comes_after_it(fn: Callable[..., Any]) -> None:
    trace = traced(fn, torch.ones(2), torch.ones(2))
    out = postponed_past_decisions(trace)
    verify(out)
    assert order(out) == CASES[fn]


def test_draws_keep_their_order() -> None:
    out = postponed_past_decisions(traced(draws, torch.ones(2), torch.ones(2)))
    verify(out)
    names = order(out)
    assert names.index("sin") > names.index("decide")
    assert [name for name in names if name in ("rand", "decide")] == ["rand", "rand", "decide"]


def test_reads_at_positions_stay() -> None:
    """They may fail, and what they need stays with them."""
    names = order(postponed_past_decisions(traced(positions, torch.ones(2), torch.ones(2))))
    assert names.index("sin") < names.index("decide")


def test_nothing_moves_past_a_write() -> None:
    def writes(x: Any, w: Any) -> Any:
        y = x.sin()
        return y + 1 if w.sum() > 0 else y

    trace = traced(writes, torch.ones(2), torch.ones(2))
    at = next(i for i, op in enumerate(trace.bound_symbols) if op.sym.name == "sin") + 1
    read = next(p for p in trace.args if p.name == "x")
    with thunder.core.state.tracectx(trace), trace.scope() as operations:
        prims.copy_(read, read)
    trace.bound_symbols[at:at] = operations
    names = order(postponed_past_decisions(trace))
    assert names.index("sin") < names.index("copy_")


def test_a_program_without_decisions_stays_as_it_is() -> None:
    trace = traced(lambda x: x.sin(), torch.ones(2))
    assert postponed_past_decisions(trace) is trace


def test_a_long_chain() -> None:
    def chain(x: Any) -> Any:
        for _ in range(2000):
            x = x + 1
        return x * 2 if x.sum() > 0 else x

    trace = traced(chain, torch.ones(2))
    assert order(postponed_past_decisions(trace)) == order(trace)


@pytest.mark.parametrize("name", ["index_put", "embedding", "embedding_backward"])
@pytest.mark.parametrize(("device", "late"), [("cpu", False), ("cuda:0", True)])
def test_wrong_positions_raise_no_error_on_a_gpu(device: str, late: bool, name: str) -> None:
    where = devices.to_device(device)
    x, values = (TensorProxy(name, shape=(4, 3), device=where, dtype=dtypes.float32) for name in ("x", "values"))
    positions = TensorProxy("positions", shape=(4,), device=where, dtype=dtypes.int64)
    trace = Trace("f", args=[x, values, positions])
    with tracectx(trace):
        if name == "index_put":
            prims.index_put(x, (positions,), values)
        elif name == "embedding":
            prims.embedding(x, positions)
        else:
            prims.embedding_backward(values, positions, 4, -1, False)
    (op,) = trace.bound_symbols
    assert may_fail(op) is not late
    assert cannot_fail(op) is late


def test_updates_of_parts_at_fixed_places_do_not_fail() -> None:
    (op,) = [op for op in traced(_sets_a_row, torch.zeros(3, 2, dtype=torch.int64)).bound_symbols if op.subsymbols]
    assert not may_fail(op)


def _sets_a_row(x: Any) -> Any:
    x[1] = 3
