# SPDX-License-Identifier: Apache-2.0
"""One stretch of a program: when it is captured, again, or not at all, and what is copied for a launch."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import pytest
import torch
from played_graphs import Played

import thunder
from thunder.transforms.captured_region import GRAPHS, CapturedRegion, _summary
from thunder.transforms.graph_capture import Graph, Memory, capture_lock
from thunder.transforms.graph_launch import Launch


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
    """A graph is captured that reads it there. If it moves again, it is copied from then on."""
    played, run = Played(monkeypatch), region()
    x, weight = torch.randn(3), torch.randn(3)
    for w in (weight, weight, weight, torch.randn(3), torch.randn(3), weight):
        (out,) = run(x, w)
        torch.testing.assert_close(out, x * w + 1)
    assert len(played.captures) == run.captures == 3
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
    assert run.captures == 3


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


def test_gradients_with_the_same_memory_are_copied() -> None:
    """Autograd may make each of them a `.grad`, and the user may change one in place."""
    x, y = torch.ones(2, 2), torch.ones(2)
    launch = Launch(Graph(lambda: None, [x, x.view(4), y], torch.device("cpu")), lent=[0, 1, 2], returned=[0, 1, 2])
    first, second, third = launch([])
    assert len({x.data_ptr(), first.data_ptr(), second.data_ptr()}) == 3
    assert third.data_ptr() == y.data_ptr()


# -- streams and threads -----------------------------------------------------------------------------------------------
class Stream:
    """A stream that counts its work, and how much of the others' work it has waited for."""

    def __init__(self, number: int):
        self.number, self.work = number, 0
        self.waited: dict[int, int] = {}

    def wait_stream(self, other: Stream) -> None:
        self.waited[other.number] = other.work


def test_launches_wait_for_the_readers_on_other_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for work that came after their last launch: it may read results that the next launch overwrites."""
    first, second = Stream(1), Stream(2)
    current = [first]
    monkeypatch.setattr("thunder.transforms.graph_capture.current_stream", lambda index: current[0].number)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current[0])
    memory, device = Memory(), torch.device("cuda", 0)
    for stream in (first, first, second):
        current[0] = stream
        memory.follow(device)
        stream.work += 1
    assert not first.waited and second.waited == {1: 2}
    first.work += 5
    memory.follow(device)
    assert second.waited == {1: 7}


def test_threads_do_not_wait_for_a_capture(pretended: Played) -> None:
    """What is captured may need autograd's thread."""
    run = CapturedRegion("CUDAGraph0", lambda x: (x * 2,))
    x, results = torch.ones(3), []
    for _ in range(3):
        run(x)
    launched = run.captures

    def call() -> None:
        results.append(run(x)[0])

    with run.memory.locked() as owned:
        assert owned
        run.memory.is_capturing = True
        thread = threading.Thread(target=call)
        thread.start()
        thread.join(10)
        run.memory.is_capturing = False
        assert not thread.is_alive()
    assert torch.equal(results[0], x * 2) and run.captures == launched


def test_one_thread_captures_at_a_time(pretended: Played) -> None:
    """Also of two functions. The other one runs uncaptured, and is captured later."""
    run, x = CapturedRegion("CUDAGraph0", lambda x: (x * 2,)), torch.ones(3)
    with capture_lock:
        for _ in range(5):
            assert torch.equal(run(x)[0], x * 2)
    assert not run.captures and run.failed is None
    assert torch.equal(run(x)[0], x * 2) and run.captures == 1


# -- memory -----------------------------------------------------------------------------------------------------------
def test_memory_of_dropped_graphs(pretended: Played) -> None:
    """Is freed, but for results that somebody still reads, which no other graph overwrites."""
    run, x = CapturedRegion("CUDAGraph0", lambda x: (x * 2, x + 1), lent=[0, 1]), torch.ones(3)
    earlier = Launch(Graph(lambda: None, [], torch.device("cpu")), pools=run.memory.forward)
    run.memory.add(earlier)
    for _ in range(3):
        first = second = None
        first, second = run(x)
    (sized,) = run._sizes.values()
    freed = weakref.ref(sized.launch.lent)
    del second
    run._drop(sized)
    assert freed() is None and not run.memory.kept(torch.device("cpu"))
    assert torch.equal(first, x * 2) and run.memory.is_overwritten_by(earlier)
    del first
    assert not run.memory.is_overwritten_by(earlier)


def test_sizes_that_do_not_fit(monkeypatch: pytest.MonkeyPatch, pretended: Played) -> None:
    """Graphs of other sizes stay."""
    run = CapturedRegion("CUDAGraph0", lambda x: (x * 2,), sizes=[0])

    def calls(size: int) -> None:
        for _ in range(5):
            assert torch.equal(run(x := torch.ones(size))[0], x * 2)

    def full(*args: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    calls(2)
    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="out of memory"):
        patch.setattr("thunder.transforms.captured_region.capture", full)
        calls(3)
    calls(2)
    assert run.failed is None and run.captures == 1
    assert "is captured, 1 time; calls of other sizes run uncaptured: OutOfMemoryError" in run.report


def test_more_sizes_than_graphs(pretended: Played) -> None:
    run = CapturedRegion("CUDAGraph0", lambda x: (x * 2,), sizes=[0])
    for size in range(1, GRAPHS + 3):
        run(torch.ones(size))
    assert f"its first {GRAPHS} sizes did not come again" in run.report


