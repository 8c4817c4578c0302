# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs: what is captured, and when again. (Without a GPU: the bookkeeping, with graphs that are played.)"""

from __future__ import annotations

import copy
import ctypes
import gc
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import training
from outcomes import in_threads
from torch import nn
from torch.nn import functional as F

import thunder
from thunder.core import devices, dtypes, prims
from thunder.core.proxies import TensorProxy
from thunder.core.state import tracectx
from thunder.core.trace import Trace
from thunder.core.verify import verify
from thunder.execution.claim import transform_for_execution
from thunder.extend import get_always_executors
from thunder.transforms import CUDAGraphTransform, PassContext
from thunder.transforms.captured_region import CapturedRegion, Launch, _summary
from thunder.transforms.graph_capture import Graph, Memory


def test_on_the_cpu() -> None:
    """The program runs as it did, and its trace says why nothing is captured."""
    transform = CUDAGraphTransform()
    f, a = thunder.jit(lambda a: a.sin().cos(), transforms=[transform]), torch.randn(3)
    torch.testing.assert_close(f(a), a.sin().cos())
    assert transform.reason == "not captured, sin is not on a GPU"
    assert "# CUDA graphs: not captured, sin is not on a GPU" in str(thunder.last_traces(f)[-1])
    with pytest.raises(ValueError, match="min_operations is a whole number, at least 1, not 0"):
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


