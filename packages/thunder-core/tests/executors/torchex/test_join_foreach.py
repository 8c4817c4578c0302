# SPDX-License-Identifier: Apache-2.0
"""Calls for lists are joined if their order has no effect, and only then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder
from thunder.capture.dispatch import foreach as capturing
from thunder.core.trace import construct
from thunder.executors.torchex.join_foreach import join_foreach

add_, mul_, mul, add, sqrt = (
    torch._foreach_add_, torch._foreach_mul_, torch._foreach_mul, torch._foreach_add, torch._foreach_sqrt,
)  # fmt: skip


@pytest.fixture(autouse=True)
def lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record calls for lists on the CPU, too, as on a GPU."""
    monkeypatch.setattr(capturing, "_MULTI_TENSOR", {"cpu"})


def reads_a_result(x: Any, y: Any, z: Any) -> Any:
    (a,) = mul([x], 2)
    (b,) = mul([a], 2)
    return a, b


def reads_a_result_in_place(x: Any, y: Any, z: Any) -> None:
    add_([x], [z])
    add_([y], [x])


def writes_what_was_read(x: Any, y: Any, z: Any) -> None:
    add_([x], [y])
    add_([y], [z])


def writes_what_an_unknown_operation_read(x: Any, y: Any, z: Any) -> None:
    old = torch.ops.aten.alias(y)
    add_([x], [old])
    add_([y], [z])


def writes_a_factor(x: Any, y: Any, z: Any) -> Any:
    factor = z[0].clone()
    mul_([x], factor)
    mul_([factor], factor)
    return factor


def one_tensor_twice(x: Any, y: Any, z: Any) -> None:
    mul_([x, x], 2)


def exchanged(x: Any, y: Any, z: Any) -> None:
    add_([x, y], [y, x])


def other_numbers(x: Any, y: Any, z: Any) -> Any:
    return *mul([x], 2), *mul([y], 2.0), *mul([z], [2.0])


def zeros_of_both_signs(x: Any, y: Any, z: Any) -> Any:
    return *mul([x], 0.0), *mul([y], -0.0)


def other_options(x: Any, y: Any, z: Any) -> Any:
    return *add([x], [y], alpha=2), *add([x], [y]), *add([x], [y], alpha=3)


def other_dtypes(x: Any, y: Any, z: Any) -> Any:
    larger = y.double()
    return *sqrt([x]), *sqrt([larger])


NOT_JOINED = [
    reads_a_result, reads_a_result_in_place, writes_what_was_read,
    writes_what_an_unknown_operation_read, writes_a_factor, one_tensor_twice, exchanged, other_numbers,
    zeros_of_both_signs, other_options, other_dtypes,
]  # fmt: skip


def calls(fn: Callable[..., Any]) -> list[tuple[str, int]]:
    """Compare with eager mode, and return the calls for lists with the numbers of their tensors."""
    draw = torch.Generator().manual_seed(0)
    ours = [torch.rand(4, generator=draw) for _ in range(3)]
    theirs = [x.clone() for x in ours]
    jitted = thunder.jit(fn, executors=["torch"], fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(jitted(*ours), fn(*theirs), rtol=0, atol=0)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    found = thunder.last_traces(jitted)[-1].bound_symbols
    return [(op.sym.name, len(op.output)) for op in found if op.sym.name.startswith("foreach")]


@pytest.mark.parametrize("fn", NOT_JOINED)
def test_what_is_not_joined(fn: Callable[..., Any]) -> None:
    found = calls(fn)
    assert len(found) > 1
    assert all(n == 1 for _, n in found)


def new_tensors(x: Any, y: Any, z: Any) -> Any:
    return mul([x, y, x], 2)


def several_calls(x: Any, y: Any, z: Any) -> Any:
    return *mul([x], [2.0]), *mul([y, z], [3.0, 4.0])


def reads_one_tensor(x: Any, y: Any, z: Any) -> None:
    add_([x, y], [z, z])


def itself(x: Any, y: Any, z: Any) -> None:
    mul_([x, y], [x, y])


def one_factor(x: Any, y: Any, z: Any) -> None:
    mul_([x, y], z[0])


def powers_of_a_number(x: Any, y: Any, z: Any) -> Any:
    return torch._foreach_pow(2.0, [x, y, z])


JOINED: dict[Callable[..., Any], list[tuple[str, int]]] = {
    new_tensors: [("foreach_mul", 3)],
    several_calls: [("foreach_mul", 3)],
    reads_one_tensor: [("foreach_add_", 2)],
    itself: [("foreach_mul_", 2)],
    one_factor: [("foreach_mul_", 2)],
    powers_of_a_number: [("foreach_pow", 3)],
}


@pytest.mark.parametrize("fn", JOINED)
def test_what_is_joined(fn: Callable[..., Any]) -> None:
    assert calls(fn) == JOINED[fn]


def test_written_memory_is_not_read_under_another_name() -> None:
    jitted = thunder.jit(reads_a_result_in_place, executors=["torch"])
    jitted(*[torch.rand(4) for _ in range(3)])
    before = next(t for t in thunder.last_traces(jitted) if t.provenance and t.provenance.name == "In-place Updates")
    first, second = [op for op in before.bound_symbols if op.sym.name == "foreach_add_"]
    with construct(before, "the input instead of its new value") as trace:
        names = {first.output[0].name: first.args[0][0]}
        trace.bound_symbols[:] = [op.substitute(names) if op is second else op for op in before.bound_symbols]
    assert first.args[0][0].name in [op for op in trace.bound_symbols if op.sym.name == "foreach_add_"][1].arg_names
    assert join_foreach(trace) is trace
