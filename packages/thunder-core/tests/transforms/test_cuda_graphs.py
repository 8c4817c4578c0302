# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs: what is captured, and when again. (Without a GPU: the bookkeeping, with graphs that are played.)"""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import thunder
from thunder.core import devices, dtypes, prims
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.trace import Trace
from thunder.core.verify import verify
from thunder.execution.claim import transform_for_execution
from thunder.extend import get_always_executors
from thunder.transforms import CUDAGraphTransform, PassContext
from thunder.transforms.captured import CapturedRegion, Launch, Memory, _summary


def test_on_the_cpu() -> None:
    """The program runs as it did, and its trace says why nothing is captured."""
    transform = CUDAGraphTransform()
    f, a = thunder.jit(lambda a: a.sin().cos(), transforms=[transform]), torch.randn(3)
    torch.testing.assert_close(f(a), a.sin().cos())
    assert transform.reason == "not captured, sin is not on a GPU"
    assert "# CUDA graphs: not captured, sin is not on a GPU" in str(thunder.last_traces(f)[-1])
    with pytest.raises(ValueError, match="min_operations is at least 1, not 0"):
        CUDAGraphTransform(min_operations=0)


def claimed(fn: Callable[..., Any], *kinds: str) -> Trace:
    """The trace of `fn` on tensors of these devices, in terms of torch's functions."""
    args = [
        TensorProxy(f"a{i}", shape=(4,), device=devices.to_device(kind), dtype=dtypes.float32)
        for i, kind in enumerate(kinds)
    ]
    trace = Trace("f", args=args)
    with tracectx(trace):
        trace.output = fn(*args)
        prims.python_return(trace.output)
    return transform_for_execution(trace, get_always_executors())[-1]


def graphs(trace: Trace, **options: Any) -> tuple[list[str], CUDAGraphTransform]:
    """The operations of a trace with graphs, by their names."""
    transform = CUDAGraphTransform(**options)
    out = transform.transform_claimed(trace, PassContext("after_execution", {}, get_always_executors()))
    verify(out)
    return [op.sym.name for op in out.bound_symbols], transform


def test_stretches() -> None:
    """Operations on a GPU side by side; a write is between them; views of what goes out are taken outside."""

    def fn(a: Any, b: Any) -> Any:
        x = prims.sin(prims.cos(a))
        prims.copy_(x, b)
        y = prims.exp(prims.sin(x))
        return prims.squeeze(prims.broadcast_in_dim(y, (1, 4), (1,)), (0,)), prims.neg(y)

    names, transform = graphs(claimed(fn, "cuda:0", "cuda:0"))
    assert transform.reason is None
    assert names[:3] == ["CUDAGraph0", "copy_", "CUDAGraph1"]
    assert names.count("CUDAGraph1") == 1 and "squeeze" in names


def test_a_seed_on_the_cpu() -> None:
    """Attention whose seed is elsewhere when it is captured stays outside."""
    shape, device = (1, 2, 8, 16), devices.to_device("cuda:0")
    args = [TensorProxy(name, shape=shape, device=device, dtype=dtypes.float16) for name in "qkv"]
    for kernel, expected in (("efficient", ["sin", "attention_dropout", "sin"]), ("flash", ["CUDAGraph0"])):
        trace = Trace("f", args=args)
        with tracectx(trace):
            q, k, v = args
            out, *_ = prims.attention_dropout(prims.sin(q), k, v, None, 0.5, True, 1.0, kernel)
            trace.output = prims.sin(out)
            prims.python_return(trace.output)
        names, _ = graphs(transform_for_execution(trace, get_always_executors())[-1])
        assert [name for name in names if name not in ("comment", "python_return")] == expected


def test_too_short() -> None:
    """One operation is launched as fast by itself."""
    names, transform = graphs(claimed(lambda a: prims.sin(a), "cuda:0"))
    assert names[:2] == ["comment", "sin"]
    assert transform.reason == "not captured, there are fewer than 2 operations"
    names, _ = graphs(claimed(lambda a: prims.sin(a), "cuda:0"), min_operations=1)
    assert names[0] == "CUDAGraph0"