def at_address(x: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor that does not keep it alive."""
    x, storage = x.detach(), x.untyped_storage()
    if not storage.nbytes():
        return x
    memory = torch.frombuffer((ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr()), dtype=torch.uint8)
    return torch.empty(0, dtype=x.dtype).set_(memory.untyped_storage(), x.storage_offset(), x.shape, x.stride())


class Played:
    """Stands for CUDA's graphs: a launch computes on the memory that was captured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fail: bool = False):
        self.captures: list[Sequence[Any]] = []
        self.results: list[list[weakref.ref[torch.Tensor]]] = []

        def capture(fn: Any, inputs: Sequence[Any], memory: Any, tables: Sequence[int]) -> Any:
            if fail:
                raise RuntimeError("operation not permitted when stream is capturing")
            self.captures.append([weakref.ref(x) if isinstance(x, torch.Tensor) else None for x in inputs])
            tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
            given = {x.untyped_storage()._cdata for x in tensors}
            with torch.no_grad():
                before = [x.clone() for x in tensors]
                results = fn(*inputs)
                for x, value in zip(tensors, before):  # nothing runs while it is captured
                    if not torch.equal(x, value):
                        x.copy_(value)
            outputs = [
                x if x.untyped_storage()._cdata in given else torch.zeros_like(x).as_strided(x.shape, x.stride())
                for x in results
            ]

            own = [None if x.untyped_storage()._cdata in given else x for x in outputs]
            read = [at_address(x) if isinstance(x, torch.Tensor) else x for x in inputs]

            number = len(self.results)
            self.results.append([weakref.ref(x) for x in own if x is not None])

            def launch() -> None:
                for later in self.results[number + 1 :]:  # may be in the memory of temporary values
                    for x in later:
                        if (memory := x()) is not None:
                            memory.fill_(3)
                for memory, value in zip(own, fn(*read)):
                    if memory is not None:
                        memory.copy_(value)

            return Graph(launch, outputs, torch.device("cpu"))

        monkeypatch.setattr("thunder.transforms.captured_region.capture", capture)
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
    assert played.captures[0][1]() is weight and played.captures[0][0]() is not kept[1][2]


def test_a_weight_that_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is captured anew, and copied from then on."""
    played, run = Played(monkeypatch), region()
    x, weight = torch.randn(3), torch.randn(3)
    for w in (weight, weight, weight, torch.randn(3), torch.randn(3), weight):
        (out,) = run(x, w)
        torch.testing.assert_close(out, x * w + 1)
    assert len(played.captures) == run.captures == 2
    assert played.captures[0][0]() is x


def test_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning with the reason, once; results are right."""
    Played(monkeypatch, fail=True)
    run, x, w = region(), torch.randn(3), torch.randn(3)
    for _ in range(2):  # another thread may have been the first to use a library
        run(x, w)
    with pytest.warns(UserWarning, match="CUDAGraph0 is not captured .RuntimeError: operation not permitted"):
        (out,) = run(x, w)
    torch.testing.assert_close(out, x * w + 1)
    torch.testing.assert_close(run(x, w)[0], x * w + 1)


def test_inside_another_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a part of that."""
    played, run = Played(monkeypatch), region()
    monkeypatch.setattr("thunder.transforms.captured_region.is_capturing", lambda: True)
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
    monkeypatch.setattr("thunder.transforms.captured_region.GRAPHS", 2)
    run = CapturedRegion("CUDAGraph0", lambda x, n: (x * n,), sizes=(0, 1))
    for _ in range(3):
        for n in (2, 3, 4):
            torch.testing.assert_close(run(torch.ones(n), n)[0], torch.full((n,), float(n)))
    assert len(played.captures) == 2
    assert run.report == "CUDAGraph0 is captured, 2 times, and calls of other sizes than its first 2 run uncaptured"


def test_what_is_copied_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies in memory otherwise than its copy is apart: among others it has torch copy each by itself."""
    outputs = [torch.randn(4, 4), torch.randn(4, 4)[:, :2], torch.randn(4, 4).t(), torch.ones(4, dtype=torch.int64)]
    launch = Launch(Graph(lambda: None, outputs, torch.device("cpu")))
    assert [which for which, _ in launch.results] == [[0, 2], [1], [3]]
    Played(monkeypatch)
    run = CapturedRegion("CUDAGraph0", lambda x, y, z: (x + y + z,))
    for _ in range(4):
        given = torch.randn(4, 4), torch.randn(4, 8)[:, ::2], torch.randn(4, 4)
        torch.testing.assert_close(run(*given)[0], sum(given))
    (found,) = run._sizes.values()
    assert [which for which, _ in found.launch.static] == [[0, 2], [1]]


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


def adamw(net: nn.Module, **options: Any) -> Callable[..., torch.Tensor]:
    """A step of training."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(**options)
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def always(fn: Any) -> Any:
    return thunder.jit(fn, executors=["torch"], cuda_graphs="always")


CASES = {
    name: training.with_optimizer(make) for name, make in training.OPTIMIZERS.items() if "foreach=False" not in name
}
CASES |= {make.__name__: training.with_optimizer(make) for make in training.USERS}
CASES |= {make.__name__: make for make in training.PROGRAMS}


@pytest.mark.parametrize("name", CASES)
def test_training_steps(pretended: Played, name: str) -> None:
    """A step with graphs leaves what eager mode leaves, to the bit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, expected, kept = training.trained(CASES[name], lambda f: f, 7)
        _, found, kept_too = training.trained(CASES[name], always, 7)
    assert [training.same(a, b) for a, b in zip(found, expected)] == [True] * 7
    assert kept_too == kept and pretended.captures


def hold(net: nn.Module) -> Any:
    return [p.grad for p in net.parameters()]


def hold_views(net: nn.Module) -> Any:
    return [p.grad.view(-1) for p in net.parameters()]  # type: ignore[union-attr]


def hold_details(net: nn.Module) -> Any:
    return [p.grad.detach() for p in net.parameters()]  # type: ignore[union-attr]


def hold_arrays(net: nn.Module) -> Any:
    return [p.grad.numpy() for p in net.parameters()]  # type: ignore[union-attr]


def hold_in_a_graph(net: nn.Module) -> Any:
    weights = [torch.ones_like(p, requires_grad=True) for p in net.parameters()]
    return [(w * p.grad).sum().grad_fn for w, p in zip(weights, net.parameters())]


@pytest.mark.parametrize("holder", [hold, hold_views, hold_details, hold_arrays, hold_in_a_graph])
def test_gradients_that_are_held(pretended: Played, holder: Callable[[nn.Module], Any]) -> None:
    """Old gradients keep their values, whoever refers to them. The calls meanwhile run uncaptured."""
    net, twin = training.network(), training.network()
    ours, theirs = always(adamw(net)), adamw(twin)
    held: list[tuple[Any, list[torch.Tensor]]] = []
    for k in range(9):
        assert torch.equal(ours(*training.batch(k)), theirs(*training.batch(k)))
        assert all(torch.equal(p.grad, q.grad) for p, q in zip(net.parameters(), twin.parameters()))  # type: ignore[arg-type]
        if k in (4, 5):
            held.append((holder(net), [p.grad.clone() for p in twin.parameters()]))  # type: ignore[union-attr]
        if k == 7:
            for found, expected in held if holder is not hold_in_a_graph else ():
                for x, y in zip(found, expected):
                    assert torch.equal(torch.as_tensor(x).reshape(-1), y.reshape(-1))
            for nodes, expected in held if holder is hold_in_a_graph else ():
                for node, y in zip(nodes, expected):
                    _, saved = node.next_functions[0][0]._saved_self, node.next_functions[0][0]._saved_other
                    assert torch.equal(saved, y)
            held.clear()
    assert "calls ran uncaptured because results of an earlier call were still in use" in thunder.explain(ours)
    for k in range(9, 12):
        ours(*training.batch(k))
        reports = ours._stats.last.reports
    ours(*training.batch(12))
    assert ours._stats.last.reports == reports  # graphs are launched again


def test_gradients_that_nobody_holds(pretended: Played) -> None:
    """Each call launches the graph; the gradients are read where it wrote them."""
    net = training.network()
    step = always(adamw(net))
    addresses = set()
    batches = [training.batch(k) for k in range(8)]  # at addresses of their own
    for k, batch in enumerate(batches):
        step(*batch)
        if k > 2:
            addresses.add(tuple(p.grad.data_ptr() for p in net.parameters()))  # type: ignore[union-attr]
    assert len(addresses) == 1 and "uncaptured" not in thunder.explain(step)


def test_gradients_that_another_path_reads(pretended: Played) -> None:
    """A path that replaces gradients may be left, after its graph was launched, for one that adds to them."""
    nets = training.network(), training.network()

    def make(net: nn.Module) -> Callable[..., Any]:
        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = F.mse_loss(net(x), y)
            if loss.item() > 2.0:
                net.zero_grad()
            loss.backward()
            return loss

        return step

    steps = always(make(nets[0])), make(nets[1])
    for k in range(12):
        x, y = training.batch(k)
        for step in steps:
            step(x, y if k % 5 == 4 else y + 3)
        assert training.same(*[training.copied(hold(net)) for net in nets]), k


def test_errors(pretended: Played) -> None:
    """A call that raises an error leaves what eager mode leaves, and later calls go on."""
    nets = training.network(), training.network()
    steps = always(adamw(nets[0])), adamw(nets[1])
    for k in range(9):
        for step in steps:
            if k == 5:
                with pytest.raises(RuntimeError):
                    step(torch.ones(6, 3), torch.ones(6, 1))
            else:
                step(*training.batch(k))
        assert training.same(*[training.copied([*net.parameters(), *hold(net)]) for net in nets])


def test_autograd_sees_writes_of_graphs(pretended: Played) -> None:
    """A graph of autograd that saved a parameter before the step raises eager mode's error."""
    net = training.network()
    step = always(adamw(net))
    for k in range(6):
        squares = [p * p for p in net.parameters()]
        step(*training.batch(k))
        for square in squares:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                square.sum().backward()


def test_two_forwards_before_a_backward(pretended: Played) -> None:
    """Saved values of the first forward are not overwritten by the second."""
    model, twin = training.network(), training.network()
    fast = always(model)
    for k in range(6):
        for run, net in ((fast, model), (twin, twin)):
            net.zero_grad()
            first, second = run(training.batch(k)[0]), run(training.batch(k + 1)[0])
            second.square().mean().backward()
            first.square().mean().backward()
        assert all(torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), twin.parameters()))  # type: ignore[arg-type]
    assert "still in use" in thunder.explain(fast)


