# SPDX-License-Identifier: Apache-2.0
"""Random compositions of operators: results, gradients and writes are eager's, fused and unfused.

Each program is a list of steps over a growing list of values. It runs by the torch executor, by one that fuses all that
it can and runs it primitive by primitive, and by the executors that THUNDER_PROPERTY_EXECUTORS names
(`torch_compile,triton`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import thunder
from thunder.core import prims
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol, OpTags
from thunder.core.trace import Trace
from thunder.execution.claim import claim
from thunder.execution.regions import Region, fused, partition
from thunder.extend import FusionExecutor, get_always_executors

_FUSED = (OpTags.ELEMENTWISE_OP, OpTags.REDUCTION_OP, OpTags.SHAPE_OP, OpTags.MATMUL_OP)


class Interpreter(FusionExecutor):
    """Fuses whatever computes values, and runs a fusion's primitives one by one."""

    def fuse_rejection(self, bsym: BoundSymbol) -> str | None:
        """Composites are taken by their parts."""
        if bsym.sym.is_prim:
            return None if any(tag in bsym.sym.tags for tag in _FUSED) and not bsym.has_effect else "no arithmetic"
        below = [self.fuse_rejection(sub) for sub in bsym.subsymbols]
        return None if below and not any(below) else "a part of it is no arithmetic"

    def fusion_pass(self, trace: Trace) -> Trace:
        """One operator for each region."""
        return fused(trace, partition(trace, self.can_fuse), self._operator, "Fusion by the interpreter")

    def _operator(self, region: Region) -> list[BoundSymbol]:
        program = Trace("region", args=list(region.inputs))
        program.bound_symbols[:] = [p for op in region.operations for p in _primitives(op)]
        with tracectx(program):
            prims.python_return(region.outputs)
        program.output = region.outputs
        run = claim(program, get_always_executors()).python_callable()
        operator = self.register_temporary_operation(
            "fusion", run, inputs=region.inputs, outputs=region.outputs, bsyms=region.operations
        )
        return [operator]


def _primitives(bsym: BoundSymbol) -> list[BoundSymbol]:
    return [bsym] if bsym.sym.is_prim else [p for sub in bsym.subsymbols for p in _primitives(sub)]


INTERPRETER = Interpreter("interpreter_of_tests")
EXECUTORS: dict[str, list[Any]] = {"torch": [], "interpreter": [INTERPRETER]}
EXECUTORS.update({name: [name] for name in os.environ.get("THUNDER_PROPERTY_EXECUTORS", "").split(",") if name})