# -- the choice of `cuda_graphs="auto"` -------------------------------------------------------------------------------
@pytest.fixture
def measured(pretended: Played, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the next measurements find: milliseconds of the host and the GPU, and whether the GPU was idle."""
    found: dict[str, Any] = {"host": 5.0, "GPU": 5.0, "graph": 2.0, "idle": True, "free": 1 << 40, "whole": 1 << 40}

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
    monkeypatch.setattr("thunder.transforms.captured_region._whole_memory", lambda device: found["whole"])
    return found


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(7):
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


def test_auto_decides_again(measured: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """After more and more calls: what the first calls measure may not be typical."""
    monkeypatch.setattr("thunder.transforms.captured_region._AGAIN", (5, 10))
    measured.update(host=2.0, idle=False)

    def graphs(calls: int, fast: Any) -> int:
        """Return how often the stretch was captured after some calls more."""
        for _ in range(calls):
            torch.testing.assert_close(fast(x := torch.randn(4, 4), w), chain(x, w))
        (region,) = [op.sym.fn for op in thunder.last_traces(fast)[-1].bound_symbols if "CUDAGraph" in op.sym.name]
        return int(region.captures)

    fast, never, w = thunder.jit(chain, executors=["torch"]), thunder.jit(chain, executors=["torch"]), torch.ones(4, 4)
    assert graphs(6, fast) == graphs(60, never) == 0
    measured["host"] = 5.0
    assert graphs(3, fast) == 0
    assert graphs(20, fast) == 1
    assert graphs(60, never) == 0  # it was decided as often as it may be


def test_auto_waits_for_the_stretches_before(measured: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs that move, and would be copied, have constant addresses as soon as a graph computes them."""
    monkeypatch.setattr("thunder.transforms.captured_region._MOST_COPIED", 8)
    monkeypatch.setattr("thunder.transforms.captured_region._COPIED_SHARE", 0)

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


def test_auto_captures_separate_backward_programs(measured: dict[str, Any]) -> None:
    """The backward program, as soon as values saved by the forward graph have constant addresses."""
    fast, w = thunder.jit(chain, executors=["torch"]), torch.randn(4, 4, requires_grad=True)
    twin = w.detach().clone().requires_grad_()
    for _ in range(14):
        w.grad = twin.grad = None
        x = torch.randn(4, 4)
        fast(x, w).sum().backward()
        chain(x, twin).sum().backward()
        torch.testing.assert_close(w.grad, twin.grad)
    report = thunder.explain(fast)
    assert "computation: CUDAGraph0 is captured, 1 time" in report
    assert "backward: CUDAGraph0 is captured, 1 time" in report


def test_auto_limits_the_memory_of_separate_backward_programs(measured: dict[str, Any]) -> None:
    """Each size has graphs of its own, whose saved values stay allocated."""
    measured["whole"] = 4 * 3000  # bytes, a quarter of which are enough for two sizes
    fast, w = thunder.jit(chain, executors=["torch"], cache="symbolic values"), torch.randn(4, 4, requires_grad=True)
    for size in (4, 5, 6, 7):
        for _ in range(7):
            w.grad = None
            fast(torch.randn(size, 4), w).sum().backward()
    (forward,) = [op.sym.fn for op in thunder.last_traces(fast)[-1].bound_symbols if "CUDAGraph" in op.sym.name]
    found = [sized.launch is not None for sized in forward._sizes.values()]
    assert found == [True, True, False, False], found
    assert "MiB would stay allocated for results of graphs" in thunder.explain(fast)


def test_auto_measures_the_limits_with_the_sizes_of_a_call(measured: dict[str, Any]) -> None:
    """The first sizes are others than later ones."""
    measured["free"] = 20_000
    for sizes, expected in (((4, 4000), [True, False]), ((4000, 4), [False, True])):
        fast, w = thunder.jit(chain, executors=["torch"], cache="symbolic values"), torch.randn(4, 4)
        for size in sizes:
            for _ in range(7):
                fast(torch.randn(size, 4), w)
        (region,) = [op.sym.fn for op in thunder.last_traces(fast)[-1].bound_symbols if "CUDAGraph" in op.sym.name]
        assert [sized.launch is not None for sized in region._sizes.values()] == expected


def test_auto_keeps_its_limits_when_inputs_move_later(
    measured: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weight that is replaced once is read where it is then; one that moves in each call is not copied."""
    monkeypatch.setattr("thunder.transforms.captured_region._MOST_COPIED", 8)
    monkeypatch.setattr("thunder.transforms.captured_region._COPIED_SHARE", 0)
    fast, x = thunder.jit(chain, executors=["torch"]), torch.randn(4, 4)
    weights = [torch.randn(4, 4) for _ in range(3)]
    for w in (*[weights[0]] * 8, *[weights[1]] * 3):
        assert torch.equal(fast(x, w), chain(x, w))
    assert "CUDAGraph0 is captured, 1 time" in thunder.explain(fast)
    for w in (weights[2], weights[0], weights[1]):
        assert torch.equal(fast(x, w), chain(x, w))
    assert "would be copied" in thunder.explain(fast)


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