class Played:
    """Stands for CUDA's graphs: a launch computes on the memory that was captured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fail: bool = False):
        self.captures: list[Sequence[torch.Tensor]] = []

        def capture(fn: Any, inputs: Sequence[Any], memory: Any) -> Any:
            if fail:
                raise RuntimeError("operation not permitted when stream is capturing")
            self.captures.append(inputs)
            outputs = [torch.empty_like(x) for x in fn(*inputs)]

            def launch() -> None:
                for memory, value in zip(outputs, fn(*inputs)):
                    memory.copy_(value)

            return Launch(launch, outputs, torch.device("cpu"))

        monkeypatch.setattr("thunder.transforms.captured.capture", capture)
        monkeypatch.setattr(Memory, "follow", lambda self, device: None)


def region() -> CapturedRegion:
    """x * w + 1."""
    return CapturedRegion("CUDAGraph0", lambda x, w: (x * w + 1,))


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stays is read where it is; what moves is copied; results are the caller's own."""
    played, run = Played(monkeypatch), region()
    weight = torch.randn(3)
    kept = []
    for i in range(6):
        x = torch.randn(3)
        (out,) = run(x, weight)
        torch.testing.assert_close(out, x * weight + 1)
        kept.append((out, x * weight + 1, x))
        with torch.no_grad():
            weight.add_(1)
        assert len(played.captures) == (0 if i == 0 else 1)
    for out, expected, _ in kept:
        torch.testing.assert_close(out, expected)
    assert played.captures[0][1] is weight and played.captures[0][0] is not kept[1][2]


def test_a_weight_that_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is captured anew, and copied from then on."""
    played, run = Played(monkeypatch), region()
    x, weight = torch.randn(3), torch.randn(3)
    for w in (weight, weight, weight, torch.randn(3), torch.randn(3), weight):
        (out,) = run(x, w)
        torch.testing.assert_close(out, x * w + 1)
    assert len(played.captures) == run.captures == 2
    assert played.captures[0][0] is x


def test_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning with the reason, once; results are right."""
    Played(monkeypatch, fail=True)
    run, x, w = region(), torch.randn(3), torch.randn(3)
    run(x, w)
    with pytest.warns(UserWarning, match="CUDAGraph0 is not captured .RuntimeError: operation not permitted"):
        (out,) = run(x, w)
    torch.testing.assert_close(out, x * w + 1)
    torch.testing.assert_close(run(x, w)[0], x * w + 1)


def test_inside_another_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a part of that."""
    played, run = Played(monkeypatch), region()
    monkeypatch.setattr("thunder.transforms.captured.is_capturing", lambda: True)
    for _ in range(3):
        run(torch.randn(3), torch.randn(3))
    assert not played.captures


def test_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same memory in another layout is copied, where layouts may differ."""
    Played(monkeypatch)
    run = CapturedRegion("CUDAGraph0", lambda x: (x * 2,), strides=(0,))
    x = torch.arange(9.0).reshape(3, 3)
    for value in (x, x, x.t(), x, x.t(), x[:1].expand(3, 3), x):
        torch.testing.assert_close(run(value)[0], value * 2)
    assert run.captures == 2


def test_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph for each, up to a limit; the rest runs as it is."""
    played = Played(monkeypatch)
    monkeypatch.setattr("thunder.transforms.captured.GRAPHS", 2)
    run = CapturedRegion("CUDAGraph0", lambda x, n: (x * n,), sizes=(0, 1))
    for _ in range(3):
        for n in (2, 3, 4):
            torch.testing.assert_close(run(torch.ones(n), n)[0], torch.full((n,), float(n)))
    assert len(played.captures) == 2
    assert run.report == "CUDAGraph0 is captured, 2 times, and calls of other sizes than its first 2 run uncaptured"


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Played:
    """Programs on the CPU are captured, with graphs that are played."""
    monkeypatch.setattr("thunder.transforms.cuda_graphs._GPU", "cpu")
    return Played(monkeypatch)


def test_training(pretended: Played) -> None:
    """Steps with BatchNorm, whose buffers are written to, and with other batch sizes; gradients in several sets."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    twin = copy.deepcopy(model)
    fast = thunder.jit(model, transforms=[CUDAGraphTransform()])
    steps = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin)]
    for i in range(12):
        x = torch.randn(4 + i % 4, 4)
        for run, step in zip((fast, twin), steps):
            (run(x)[:, i % 2].sum() if i % 3 else run(x).pow(2).mean()).backward()
            step.step()
            step.zero_grad(set_to_none=i % 2 == 0)
        torch.testing.assert_close(model.state_dict(), twin.state_dict())
    assert pretended.captures and "CUDAGraph0 is captured" in thunder.explain(fast)


