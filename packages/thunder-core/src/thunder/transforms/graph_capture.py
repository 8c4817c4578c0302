# SPDX-License-Identifier: Apache-2.0
"""Capture functions of tensors as CUDA graphs, for `CUDAGraphTransform`.

A failed capture is undone completely. If CUDA invalidates a capture, torch does not clean up. The generator stays in
capture mode: every draw in the process raises "Offset increment outside graph capture encountered unexpectedly". The
allocator keeps querying a graph that no longer exists, and the stream remains current. `capture` repairs all three.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch

from thunder.core.events import current_log
from thunder.runtime.torch_private import current_stream

__all__ = ["GRAPHS", "CapturedRegion", "Launch", "Memory", "capture", "is_capturing"]

#: The maximal number of graphs of a stretch: one for each combination of input sizes. Other sizes run uncaptured.
GRAPHS = 16
# The maximal number of recaptures because a constant address changed.
_MOVES = 8


class Memory:
    """The memory of graphs: one pool per device. Graphs share a pool, because only one graph runs at a time.

    A pool exists as long as one of its graphs. Torch rejects captures into a pool without graphs, so a new pool is
    created in that case.
    """

    def __init__(self) -> None:
        self._pools: dict[torch.device, tuple[Any, weakref.WeakSet[Any]]] = {}
        self._streams: dict[torch.device, tuple[int, torch.cuda.Stream]] = {}
        self.lock = threading.RLock()  # serializes the launches of all threads

    def pool(self, device: torch.device) -> tuple[Any, weakref.WeakSet[Any]]:
        """Return the handle of a device's memory pool, and the set of graphs captured into it."""
        found = self._pools.get(device)
        if found is None or not len(found[1]):
            found = self._pools[device] = (torch.cuda.graph_pool_handle(), weakref.WeakSet())
        return found

    def follow(self, device: torch.device) -> None:
        """Make the current stream wait for the last launch's stream, whose memory the next launch overwrites."""
        stream = current_stream(device.index)
        last = self._streams.get(device)
        if last is None or last[0] != stream:
            current = torch.cuda.current_stream(device)
            if last is not None:
                current.wait_stream(last[1])
            self._streams[device] = stream, current


class Launch:
    """A captured function: the function that launches it, its static results, and its static inputs."""

    __slots__ = ("device", "outputs", "results", "run", "static")

    def __init__(self, run: Callable[[], None], outputs: Sequence[torch.Tensor], device: torch.device):
        self.run = run
        self.outputs = outputs
        self.device = device
        copied = dict(enumerate(outputs))
        self.results = _by_kind(copied, {i: torch.empty_like(x, device="meta") for i, x in copied.items()})
        self.static: list[tuple[list[int], list[torch.Tensor]]] = []


def _by_kind(
    tensors: dict[int, torch.Tensor], others: Mapping[int, torch.Tensor]
) -> list[tuple[list[int], list[torch.Tensor]]]:
    """Group tensors such that one kernel can copy each group to or from `others`. Return positions and tensors.

    For this, all tensors of a group must have equal dtypes and the same strides as their counterparts. Otherwise, torch
    copies each tensor separately.
    """
    found: dict[tuple[torch.dtype, bool], tuple[list[int], list[torch.Tensor]]] = {}
    for i, x in tensors.items():
        places, same = found.setdefault((x.dtype, x.stride() == others[i].stride()), ([], []))
        places.append(i)
        same.append(x)
    return list(found.values())


class _Sized:
    """The state of a stretch for one combination of input sizes."""

    __slots__ = ("launch", "moves", "moving", "seen")

    def __init__(self) -> None:
        self.launch: Launch | None = None
        self.seen: list[Any] | None = None  # addresses of the inputs in the last call
        self.moving: set[int] = set()  # indices of inputs whose addresses change
        self.moves = 0


