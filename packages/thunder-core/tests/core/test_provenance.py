# SPDX-License-Identifier: Apache-2.0
"""What a pass changed, and where lines come from."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import pytest
import torch
from recording import float_tensor, record
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import thunder
from thunder.core import prims
from thunder.core.provenance import diff_traces, provenance
from thunder.core.trace import Trace
from thunder.passes.cse import cse
from thunder.passes.dce import dce


def traced(fn: Any, *skipped: str) -> Trace:
    """The trace of `fn` on two tensors; `skipped` are names that are taken."""
    return record(fn, [float_tensor(name, 3) for name in "ab"], taken=skipped)


def program(a: Any, b: Any) -> Any:
    """With a common subexpression and a dead line."""
    prims.exp(a)
    return prims.mul(prims.sin(a), prims.add(prims.sin(a), b))


def test_names_do_not_matter() -> None:
    """The same program under other names is no difference."""
    assert diff_traces(traced(program), traced(program, "t1", "t3")) == ""
    assert diff_traces(traced(program), traced(program)) == ""


def test_what_a_pass_changed() -> None:
    """Lines that went and came, with what is around them."""
    before = traced(program)
    text = diff_traces(before, cse(dce(before)), context=0)
    assert text.splitlines() == [
        "--- f, as captured",
        "+++ f, after Common Subexpression Elimination",
        "@@ -2 +1,0 @@",
        '-  t0 = prims.exp(a)  # t0: "cpu f32[3]"',
        "@@ -4,2 +3 @@",
        '-  t2 = prims.sin(a)  # t2: "cpu f32[3]"',
        '-  t3 = prims.add(t2, b)  # t3: "cpu f32[3]"',
        '+  t3 = prims.add(t1, b)  # t3: "cpu f32[3]"',
    ]


def test_other_values_get_other_names() -> None:
    """A name that means something else in the second trace is written so that nobody mistakes it."""

    def one(a: Any, b: Any) -> Any:
        return prims.sin(prims.exp(a))

    def other(a: Any, b: Any) -> Any:
        return prims.sin(prims.add(prims.exp(a), b))

    lines = diff_traces(traced(one), traced(other)).splitlines()
    assert [line for line in lines if line.startswith("+ ")] == [
        '+  t1 = prims.add(t0, b)  # t1: "cpu f32[3]"',
        '+  t2 = prims.sin(t1)  # t2: "cpu f32[3]"',
        "+  return t2",
    ]


def test_traces_only() -> None:
    """Anything else is refused."""
    with pytest.raises(TypeError, match=r"diff_traces expects two traces, such as thunder\.last_traces"):
        diff_traces(traced(program), "text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="provenance expects the traces of one program"):
        provenance([])


def test_where_lines_come_from() -> None:
    """The pass, the operation, the user's line; forward and backward."""

    def fn(a: Any) -> Any:
        x = torch.nn.functional.silu(a)
        return x * 2

    f = thunder.jit(fn)
    f(torch.randn(3, requires_grad=True)).sum().backward()
    lines = thunder.provenance(thunder.last_traces(f))
    found = {line.operation.sym.name: line for line in lines}
    assert found["mul"].source is not None and found["mul"].source.text() == "return x * 2"
    assert found["silu"].written_by == "Transform for execution"
    assert found["silu"].origin is not None and found["silu"].origin.sym.module == "thunder.torch"
    text = str(lines)
    assert "torch.nn.functional.silu(a" in text and "for t" in text and "test_provenance.py:" in text
    backward = thunder.provenance(thunder.last_backward_traces(f))
    assert {line.source.text() for line in backward if line.source} <= {
        "x = torch.nn.functional.silu(a)",
        "return x * 2",
    }
    assert any(line.source for line in backward)


def test_passes_of_a_jitted_function() -> None:
    """Each pair of traces that follow each other can be compared."""
    f = thunder.jit(lambda a: torch.softmax(a.sin() + a.sin(), -1))
    f(torch.randn(2, 3))
    traces = thunder.last_traces(f)
    for a, b in itertools.pairwise(traces):
        assert isinstance(thunder.diff_traces(a, b), str)
    assert "torch.softmax" in thunder.diff_traces(traces[0], traces[-1])


