# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs: what is captured, and that programs compute the same. (Without a GPU, graphs are played.)"""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from outcomes import in_threads
from played_graphs import Played, always
from torch.nn import functional as F

import thunder
import thunder.torch as ltorch
from thunder.core import devices, dtypes, prims
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.trace import Trace
from thunder.core.verify import verify
from thunder.execution.claim import transform_for_execution
from thunder.extend import NewResults, OperatorExecutor, get_always_executors
from thunder.transforms import CUDAGraphTransform, PassContext
from thunder.transforms.captured_region import CapturedRegion


def test_on_the_cpu() -> None:
    """The program runs as it did, and its trace says why nothing is captured."""
    transform = CUDAGraphTransform()
    f, a = thunder.jit(lambda a: a.sin().cos(), transforms=[transform]), torch.randn(3)
    torch.testing.assert_close(f(a), a.sin().cos())
    assert transform.reason == "not captured, sin is not on a GPU"
    assert "# CUDA graphs: not captured, sin is not on a GPU" in str(thunder.last_traces(f)[-1])
    with pytest.raises(ValueError, match="min_operations is a whole number, at least 1, not 0"):
        CUDAGraphTransform(min_operations=0)


def claimed(fn: Callable[..., Any], *kinds: str, size: int = 4) -> Trace:
    """The trace of `fn` on tensors of these devices, in terms of torch's functions."""
    args = [
        TensorProxy(f"a{i}", shape=(size,), device=devices.to_device(kind), dtype=dtypes.float32)
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
    out = transform.transform_final(trace, PassContext("final", {}, get_always_executors()))
    verify(out)
    return [op.sym.name for op in out.bound_symbols], transform


def test_stretches() -> None:
    """Operations on a GPU side by side, with writes; views of what goes out are taken outside."""

    def fn(a: Any, b: Any) -> Any:
        x = prims.sin(prims.cos(a))
        prims.copy_(x, b)
        y = prims.exp(prims.sin(x))
        return prims.squeeze(prims.broadcast_in_dim(y, (1, 4), (1,)), (0,)), prims.neg(y)

    names, transform = graphs(claimed(fn, "cuda:0", "cuda:0"))
    assert transform.reason is None
    assert names[0] == "CUDAGraph0"
    assert not {"sin", "cos", "copy_", "exp", "neg"} & set(names) and "squeeze" in names


def test_large_results_are_computed_behind_a_graph() -> None:
    """If few operations compute them, they are not copied out of its memory; large values inside are in it."""

    def fn(a: Any) -> Any:
        large = prims.sin(prims.cos(a))
        x = prims.exp(prims.tanh(large))
        logits = prims.neg(x)
        return prims.squeeze(prims.broadcast_in_dim(logits, (1, size), (1,)), (0,)), prims.sum(logits, (0,))

    def late(a: Any) -> Any:
        result = prims.neg(prims.sin(prims.cos(a)))
        x = result
        for _ in range(17):
            x = prims.sin(x)
        return result, prims.sum(x, (0,))

    size = 1 << 22
    names, _ = graphs(claimed(fn, "cuda:0", size=size))
    assert [name for name in names if name in ("CUDAGraph0", "exp", "neg", "sum")] == ["CUDAGraph0", "neg", "sum"]
    names, _ = graphs(claimed(late, "cuda:0", size=size))
    assert not {"neg", "sin", "sum"} & set(names)
    size = 4
    names, _ = graphs(claimed(fn, "cuda:0", size=size))
    assert not {"exp", "neg", "sum"} & set(names)


def test_large_values_that_are_not_returned_stay_in_a_graph() -> None:
    """A change of the order in memory, of which the result may be the value itself, does not make it a result."""

    def fn(a: Any) -> Any:
        large = prims.sin(prims.cos(a))
        x = prims.exp(prims.stride_order(large, (0,)))
        return prims.sum(prims.tanh(x), (0,))

    names, _ = graphs(claimed(fn, "cuda:0", size=1 << 22))
    assert not {"sin", "exp", "stride_order", "tanh", "sum"} & set(names)


def test_operations_on_the_host_move_aside() -> None:
    """They do not end a stretch if they can run before it or behind it, and do not depend on the order."""

    def counted(a: Any, step: Any) -> Any:
        x = prims.sin(prims.cos(a))
        prims.copy_(prims.neg(step), step)
        number = prims.full((), 2.0, device=devices.to_device("cpu"), dtype=dtypes.float32)
        return prims.exp(prims.sin(x)), number

    names, _ = graphs(claimed(counted, "cuda:0", "cpu"))
    assert names == ["neg", "full", "CUDAGraph0", "copy_", "python_return"]

    def read(a: Any, step: Any) -> Any:
        x = prims.sin(prims.cos(a))
        last = prims.item(prims.sum(step, (0,)))
        prims.copy_(prims.neg(step), step)
        new = prims.item(prims.sum(step, (0,)))
        return prims.exp(prims.sin(x)), last, new

    names, _ = graphs(claimed(read, "cuda:0", "cpu"))
    assert names[:4] == ["sum", "item", "neg", "CUDAGraph0"]
    assert names.index("copy_") < names.index("sum", 1)


def test_grouped_products() -> None:
    """Captured where a kernel reads the ends of groups on the GPU: in bfloat16, or if there are no groups of rows."""
    device = devices.to_device("cuda:0")

    def fn(a: Any, b: Any, ends: Any) -> Any:
        return prims.sin(ltorch.grouped_mm(prims.sin(a), b, ends))

    for dtype, rows, expected in (
        (dtypes.bfloat16, (32, 16), ["CUDAGraph0"]),
        (dtypes.float32, (32, 16), ["sin", "_grouped_mm", "sin"]),
        (dtypes.float32, (4, 32, 16), ["CUDAGraph0"]),
    ):
        a, b = (TensorProxy(n, shape=s, device=device, dtype=dtype) for n, s in (("a", rows), ("b", (4, 16, 24))))
        ends = TensorProxy("ends", shape=(4,), device=device, dtype=dtypes.int32) if len(rows) == 2 else None
        trace = Trace("f", args=[a, b] if ends is None else [a, b, ends])
        with tracectx(trace):
            trace.output = fn(a, b, ends)
            prims.python_return(trace.output)
        names, _ = graphs(transform_for_execution(trace, get_always_executors())[-1])
        assert [name for name in names if name not in ("comment", "python_return")] == expected


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
    assert transform.reason == "not captured: there are fewer than 2 operations"
    names, _ = graphs(claimed(lambda a: prims.sin(a), "cuda:0"), min_operations=1)
    assert names[0] == "CUDAGraph0"


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
    for n in (2, 3, 2, 3, 5, 2, 3, 5, 5, 2, 3, 5):
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


def test_operators_without_a_symbol(pretended: Played) -> None:
    """They are captured, unless they wait for the device, draw, or copy from the host."""

    def counts(x: Any) -> Any:
        found = torch.histc(x.sin(), bins=4, min=-1, max=1)
        return (found * 2).cumsum(0)

    def places(x: Any) -> Any:
        return torch.tensor([[1.0, 2.0, 3.0]]) * x.sin().cos() + torch.tensor([4])

    for fn, expected in ((counts, True), (places, False)):
        fast = always(fn)
        for k in range(4):
            x = torch.full((3,), 0.1 * k)
            assert torch.equal(fast(x), fn(x))
        names = [op.sym.name for op in thunder.last_traces(fast)[-1].bound_symbols]
        assert ("tensor" not in names) == expected
        assert "CUDAGraph0" in names
        assert "histc" not in names


def test_gradients_of_operators_without_a_symbol(device: str) -> None:
    def gradient(x: Any, g: Any) -> Any:
        y = x.detach().requires_grad_()
        return torch.autograd.grad(torch.renorm(y * 2, 2, 0, 1.0), y, g)[0] * 2

    fast = captured(gradient)
    for _ in range(4):
        x, g = torch.randn(3, 4, device=device), torch.randn(3, 4, device=device)
        assert torch.equal(fast(x, g), gradient(x, g))
    assert captures(fast) == 1
    (graph,) = [op for op in thunder.last_traces(fast)[-1].bound_symbols if isinstance(op.sym.fn, CapturedRegion)]
    assert "renorm_vjp" in [op.sym.name for op in graph.subsymbols]


# -- programs on a GPU, or where there is none with graphs that are played ---------------------------------------------
def captured(fn: Any, **options: Any) -> Any:
    """`fn` with CUDA graphs; its executor draws the random numbers that torch does."""
    return thunder.jit(fn, transforms=[CUDAGraphTransform()], executors=["torch"], **options)


def captures(fn: Any) -> int:
    """How many graphs were captured in the forward program, and that none failed."""
    traces = [thunder.last_traces(fn)[-1], *(thunder.last_backward_traces(fn) or [])[-1:]]
    regions = [op.sym.fn for t in traces for op in t.bound_symbols if isinstance(op.sym.fn, CapturedRegion)]
    assert regions and not any(r.failed for r in regions)
    return sum(r.captures for r in regions)


def test_kept_results(device: str) -> None:
    """Forward and backward; earlier results stay what they were."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 8)).to(device)
    fast = captured(model)
    kept = []
    for _ in range(6):
        x = torch.randn(4, 16, device=device)
        found, expected = fast(x), model(x)
        gradient = torch.randn_like(found)
        ours = torch.autograd.grad(found, list(model.parameters()), gradient)
        theirs = torch.autograd.grad(expected, list(model.parameters()), gradient)
        kept.append((found, expected, ours, theirs))
    for found, expected, ours, theirs in kept:
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(ours, theirs)
    assert captures(fast) >= 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="numbers that are drawn while a graph is played")
def test_random_numbers() -> None:
    """Are torch's, whatever was drawn between two calls, and repeat with the generator's state."""
    fast = captured(lambda x: F.dropout(x.sin(), 0.3).cos() + torch.rand_like(x))
    x = torch.randn(64, 16, device="cuda")
    for i in range(5):
        results = []
        for run in (fast, lambda x: F.dropout(x.sin(), 0.3).cos() + torch.rand_like(x)):
            torch.manual_seed(i)
            first = run(x)
            between = torch.rand(i + 1, device="cuda")
            results.append((first, between, run(x), torch.rand(3, device="cuda")))
        torch.testing.assert_close(*results, rtol=0, atol=0)
    assert captures(fast) == 1


def test_backward_twice(device: str) -> None:
    """`retain_graph`, and gradients of gradients."""
    fn = lambda x, w: ((x @ w).sin() @ w).tanh()  # noqa: E731
    fast = captured(fn)
    w = torch.randn(5, 5, device=device, dtype=torch.float64, requires_grad=True)
    for _ in range(4):
        x = torch.randn(3, 5, device=device, dtype=torch.float64, requires_grad=True)
        found: list[Any] = []
        for run in (fast, fn):
            out = run(x, w)
            first = torch.autograd.grad(out.sum(), [x, w], retain_graph=True)
            again = torch.autograd.grad(out.sum(), [x, w], retain_graph=True)
            created = torch.autograd.grad(out.square().sum(), [x, w], create_graph=True)
            second = torch.autograd.grad(sum(g.square().sum() for g in created), [x, w])
            found.append((first, again, created, second))
        torch.testing.assert_close(*found)


def test_parameters_that_are_replaced(device: str) -> None:
    """By others, by writes to them, by a state dict, by other data."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4)).to(device)
    fast = captured(model)
    x = torch.randn(2, 4, device=device)
    state = {name: torch.randn_like(p) for name, p in model.state_dict().items()}
    first: Any = model[0]
    for i in range(12):
        if i == 3:
            first.weight = torch.nn.Parameter(torch.randn(4, 4, device=device))
        if i == 5:
            model.load_state_dict(state)
        if i == 7:
            first.weight.data = torch.randn(4, 4, device=device)
        if i == 9:
            first.weight.data = torch.randn(4, 4, device=device).t()
        torch.testing.assert_close(fast(x), model(x))
        for ours, theirs in zip(
            torch.autograd.grad(fast(x).sum(), list(model.parameters())),
            torch.autograd.grad(model(x).sum(), list(model.parameters())),
        ):
            torch.testing.assert_close(ours, theirs)


def test_accumulating(device: str) -> None:
    """Gradients add up in memory that graphs do not know of; a hook sees each."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).to(device)
    twin, seen = copy.deepcopy(model), []
    model[0].weight.register_hook(lambda g: seen.append(g.clone()))
    fast = captured(model)
    for i in range(6):
        x = torch.randn(3, 4, device=device)
        fast(x).pow(2).sum().backward()
        twin(x).pow(2).sum().backward()
        for p, q in zip(model.parameters(), twin.parameters()):
            torch.testing.assert_close(p.grad, q.grad)
        if i == 3:
            model.zero_grad(set_to_none=False)
            twin.zero_grad()
    assert len(seen) == 6


def test_what_is_returned_of_inputs(device: str) -> None:
    """Inputs, views of inputs and of results, the same result twice, nothing."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        z = (x * 2 + y).sin().cos()
        return z, z[0], x, x.t(), {"z": z, "none": None, "sum": z.sum(), "empty": z[:0]}

    fast = captured(fn)
    for i in range(5):
        x, y = torch.randn(3, 3, device=device), torch.randn(3, 3, device=device)
        x = x.t() if i % 2 else x
        z, first, same, turned, more = fast(x, y)
        torch.testing.assert_close((z, first, same, turned, more), fn(x, y))
        assert same is x and more["z"] is z and turned.data_ptr() == x.data_ptr()
        z.add_(1)
        torch.testing.assert_close(first, z[0])


def test_reshaped_results(device: str) -> None:
    """A result and its view share memory, although torch computes the view by a function that may copy."""
    fast = captured(lambda x: ((y := x.exp().sin()), y.view(-1)))
    for _ in range(5):
        y, flat = fast(torch.randn(3, 4, device=device))
        y.add_(1)
        torch.testing.assert_close(flat, y.view(-1))


def test_writes(device: str) -> None:
    """To arguments, and to what the graph reads."""

    def fn(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        y = (x.sin() * 2).cos()
        cache.mul_(0.5).add_(y)
        return (cache.exp() + y).tanh()

    fast = captured(fn)
    ours, theirs = torch.zeros(4, device=device), torch.zeros(4, device=device)
    for _ in range(6):
        x = torch.randn(4, device=device)
        torch.testing.assert_close(fast(ours, x), fn(theirs, x))
        torch.testing.assert_close(ours, theirs)


def test_one_tensor_twice(device: str) -> None:
    """Arguments that were one tensor, overlap, or are broadcast."""
    fn = lambda a, b: (a * b + a).sin() * b  # noqa: E731
    fast = captured(fn)
    base = torch.randn(8, device=device)
    pairs = [(base[:4], base[4:]), (base[:4], base[:4]), (base[:4], base[2:6]), (base[:1].expand(4), base[::2])]
    for _ in range(3):
        for a, b in pairs:
            torch.testing.assert_close(fast(a, b), fn(a, b))


def test_an_early_wait(device: str) -> None:
    """What waits for the device is between two stretches."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.sin().cos()
        rows = y.sum(1).gt(0).nonzero().squeeze(1)
        return (y[rows].exp() * 2).sum() + y.tanh().sum()

    fast = captured(fn)
    for _ in range(4):
        x = torch.randn(6, 3, device=device)
        torch.testing.assert_close(fast(x), fn(x))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_streams_and_threads() -> None:
    """Launches of other streams and threads wait for each other's memory."""
    fn = lambda x, w: ((x @ w).sin() @ w).cos() @ w  # noqa: E731
    fast = captured(fn)
    w = torch.randn(256, 256, device="cuda") / 16
    wrong: list[Any] = []

    def work(stream: Any) -> None:
        with torch.cuda.stream(stream):
            for _ in range(20):
                x = torch.randn(256, 256, device="cuda")
                found, expected = fast(x, w), fn(x, w)
                if not torch.allclose(found, expected, atol=1e-4):
                    wrong.append((found - expected).abs().max())
            stream.synchronize()

    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(3)]
    for stream in streams:
        work(stream)
    in_threads(work, [(stream,) for stream in streams])
    assert not wrong


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_inside_the_users_capture() -> None:
    """A jitted function is a part of the user's own graph."""
    fast = captured(lambda x: x.sin().cos() * 2)
    x = torch.randn(4, device="cuda")
    for _ in range(3):
        fast(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fast(x)
    for _ in range(3):
        x.normal_()
        graph.replay()
        torch.testing.assert_close(out, x.sin().cos() * 2)
    torch.testing.assert_close(fast(x), x.sin().cos() * 2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_mixed_precision() -> None:
    """autocast, a GradScaler, and an optimizer that steps on the scaled gradients."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).cuda()
    twin = copy.deepcopy(model)
    fast = captured(model)
    results = []
    for run, m in ((fast, model), (twin, twin)):
        torch.manual_seed(1)
        scaler, optimizer = torch.amp.GradScaler("cuda"), torch.optim.AdamW(m.parameters(), 1e-2)
        for _ in range(8):
            x = torch.randn(16, 32, device="cuda")
            with torch.autocast("cuda", torch.float16):
                loss = run(x).float().square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        results.append(loss.detach())
    torch.testing.assert_close(*results, rtol=1e-2, atol=1e-3)


def test_what_executors_declare(pretended: Played) -> None:
    """Operators are not captured, or some of their calls, if their executor says so. The trace has the reason."""

    def moderate(a: Any, n: int) -> bool | str:
        return n < 3 or "copies from the host"

    acme = OperatorExecutor("acme", memory=NewResults())
    declared = {"good": True, "bad": False, "other": "waits", "some": moderate}
    add = {
        name: acme.register_operator(name, like=lambda a, n: a + n, fn=lambda a, n: a + n, capturable=capturable)
        for name, capturable in declared.items()
    }
    for name, n, reason in (
        ("good", 1, None), ("bad", 1, "bad must not be captured"), ("other", 1, "other waits"), ("some", 1, None),
        ("some", 3, "some copies from the host"),
    ):  # fmt: skip
        fast = always(lambda a, name=name, n=n: add[name](add[name](a, n), n), executors=[acme])
        for _ in range(3):
            assert torch.equal(fast(torch.ones(3)), torch.ones(3) + 2 * n)
        text = str(thunder.last_traces(fast)[-1])
        assert ("CUDAGraph0(" in text) == (reason is None), text
        assert reason is None or f"CUDA graphs: not captured, {reason}" in text
