# SPDX-License-Identifier: Apache-2.0
"""Strides in eager mode of a program's values, and operations that depend on strides."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import thunder
import thunder.torch as ltorch
from thunder.core.trace import Trace
from thunder.toolkit.layouts import changed_strides, eager_strides, gradient_strides, has_fixed_strides, reads_strides
from thunder.transforms import PassContext, Transform


def test_strides_of_values() -> None:
    """Every value of a program that torch can compute on the meta device."""

    def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.conv2d(x, w).relu()
        return y, y.permute(0, 2, 3, 1), y.mean((2, 3), keepdim=True), y + x[:, :, 1:-1, 1:-1], y.flatten(1)

    for layout in (torch.contiguous_format, torch.channels_last):
        given = torch.randn(2, 3, 6, 5).to(memory_format=layout), torch.randn(3, 3, 3, 3)
        jitted = thunder.jit(program)
        expected = [x.stride() for x in jitted(*given)]
        trace = thunder.last_traces(jitted)[0]
        found = eager_strides(trace, trace.output)
        assert [found[p.name] for p in trace.output] == expected


def test_strides_of_gradients() -> None:
    """Those of the inputs, if the program depends on them."""
    x = torch.randn(2, 3, 6, 5).to(memory_format=torch.channels_last).requires_grad_()
    w = torch.randn(3, 3, 1, 1, requires_grad=True)
    every_second = torch.randn(2, 3, 6, 10)[..., ::2].requires_grad_()
    jitted = thunder.jit(lambda x, w, y: F.conv2d(x, w) * y)
    out = jitted(x, w, every_second)
    torch.autograd.grad(out.sum(), (x, w, every_second))
    trace = thunder.last_backward_traces(jitted)[-1]
    assert list(gradient_strides(trace).values()) == [x.stride(), w.stride()]
    assert gradient_strides(thunder.last_traces(jitted)[-1]) == {}


def test_operators_of_executors_are_not_run() -> None:
    """Their kernels may need memory. The strides are those of what they stand for."""

    def run(x: torch.Tensor) -> torch.Tensor:
        assert x.device.type != "meta"
        return x.mT * 2

    executor = thunder.extend.OperatorExecutor("laid_out")
    turned = executor.register_operator("turned", like=lambda x: ltorch.mul(x.mT, 2), fn=run)
    jitted = thunder.jit(lambda x: turned(x) + 1, executors=[executor])
    assert jitted(torch.randn(3, 4)).stride() == (1, 4)
    trace = thunder.last_traces(jitted)[-1]
    (found,) = eager_strides(trace, [trace.output], claimed=True).values()
    assert found == (1, 4)
    assert not eager_strides(trace, [trace.output], claimed=True, certain=True)


def test_certain_strides() -> None:
    """What only depends on operations with fixed strides does not depend on the kernels before."""
    executor = thunder.extend.OperatorExecutor("laid_out")
    turned = executor.register_operator("turned", like=lambda x: ltorch.mul(x.mT, 2), fn=lambda x: x.mT * 2)
    jitted = thunder.jit(lambda x, w: (turned(x).exp(), F.linear(turned(x), w).mT.exp()), executors=[executor])
    outs = jitted(torch.randn(3, 4), torch.randn(5, 3))
    trace = thunder.last_traces(jitted)[-1]
    unsure, sure = trace.output
    assert eager_strides(trace, [unsure, sure], claimed=True, certain=True) == {sure.name: outs[1].stride()}


def test_values_whose_strides_change() -> None:
    """All that is computed from them, up to operations with fixed strides. Some values depend on strides."""

    def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.exp()
        z = F.linear(y.mT, w)
        return y + 1, y.mT, z, z.relu(), y.sum(), x * 2, w + y.sum()

    def changed_by_exp(f: Any) -> tuple[Trace, Any]:
        jitted = thunder.jit(f)
        jitted(torch.randn(3, 4), torch.randn(5, 3))
        trace = thunder.last_traces(jitted)[0]
        return trace, changed_strides(trace, lambda op: op.flat_outs if op.sym.name == "exp" else None)

    trace, changed = changed_by_exp(program)
    assert [p.name in changed for p in trace.output] == [True, True, False, False, False, False, False]
    assert changed_by_exp(lambda x, w: x.exp().as_strided((2,), (1,)))[1] is None
    assert changed_by_exp(lambda x, w: x.as_strided((2,), (1,)))[1] == {}


class AsksForStrides(Transform):
    """Computes the strides of all values, as fusions do that are compiled ahead."""

    def transform_final(self, trace: Trace, context: PassContext) -> Trace:
        eager_strides(trace, [p for op in trace.bound_symbols for p in op.tensors()], claimed=True)
        return trace


@pytest.mark.parametrize(
    "program",
    [
        lambda x, n: (x.mT * n).exp(),
        lambda x, n: torch.where(x.mT > 0, x.mT.clamp(0, n), n),
        lambda x, n: torch.add(x.mT, x, alpha=n / 2).cumsum(0),
        lambda x, n: torch._foreach_add([x.mT], n)[0] * 2,
        lambda x, n: torch._foreach_addcmul([x.mT], [x], [x], value=-0.1 * n)[0] * 2,
        lambda x, n: F.conv2d(x[None, None].mT * n, x[None, None, :2, :2] * 0.5),
    ],
)
def test_numbers_get_no_constraints(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strides do not depend on them. The rate of a schedule would otherwise compile a program for each step."""
    monkeypatch.setattr("thunder.capture.dispatch.foreach._MULTI_TENSOR", {"cpu"})
    jitted = thunder.jit(program, transforms=[AsksForStrides()])
    x = torch.randn(4, 4)
    for n in (2, 3, 5, 7, 11):
        torch.testing.assert_close(jitted(x, n), program(x, n))
    assert thunder.cache_misses(jitted) == 3  # a number that has changed twice is an input


def test_unknown_strides() -> None:
    """Values that depend on inputs whose strides no guard checks are left out, unless their strides are fixed."""
    jitted = thunder.jit(lambda x: (x + 1, (x + 1).contiguous(), x.sum()))
    jitted(torch.randn(4, 6)[:, ::2])
    trace = thunder.last_traces(jitted)[0]
    found = eager_strides(trace, trace.output)
    assert trace.output[0].name not in found and trace.output[2].name not in found
    assert found[trace.output[1].name] == (3, 1)


def test_operations() -> None:
    """Views by memory read strides; views of elements and computations do not."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.as_strided((2, 2), (1, 1)), x.view(torch.int32), x.mT, x.reshape(-1), x.exp(), torch.linalg.qr(x)[0]

    jitted = thunder.jit(program)
    jitted(torch.randn(3, 4))
    operations = thunder.last_traces(jitted)[0].bound_symbols
    reading = {op.sym.name for op in operations if not op.sym.is_structural and reads_strides(op)}
    assert {"as_strided", "view"} <= reading and not reading & {"mT", "reshape", "exp"}
    assert all(not has_fixed_strides(op) for op in operations if op.sym.name in ("mT", "exp"))