def test_symbolic_sizes() -> None:
    """Expressions of sizes are compared like other arguments, whatever the sizes are called."""

    def one(a: Any, b: Any) -> Any:
        return (a.reshape(-1) * 2).sum() + a.shape[0] * b.shape[0]

    def other(a: Any, c: Any, b: Any) -> Any:
        return (a.reshape(-1) * 2).sum() + a.shape[0] * b.shape[0] - c.shape[0]

    x, y = torch.ones(3, 4), torch.ones(5)
    first = acquired(one, x, y)
    assert diff_traces(first, acquired(one, torch.ones(6, 7), y)) == ""
    changed = [line for line in diff_traces(first, acquired(other, x, torch.ones(2), y)).splitlines() if line[0] == "+"]
    assert any("ltorch.sub" in line for line in changed) and not any("reshape" in line for line in changed)


def acquired(fn: Any, *args: Any) -> Trace:
    """The first trace of a function with symbolic sizes."""
    jitted = thunder.jit(fn, cache="symbolic values")
    jitted(*args)
    return thunder.last_traces(jitted)[0]


class Counts(torch.nn.Module):
    """With statistics, random numbers and an attribute that it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.drop = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5)
        self.calls = 0

    def forward(self, x: Any) -> Any:
        """One layer."""
        self.calls += 1
        return {"y": self.norm(self.drop(self.linear(x)))}


def recomputed(a: Any, w: Any) -> Any:
    """A region that is computed again for backward, with its random numbers."""
    return checkpoint(lambda v: F.dropout(v @ w, 0.5).sin() @ w, a, use_reentrant=False)


def selected(a: Any) -> Any:
    """With data-dependent sizes, and special numbers."""
    return a[a > 0].sum() + a.nan_to_num(float("inf"), -float("inf")).mean()


VARIED: dict[str, tuple[Any, tuple[int, ...], dict[str, Any]]] = {
    "a module": (Counts, (4, 4), {}),
    "recomputed": (lambda: recomputed, (4, 4), {}),
    "all computed again": (lambda: lambda a, w: (a @ w).tanh().exp(), (4, 4), {"remat": "all"}),
    "symbolic sizes": (lambda: lambda a: a.reshape(-1).softmax(0) / a.shape[0], (2, 3), {"cache": "symbolic values"}),
    "selected": (lambda: selected, (2, 3), {}),
    "random numbers": (lambda: lambda a: F.dropout(a, 0.3) * torch.rand(3), (2, 3), {}),
    "writes": (lambda: lambda a: (a * 1).mul_(2)[0].add_(1), (2, 3), {}),
    "by examples": (lambda: thunder.vmap(thunder.grad(lambda v: v.sin().sum())), (2, 3), {}),
    "inside": (lambda: lambda a: torch.autograd.grad((a**3).sum(), a, create_graph=True)[0], (2, 3), {}),
    "autocast": (lambda: lambda a, w: F.linear(a, w).float(), (4, 4), {"transforms": [thunder.transforms.autocast()]}),
    "complex": (lambda: lambda a: torch.view_as_real(torch.fft.fft(a) * 1j), (2, 3), {}),
}


@pytest.mark.parametrize("name", VARIED)
def test_every_trace_of_varied_programs(name: str) -> None:
    """Its text defines its function, each pass can be compared with the one before, and each line says who wrote it."""
    make, shape, options = VARIED[name]
    fn = make()
    jitted = thunder.jit(fn, **options)
    count = 1 if isinstance(fn, torch.nn.Module) else len(inspect.signature(fn).parameters)
    found = jitted(*[torch.rand(shape).requires_grad_(name != "by examples") for _ in range(count)])
    results = [x for x in torch.utils._pytree.tree_leaves(found) if x.requires_grad]
    if results:
        results[0].sum().backward()
    forward, backward = thunder.last_traces(jitted), thunder.last_backward_traces(jitted) if results else []
    for traces in (forward, backward):
        for before, after in itertools.pairwise(traces):
            diff_traces(before, after)
            assert after.provenance is not None
        for line in provenance(traces) if traces else ():
            assert line.written_by
            made = line.operation.sym.name in ("python_return", "unpack_trivial", "unpack_saved", "python_del", "clone")
            assert made or traces is backward or line.origin is not None or line.operation.sym.name == "rng_state", line
    for trace in (*forward, *backward, *thunder.last_prologue_traces(jitted), *thunder.last_epilogue_traces(jitted)):
        namespace = trace.python_ctx()
        exec(str(trace), namespace)
        assert callable(namespace[trace.name])