def test_sets_of_gradients(pretended: Played) -> None:
    """A backward program for each set that arrives has graphs of its own; gradients may be expanded."""
    f = thunder.jit(lambda x, w: ((x @ w).sin(), (x * 2).exp()), transforms=[CUDAGraphTransform()])
    x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    for i in range(9):
        outs, expected = f(x, w), ((x @ w).sin(), (x * 2).exp())
        pick = (lambda o: o[0].sum(), lambda o: (o[1] * o[1]).sum(), lambda o: o[0].t().cos().sum() + o[1].sum())[i % 3]
        ours = torch.autograd.grad(pick(outs), [x, w], allow_unused=True)
        theirs = torch.autograd.grad(pick(expected), [x, w], allow_unused=True)
        torch.testing.assert_close(ours[0], theirs[0])
        assert theirs[1] is None or torch.allclose(ours[1], theirs[1])


def test_symbolic_sizes(pretended: Played) -> None:
    """One program, a graph for each size."""
    w = torch.randn(4, 4, requires_grad=True)
    f = thunder.jit(lambda x: (x @ w).reshape(-1, 2).relu().sum(0) / x.shape[0], transforms=[CUDAGraphTransform()],
                    cache="symbolic values")  # fmt: skip
    for n in (2, 3, 2, 3, 5, 2, 3, 5, 5):
        x = torch.randn(n, 4)
        ours = torch.autograd.grad(f(x).sum(), w)
        theirs = torch.autograd.grad(((x @ w).reshape(-1, 2).relu().sum(0) / n).sum(), w)
        torch.testing.assert_close(ours, theirs)
    assert thunder.cache_misses(f) == 1
    assert "computation: CUDAGraph0 is captured, 3 times" in thunder.explain(f)
    assert "backward: CUDAGraph0 is captured, 3 times" in thunder.explain(f)


def test_freed(pretended: Played) -> None:
    """With the jitted module go its graphs."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    transform = CUDAGraphTransform()
    fast = thunder.jit(model, transforms=[transform])
    for _ in range(3):
        fast(torch.randn(2, 4)).sum().backward()
    regions = [op.sym.fn for op in thunder.last_traces(fast)[-1].bound_symbols if isinstance(op.sym.fn, CapturedRegion)]
    assert regions and regions[0].captures
    found = weakref.ref(regions.pop())
    pretended.captures.clear()
    del fast
    gc.collect()
    assert found() is None


def test_the_first_error_is_told() -> None:
    """A capture that fails ends with an error about that: the reason is what came before."""
    try:
        try:
            raise ValueError("the cause\nand more")
        except ValueError as cause:
            raise RuntimeError("operation failed due to a previous error during capture") from cause
    except RuntimeError as error:
        assert _summary(error) == "ValueError: the cause"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    """Forward and backward, with random numbers, kept results and parameters that move."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 8))
    model.cuda()
    fast = thunder.jit(model, transforms=[CUDAGraphTransform()], executors=["torch"])  # which draws torch's numbers
    kept = []
    for i in range(6):
        x = torch.randn(4, 16, device="cuda")
        torch.manual_seed(i)
        found = fast(x)
        torch.manual_seed(i)
        expected = model(x)
        torch.testing.assert_close(found, expected)
        gradient = torch.randn_like(found)
        ours = torch.autograd.grad(found, list(model.parameters()), gradient)
        theirs = torch.autograd.grad(expected, list(model.parameters()), gradient)
        torch.testing.assert_close(ours, theirs)
        kept.append((found, expected))
    for found, expected in kept:
        torch.testing.assert_close(found, expected)