def test_saved_values_are_not_copied(pretended: Played) -> None:
    """The backward graph reads them where the forward graph wrote them."""
    model = training.network()
    fast = always(model)
    for k in range(5):
        fast(training.batch(k)[0]).square().mean().backward()
    (backward,) = [
        op.sym.fn
        for op in thunder.last_backward_traces(fast)[-1].bound_symbols
        if isinstance(op.sym.fn, CapturedRegion)
    ]
    (sized,) = backward._sizes.values()
    assert backward.captures == 1 and sized.fixed


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


# -- the choice of `cuda_graphs="auto"` -------------------------------------------------------------------------------
@pytest.fixture
def measured(pretended: Played, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the next measurements find: milliseconds of the host and the GPU, and whether the GPU was idle."""
    found: dict[str, Any] = {"host": 5.0, "GPU": 5.0, "graph": 2.0, "idle": True, "free": 1 << 40}

    class Stopwatch:
        def __init__(self, device: torch.device):
            self.idle = found["idle"]
            self.times = found["host"], found["graph"] if pretended.captures else found["GPU"]

        def stop(self) -> None:
            pass

        def read(self) -> Any:
            return self.times

    monkeypatch.setattr("thunder.transforms.captured_region.Stopwatch", Stopwatch)
    monkeypatch.setattr("thunder.transforms.captured_region._free_memory", lambda device: found["free"])
    return found


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(5):
        x = (x @ w).sin()
    return x


REASONS: list[tuple[dict[str, Any], str]] = [
    ({}, "CUDAGraph0 is captured, 1 time"),
    ({"host": 3.0}, "CUDAGraph0 is captured, 1 time"),
    ({"host": 3.0, "idle": False}, "CUDAGraph0 is captured, 1 time"),
    ({"host": 2.0, "idle": False}, "runs uncaptured: the host needs 2.00 ms to launch what takes the GPU 5.00 ms"),
    ({"graph": 6.0}, "runs uncaptured: the graph takes 6.00 ms, and its operations take 5.00 ms"),
    ({"free": 100}, "runs uncaptured: it needs about 0 MiB, and 0 MiB are free"),
]


@pytest.mark.parametrize(("times", "reason"), REASONS)
def test_auto(measured: dict[str, Any], times: dict[str, Any], reason: str) -> None:
    """Results are right in each phase, and `explain` has the reason."""
    measured.update(times)
    fast, w = thunder.jit(chain, executors=["torch"]), torch.randn(4, 4)
    for _ in range(10):
        x = torch.randn(4, 4)
        torch.testing.assert_close(fast(x, w), chain(x, w))
    assert reason in thunder.explain(fast)


def test_auto_waits_for_the_stretches_before(measured: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs that move, and would be copied, have constant addresses as soon as a graph computes them."""
    monkeypatch.setattr("thunder.transforms.captured_region._MOST_COPIED", 8)

    def two(x: Any, w: Any) -> Any:
        x = chain(x, w)
        if x.sum() > 1e6:
            x = x + 1
        return chain(x, w)

    fast, x, w = thunder.jit(two, executors=["torch"]), torch.randn(4, 4), torch.randn(4, 4)
    kept = [fast(x, w) for _ in range(12)]
    assert all(torch.equal(y, two(x, w)) for y in kept)
    report = thunder.explain(fast)
    assert "CUDAGraph0 is captured, 1 time" in report
    assert "CUDAGraph1 is captured, 1 time" in report

    moving = thunder.jit(chain, executors=["torch"])
    kept = [torch.randn(4, 4) for _ in range(45)]
    for x in kept:
        moving(x, w)
    assert "would be copied" in thunder.explain(moving)


def test_auto_leaves_short_programs_and_the_cpu_alone(
    measured: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = thunder.jit(lambda x: x.sin() + 1)
    short(torch.ones(3))
    assert "CUDAGraph" not in str(thunder.last_traces(short)[-1])
    monkeypatch.setattr("thunder.transforms.cuda_graphs._GPU", "cuda")
    fast = thunder.jit(chain)
    fast(torch.ones(2, 2), torch.ones(2, 2))
    assert "CUDA" not in str(thunder.last_traces(fast)[-1])


def test_auto_leaves_separate_backward_programs_alone(measured: dict[str, Any]) -> None:
    fast, w = thunder.jit(chain), torch.randn(4, 4, requires_grad=True)
    for _ in range(6):
        fast(torch.randn(4, 4), w).sum().backward()
    for traces in (thunder.last_traces(fast), thunder.last_backward_traces(fast)):
        assert "CUDAGraph" not in str(traces[-1])


def test_never(measured: dict[str, Any]) -> None:
    fast = thunder.jit(chain, cuda_graphs="never")
    for _ in range(8):
        fast(torch.ones(2, 2), torch.ones(2, 2))
    assert "CUDAGraph" not in str(thunder.last_traces(fast)[-1])
    with pytest.raises(ValueError, match="cuda_graphs is one of 'auto', 'always', 'never'"):
        thunder.jit(chain, cuda_graphs="sometimes")  # type: ignore[call-overload]


def test_the_first_error_is_told() -> None:
    """A capture that fails ends with an error about that: the reason is what came before."""
    try:
        try:
            raise ValueError("the cause\nand more")
        except ValueError as cause:
            raise RuntimeError("operation failed due to a previous error during capture") from cause
    except RuntimeError as error:
        assert _summary(error) == "ValueError: the cause"


# -- programs on a GPU, or where there is none with graphs that are played ---------------------------------------------
@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> str:
    """Where programs are captured."""
    if torch.cuda.is_available():
        return "cuda"
    monkeypatch.setattr("thunder.transforms.cuda_graphs._GPU", "cpu")
    Played(monkeypatch)
    return "cpu"


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