class CapturedRegion:
    """A stretch of a program. From the second call with the same sizes on, it is launched as one graph."""

    def __init__(
        self,
        name: str,
        fn: Callable[..., Any],
        memory: Memory | None = None,
        *,
        sizes: Sequence[int] = (),
        strides: Sequence[int] = (),
    ):
        self.name = self.__name__ = name
        self.fn = fn
        self.memory = memory or Memory()
        self.sizes = sizes  # indices of inputs that are sizes or have symbolic sizes
        self.strides = strides  # indices of inputs whose strides may differ between calls
        self.captures = 0
        self._log = current_log()  # of the program that contains the stretch
        self.failed: str | None = None  # the reason if capturing failed
        self._sizes: dict[Hashable, _Sized] = {}
        self._full = False

    @property
    def report(self) -> str:
        """A line about the state of the stretch, for `thunder.explain`."""
        if self.failed is not None:
            return f"{self.name} runs uncaptured: {self.failed}"
        graphs = sum(found.launch is not None for found in self._sizes.values())
        if not graphs:
            return f"{self.name} is captured at the second call"
        more = f", and calls of other sizes than its first {GRAPHS} run uncaptured" if self._full else ""
        return f"{self.name} is captured, {graphs} time{'s' if graphs > 1 else ''}{more}"

    def __call__(self, *inputs: Any) -> Any:
        if self.failed is not None or is_capturing():  # user code is capturing a graph
            return self.fn(*inputs)
        found = self._of(inputs)
        if found is None:
            return self.fn(*inputs)
        places: list[Any] = [x if type(x) is int else x.data_ptr() for x in inputs]
        for i in self.strides:  # changed strides count as a changed address
            places[i] = places[i], inputs[i].stride()
        with self.memory.lock:
            seen, found.seen = found.seen, places
            if seen is None:
                return self.fn(*inputs)
            moved: set[int] = set()
            if seen != places:
                moved = {i for i, (old, new) in enumerate(zip(seen, places)) if old != new} - found.moving
                found.moving |= moved
            if (moved or found.launch is None) and not self._capture(found, inputs):
                return self.fn(*inputs)
            launch = found.launch
            assert launch is not None
            self.memory.follow(launch.device)
            for which, memory in launch.static:
                torch._foreach_copy_(memory, [inputs[i] for i in which])
            launch.run()
            results = [torch.empty_like(x) for x in launch.outputs]
            for which, memory in launch.results:
                torch._foreach_copy_([results[i] for i in which], memory)
            return tuple(results)

    def _of(self, inputs: Sequence[Any]) -> _Sized | None:
        """Return the state for calls with the sizes of `inputs`, or None if there are too many combinations."""
        key = tuple([x if type(x := inputs[i]) is int else x.shape for i in self.sizes])
        found = self._sizes.get(key)
        if found is None:
            self._full = len(self._sizes) >= GRAPHS
            if not self._full:
                found = self._sizes[key] = _Sized()
        return found

    def _capture(self, found: _Sized, inputs: Sequence[Any]) -> bool:
        found.moves += 1
        if found.moves > _MOVES:  # inputs change in each call: treat all as moving
            found.moving = {i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)}
        static = {i: inputs[i].detach().clone() for i in found.moving}
        given = [static.get(i, x) for i, x in enumerate(inputs)]
        try:
            found.launch = capture(self.fn, given, self.memory)
        except Exception as error:
            self.failed = _summary(error)
            self._sizes.clear()
            self._log.add("graph", f"{self.name} runs uncaptured: {self.failed}")
            warnings.warn(f"CUDA graphs: {self.name} is not captured ({self.failed})", stacklevel=4)
            return False
        found.launch.static = _by_kind(static, dict(enumerate(inputs)))
        self.captures += 1
        self._log.add("graph", f"{self.name} was captured", details={"captures": self.captures})
        return True

    def __repr__(self) -> str:
        return f"<{self.name}>"


def _summary(error: BaseException) -> str:
    """Return the first error of a chain in one line. A failed capture raises further errors after it."""
    while error.__context__ is not None:
        error = error.__context__
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def is_capturing() -> bool:
    """Check whether a graph is already being captured."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


# -- capturing --------------------------------------------------------------------------------------------------------
def capture(fn: Callable[..., Any], inputs: Sequence[Any], memory: Memory) -> Launch:
    """Capture `fn` on `inputs`. Return the launch of the graph with the tensors that hold its results.

    First, `fn` runs on a separate stream, because libraries allocate memory and select kernels at their first call. The
    generator's state is restored afterwards.
    """
    devices = {x.device for x in inputs if isinstance(x, torch.Tensor)}
    device = devices.pop() if len(devices) == 1 else None
    if device is None or device.type != "cuda":
        names = ", ".join(sorted(map(str, devices))) or device
        raise RuntimeError(f"its inputs are on {names} instead of one GPU")
    with torch.cuda.device(device), torch.no_grad():
        _run_before(fn, inputs, device)
        return _captured(fn, inputs, memory, device)


def _run_before(fn: Callable[..., Any], inputs: Sequence[Any], device: torch.device) -> None:
    state = torch.cuda.get_rng_state(device)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(stream):
            for _ in range(2):
                fn(*inputs)
    finally:
        torch.cuda.current_stream(device).wait_stream(stream)
        torch.cuda.set_rng_state(state, device)


_streams: dict[torch.device, torch.cuda.Stream] = {}


def _captured(fn: Callable[..., Any], inputs: Sequence[Any], memory: Memory, device: torch.device) -> Launch:
    handle, graphs = memory.pool(device)
    graph = torch.cuda.CUDAGraph()
    stream = _streams.get(device)
    if stream is None:
        stream = _streams[device] = torch.cuda.Stream(device)
    torch.cuda.synchronize(device)
    _forget_workspaces()
    with torch.cuda.stream(stream):  # restored even if capturing fails
        try:
            graph.capture_begin(pool=handle, capture_error_mode="thread_local")
            graphs.add(graph)
            outputs = fn(*inputs)
            graph.capture_end()
        except BaseException:
            _streams.pop(device)
            graphs.discard(graph)
            _give_up(graph, handle, device)
            raise
        finally:
            _forget_workspaces()
    return Launch(graph.replay, outputs, device)


def _forget_workspaces() -> None:
    """Make cuBLAS allocate new workspaces, so that the graph's pool contains exactly the graph's workspaces."""
    with suppress(AttributeError):
        torch._C._cuda_clearCublasWorkspaces()


def _give_up(graph: Any, handle: Any, device: torch.device) -> None:
    """End a failed capture and repair torch's state."""
    try:
        graph.capture_end()
    except Exception:  # CUDA has invalidated the capture: torch raises before its own cleanup
        with suppress(Exception):
            torch._C._cuda_endAllocateToPool(device.index, handle)
            torch._C._cuda_releasePool(device.index, handle)
        with suppress(Exception):
            _reset_generator(device)
    graph.reset()


def _reset_generator(device: torch.device) -> None:
    """Capture an empty graph, which ends the capture mode of the generator."""
    number = torch.zeros((), device=device)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        number.zero_()
        graph.capture_begin(capture_error_mode="thread_local")
        number.zero_()
        graph.capture_end()
    torch.cuda.current_stream(device).wait_stream(stream)
