# SPDX-License-Identifier: Apache-2.0
"""`thunder.examine.fusions`: what a fusion says of itself, whoever made it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import thunder
from thunder.core import prims
from thunder.core.trace import Trace
from thunder.execution.regions import Region, fused, partition
from thunder.extend import FusionExecutor, deregister_executor, register_executor


class Spoken:
    """What runs a fusion, with words of its own."""

    source = "def spoken(a): ..."
    template = "heart"

    def __call__(self, a: torch.Tensor) -> Any:
        return (a.sin().sin(),)


class Fuser(FusionExecutor):
    """Sines, side by side."""

    fn: Any = None

    def fusion_pass(self, trace: Trace) -> Trace:
        def run(region: Region) -> Any:
            parts = region.operations
            where = {"inputs": region.inputs, "outputs": region.outputs, "bsyms": parts}
            return [self.register_temporary_operation("sines", self.fn, **where)]

        return fused(trace, partition(trace, lambda op: self.can_fuse(op) and bool(op.out_names)), run, "Sines")


@pytest.fixture
def fuser() -> Iterator[Fuser]:
    """A fusion executor."""
    ex = Fuser("sines_test")
    ex.register_supported(prims.sin)
    register_executor(ex)
    yield ex
    deregister_executor(ex)


def test_fusions_of_the_last_call(fuser: Fuser) -> None:
    """Name, size, operations and the executor's own words."""
    fuser.fn = Spoken()
    f = thunder.jit(lambda a: a.sin().sin() @ a, executors=[fuser])
    x = torch.ones(4, 4)
    torch.testing.assert_close(f(x), x.sin().sin() @ x)
    (found,) = thunder.examine.fusions(f)
    assert (found.name, found.executor, found.program) == ("sines", "sines_test", "forward")
    assert found.bytes == 2 * 16 * 4
    assert (found.source, found.template, found.fn) == ("def spoken(a): ...", "heart", fuser.fn)
    assert [op.sym.name for op in found.operations] == ["sin", "sin"]
    assert [p.name for p in found.inputs] == ["a"]
    assert str(found) == "sines: 2 operations, 128 bytes by heart (forward)"
    assert thunder.examine.fusions(thunder.last_traces(f)[-1])[0].name == "sines"


def test_without_a_source_the_operations_are_the_text(fuser: Fuser) -> None:
    """As a program."""
    fuser.fn = lambda a: (a.sin().sin(),)
    f = thunder.jit(lambda a: a.sin().sin(), executors=[fuser])
    f(torch.ones(4))
    (found,) = thunder.examine.fusions(f)
    assert found.template is None
    assert "def sines(a):" in found.source
    assert "ltorch.sin(a)" in found.source


def test_backward_programs_have_theirs(fuser: Fuser) -> None:
    """After those of the forward program."""
    fuser.register_supported(prims.cos)
    fuser.register_supported(prims.mul)

    def run(*inputs: torch.Tensor) -> Any:
        (a, *g) = sorted(inputs, key=lambda t: not t.requires_grad)
        return (a.detach().cos() * g[0],) if g else (a.detach().sin(),)

    fuser.fn = run
    f = thunder.jit(lambda a: a.sin(), executors=[fuser])
    x = torch.ones(3, requires_grad=True)
    f(x).sum().backward()
    assert [p.program for p in thunder.examine.fusions(f)] == ["forward", "backward"]


def test_what_has_no_traces() -> None:
    """Is refused, with what to give."""
    with pytest.raises(TypeError, match=r"Pass the object that thunder\.jit returned"):
        thunder.examine.fusions(abs)
    with pytest.raises(RuntimeError, match="Call it once"):
        thunder.examine.fusions(thunder.jit(abs))