# -- steps: (values, three choices) -> a new value ---------------------------------------------------------------------
def _aligned(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """`y` made to broadcast with `x`."""
    try:
        torch.broadcast_shapes(x.shape, y.shape)
    except RuntimeError:
        return y.sum()
    return y


def _square(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a = x.reshape(-1)[:6] if x.numel() >= 6 else x.sum().expand(6)
    b = y.reshape(-1)[-6:] if y.numel() >= 6 else y.mean().expand(6)
    return a.reshape(2, 3), b.reshape(3, 2)


def _dim(x: torch.Tensor, k: int) -> int:
    return k % x.dim() if x.dim() else 0


UNARY: list[Callable[[Any], Any]] = [
    torch.sin, torch.tanh, torch.sigmoid, torch.neg, lambda x: x * 0.5, lambda x: (x * 0.1).exp(), F.relu, F.gelu,
    lambda x: x.abs() + 1, lambda x: (x * x + 1).rsqrt(), lambda x: x.float().double(), F.softplus,
    lambda x: torch.where(x > 0, x, x * 0.3), lambda x: x.clamp(-1, 1), lambda x: x.detach() * x,
]  # fmt: skip
BINARY: list[Callable[[Any, Any], Any]] = [
    torch.add, torch.sub, torch.mul, torch.maximum, lambda x, y: x / (y * y + 1), torch.atan2, torch.hypot,
    lambda x, y: torch.lerp(x, y.expand_as(x) if x.shape == torch.broadcast_shapes(x.shape, y.shape) else x, 0.3),
]  # fmt: skip
SHAPE: list[Callable[[Any, int], Any]] = [
    lambda x, k: x.reshape(-1), lambda x, k: x.unsqueeze(k % (x.dim() + 1)) if x.dim() < 3 else x.flatten(),
    lambda x, k: x.transpose(0, -1) if x.dim() else x, lambda x, k: x[..., :1] if x.dim() else x,
    lambda x, k: x.flip(-1) if x.dim() else x,
    lambda x, k: torch.cat([x, x * 2], _dim(x, k)) if 0 < x.numel() < 20 and x.dim() else x,
    lambda x, k: x.sum(_dim(x, k), keepdim=bool(k % 2)) if x.dim() else x, lambda x, k: x.mean(),
    lambda x, k: x.amax(_dim(x, k), keepdim=True) if x.dim() else x, lambda x, k: x.softmax(-1) if x.dim() else x,
    lambda x, k: F.layer_norm(x, x.shape[-1:]) if x.dim() and x.shape[-1] > 1 else x,
    lambda x, k: x.cumsum(_dim(x, k)) if x.dim() else x, lambda x, k: x.var() if x.numel() > 1 else x,
    lambda x, k: torch.stack(x.unbind(0)) if x.dim() and len(x) else x,
    lambda x, k: x.expand(2, *x.shape) if x.dim() < 3 else x,
]  # fmt: skip


def _write(x: torch.Tensor, y: torch.Tensor, k: int) -> torch.Tensor:
    """Writes to a copy, to a view of it, or through a view of a view."""
    out = x.clone()
    target = (out, out[..., :1], out.transpose(0, -1)[:1])[k % 3] if out.dim() else out
    value = y.sum() * 0.1
    if k % 2:
        target.mul_(value)
    else:
        target.add_(value)
    return out * 1 if k % 5 else target + out.sum()


def program(steps: Any, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Runs steps; the last value and another one are the result."""
    values = list(inputs)
    for kind, which, i, j, k in steps:
        x, y = values[i % len(values)], values[j % len(values)]
        if kind == "unary":
            out = UNARY[which % len(UNARY)](x)
        elif kind == "binary":
            out = BINARY[which % len(BINARY)](x, _aligned(x, y))
        elif kind == "shape":
            out = SHAPE[which % len(SHAPE)](x, k)
        elif kind == "matmul":
            a, b = _square(x, y)
            out = a @ b
        else:
            out = _write(x, y, k)
        values.append(out if out.numel() < 200 else out.mean())
    return values[-1] * 1.0, values[len(values) // 2] * 1.0


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["unary", "binary", "shape", "matmul", "write", "unary", "binary"]),
        st.integers(0, 20),
        st.integers(0, 9),
        st.integers(0, 9),
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=10,
)


def inputs() -> list[torch.Tensor]:
    """Three of different shapes, one of them strided."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 3), (3, 2), (3,))
    a, b, c = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return [x.requires_grad_() for x in (a, b.t().contiguous().t(), c)]


@pytest.mark.parametrize("executor", EXECUTORS)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(STEPS)
def test_random_programs(executor: str, steps: Any) -> None:
    """Results, gradients, and nothing written to the inputs."""
    given_, plain = inputs(), inputs()
    jitted = thunder.jit(lambda *args: program(steps, *args), executors=EXECUTORS[executor])
    ours, theirs = jitted(*given_), program(steps, *plain)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(given_, plain, rtol=0, atol=0)
    differentiable = [i for i, out in enumerate(theirs) if out.requires_grad]
    assert differentiable == [i for i, out in enumerate(ours) if out.requires_grad]
    if differentiable:
        found, expected = (
            torch.autograd.grad(sum((r[i] * r[i]).sum() for i in differentiable), leaves, allow_unused=True)
            for r, leaves in ((ours, given_), (theirs, plain))
        )
        for g, e in zip(found, expected):
            zero = torch.zeros((), dtype=torch.float64)
            torch.testing.assert_close(zero if g is None else g, zero if e is None else e, rtol=1e-7, atol=1e-9,
                                       check_stride=False)  # fmt: skip


def test_the_interpreter_fuses() -> None:
    """Else nothing would be tested of fusions."""
    jitted = thunder.jit(lambda a, b: (a.sin() * b).sum(0), executors=[INTERPRETER])
    jitted(torch.ones(2, 3), torch.ones(2, 3))
    assert [b.sym.name for b in thunder.last_traces(jitted)[-1].bound_symbols if b.sym.is_fusion] == ["fusion"]
