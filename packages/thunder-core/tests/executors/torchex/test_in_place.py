# SPDX-License-Identifier: Apache-2.0
"""What the torch executor says of the memory of results is true for all samples of all operations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from thunder.core.strides import dense_strides
from thunder.core.symbol import BoundSymbol, map_proxies, proxies_in
from thunder.core.trace import Trace
from thunder.executors.torchex.base import ex
from thunder.tests import running
from thunder.tests.opinfos import all_opinfos


def interpreted(trace: Trace, inputs: list[torch.Tensor]) -> Iterator[tuple[BoundSymbol, dict[str, Any], Any]]:
    """Run a trace, and yield each operation of torch with all values before it and with its results."""
    values: dict[str, Any] = {p.name: x for p, x in zip(trace.args, inputs)}
    for op in trace.bound_symbols:
        if op.sym.is_structural:
            if not op.sym.is_return and op.out_names:
                return  # numbers that are read from tensors
            continue
        args, kwargs = map_proxies((op.args, op.kwargs), lambda p: values[p.name])
        assert op.sym.fn is not None
        result = op.sym.fn(*args, **kwargs)
        if op.sym.executor is ex:
            yield op, dict(values), result
        found = result if isinstance(result, (tuple, list)) else [result]
        values.update({p.name: x for p, x in zip(proxies_in(op.output), running.tensors_in(found))})


def claimed_samples(dtype: torch.dtype) -> Iterator[tuple[str, BoundSymbol, dict[str, Any], Any]]:
    """Yield the operations that torch runs for all samples, with the operator's name, all values, and results."""
    for info in all_opinfos():
        if not info.exists_for("cpu", dtype):
            continue
        for sample in info.sample_inputs("cpu", dtype):
            if not running.exists(info, sample, with_values=info.has_values):
                continue
            trace = running.execution_trace(running.trace_sample(info, sample), ())
            inputs = [*{id(x): x for x in running.tensors_in(sample)}.values()]
            with torch.no_grad():
                for op, values, result in interpreted(trace, inputs):
                    yield info.name, op, values, result


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Compare values; NaN equals NaN."""
    if a.is_floating_point() or a.is_complex():
        a, b = (torch.view_as_real(x) if x.is_complex() else x for x in (a, b))
        return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))
    return torch.equal(a, b)


DTYPES = [torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64]


def problems(op: BoundSymbol, values: dict[str, Any], result: Any) -> Iterator[str]:
    """Yield what is wrong in the answers about an operation."""
    operands = [p.name for p in op.flat_args if isinstance(values.get(p.name), torch.Tensor)]
    found = [p.name for p in op.flat_outs if p.name in op.out_names]
    pairs = zip(op.flat_outs, running.tensors_in(result))
    results = [x for p, x in pairs if p.name in found and x.layout is torch.strided and x.numel()]
    may_share = ex.memory.may_share(op)
    if may_share is not None:
        hidden = [n for n in operands if n not in may_share]
        if any(running.share_memory(x, values[n]) for x in results for n in hidden):
            yield "shares the memory of an argument"
        if not may_share and any(running.share_memory(x, y) for i, x in enumerate(results) for y in results[:i]):
            yield "has results that share memory"
    known = {n: dense_strides(values[n].shape, values[n].stride()) for n in operands}
    answer = ex.memory.strides(op, {n: s for n, s in known.items() if s is not None})
    if any(found != dense_strides(result.shape, result.stride()) for found in answer.values()):
        yield f"has the strides {result.stride()} for operands of {known}"
    if isinstance(result, torch.Tensor) and results and answer:
        yield from problems_of_out(op, values, result)


def problems_of_out(op: BoundSymbol, values: dict[str, Any], result: torch.Tensor) -> Iterator[str]:
    """Compare results in memory that exists, of its own and of each operand, with the result in new memory."""
    for operand in (None, *dict.fromkeys(op.arg_names)):
        target = op.output if operand is None else next(p for p in op.flat_args if p.name == operand)
        old = result if operand is None else values[operand]
        if not isinstance(old, torch.Tensor) or old.dtype is not result.dtype or old.shape != result.shape:
            continue
        if old.stride() != result.stride() or any(old is values[n] for n in op.arg_names if n != operand):
            continue
        new = ex.memory.written_to(op, {op.output.name: (target, frozenset({operand} - {None}))})
        if new is None:
            continue
        WRITTEN.add(new.sym.name)
        memory = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype)
        memory.copy_(torch.zeros_like(old) if operand is None else old)
        given = {**values, target.name: memory}
        args, kwargs = map_proxies((new.args, new.kwargs), lambda p, given=given: given[p.name])
        assert new.sym.fn is not None
        if new.sym.fn(*args, **kwargs) is not memory or not same_bits(memory, result):
            yield f"has another result in the memory of {operand}"


DTYPES = [torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64]
WRITTEN: set[str] = set()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_answers_about_memory_are_true(dtype: torch.dtype) -> None:
    WRITTEN.clear()
    found = [f"{name}: {call[0].sym.name} {text}" for name, *call in claimed_samples(dtype) for text in problems(*call)]
    assert not found, "\n".join(found)
    expected = {"add", "mul", "lerp", "addcdiv", "setitem_", "slice_scatter_", "index_copy_", "scatter_add_"}
    assert expected <= WRITTEN or dtype is not torch.float32


ARITHMETIC: list[tuple[Callable[..., Any], int]] = [
    (torch.add, 2), (torch.sub, 2), (torch.mul, 2), (torch.div, 2), (torch.maximum, 2), (torch.pow, 2),
    (torch.sqrt, 1), (torch.rsqrt, 1), (torch.exp, 1), (torch.log, 1), (torch.tanh, 1), (torch.sigmoid, 1),
    (functools.partial(torch.addcmul, value=0.3), 3), (functools.partial(torch.addcdiv, value=-0.3), 3),
    (torch.lerp, 3),
    (functools.partial(torch.clamp, min=0.2, max=0.7), 1), (functools.partial(torch.add, other=1e-8), 1),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_kernels_round_alike_in_the_memory_of_an_operand(dtype: torch.dtype) -> None:
    """Also where a kernel processes whole vectors, and the rest of the elements one by one."""
    generator = torch.Generator().manual_seed(0)
    for shape in [(1,), (7,), (31,), (100,), (1025,), (17, 33), (3, 5, 64)]:
        for fn, count in ARITHMETIC:
            operands = [torch.rand(shape, generator=generator).to(dtype) + 0.1 for _ in range(count)]
            expected = fn(*operands)
            for i in range(count):
                given = [x.clone() if i == j else x for j, x in enumerate(operands)]
                assert torch.equal(fn(*given, out=given[i]), expected), (fn, shape, i)
