# SPDX-License-Identifier: Apache-2.0
"""Capture functions of tensors as CUDA graphs, for `captured_region.py`.

The function does not run while it is captured: it draws no random numbers and writes nothing. It must have run before,
because libraries allocate memory and select kernels at their first call.

A failed capture is undone completely. If CUDA invalidates a capture, torch does not clean up. The generator stays in
capture mode: every draw in the process raises "Offset increment outside graph capture encountered unexpectedly". The
allocator keeps querying a graph that no longer exists, and the stream remains current. `capture` repairs all three.
"""

from __future__ import annotations

import functools
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import Any, NamedTuple

import torch

from thunder.runtime.device_tables import GraphTables
from thunder.runtime.torch_private import current_stream

__all__ = [
    "Graph",
    "Memory",
    "Pools",
    "Stopwatch",
    "can_be_captured",
    "capture",
    "capture_lock",
    "has_grouped_kernel",
    "is_capturing",
]


#: Only one thread captures at a time: the stream, cuBLAS's workspaces and the allocator's state are the process's.
capture_lock = threading.Lock()
# Seconds after which a thread that waits for the lock looks whether another one is capturing.
_PAUSE = 0.01


class Pools:
    """The memory pools of graphs of which only one runs at a time: one pool per device.

    A pool exists as long as one of its graphs. Torch rejects captures into a pool without graphs, so a new pool is
    created in that case.
    """

    def __init__(self) -> None:
        self._pools: dict[torch.device, tuple[Any, weakref.WeakSet[Any]]] = {}

    def of(self, device: torch.device) -> tuple[Any, weakref.WeakSet[Any]]:
        """Return the handle of a device's memory pool, and the set of graphs captured into it."""
        found = self._pools.get(device)
        if found is None or not len(found[1]):
            found = self._pools[device] = (torch.cuda.graph_pool_handle(), weakref.WeakSet())
        return found


class _Lending:
    """The results of a graph that are read where it wrote them, also after the graph is gone."""

    def __init__(self, launch: Any) -> None:
        self.number: int = launch.number  # of its capture
        self.pools: Pools = launch.pools
        self.launch: weakref.ref[Any] = weakref.ref(launch)
        self._readers = launch.lent.readers()

    def are_unused(self) -> bool:
        """Check whether nobody reads the results."""
        launch = self.launch()
        return launch.lent.are_unused() if launch is not None else all(x.expired() for x in self._readers)


class Memory:
    """The memory of graphs, those of backward programs in pools of their own. Only one graph runs at a time."""

    def __init__(self) -> None:
        self.forward, self.backward = Pools(), Pools()
        self._streams: dict[torch.device, dict[int, torch.cuda.Stream]] = {}
        self.lock = threading.RLock()  # serializes the launches of all threads
        self.is_capturing = False
        self._lending: list[_Lending] = []  # in the order of captures
        self._captures = 0

    def add(self, launch: Any) -> None:
        """Add the launch of a graph that was captured last."""
        self._captures += 1
        launch.number = self._captures
        self._prune()
        self._lending.append(_Lending(launch))

    def _prune(self) -> None:
        self._lending = [x for x in self._lending if x.launch() is not None or not x.are_unused()]

    def is_overwritten_by(self, launch: Any) -> bool:
        """Check whether a launch may overwrite results of another graph that are still read.

        A graph's results stay allocated, so graphs that are captured later use other memory. But the memory of
        temporary values of a graph is free after its capture, and may hold the results of graphs of the same pool that
        are captured later.
        """
        self._prune()
        return any(x.number > launch.number and x.pools is launch.pools and not x.are_unused() for x in self._lending)

    def kept(self, device: torch.device | None) -> int:
        """Return the bytes of a device that stay allocated for the results and inputs of graphs."""
        launches = [x.launch() for x in self._lending]
        return sum(launch.nbytes for launch in launches if launch is not None and launch.device == device)

    def lends(self, address: int) -> bool:
        """Check whether results of a graph that can be launched are read at an address."""
        launches = [x.launch() for x in self._lending]
        return any(launch.lent.include(address) for launch in launches if launch is not None)

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Hold the lock, or yield False if another thread is capturing.

        A captured function may wait for autograd's thread, which must therefore not wait for the end of a capture.
        """
        while not self.lock.acquire(timeout=_PAUSE):
            if self.is_capturing:
                yield False
                return
        try:
            yield True
        finally:
            self.lock.release()

    def wait_for_streams(self, device: torch.device) -> None:
        """Wait for launches on several streams, before memory that was allocated on one of them is freed."""
        if len(self._streams.get(device, ())) > 1:
            torch.cuda.synchronize(device)

    def follow(self, device: torch.device) -> None:
        """Make the current stream wait for all other streams that have launched graphs of the device.

        They may still read the memory that the next launch overwrites.
        """
        streams, stream = self._streams.setdefault(device, {}), current_stream(device.index)
        if len(streams) > 1 or stream not in streams:
            current = streams.setdefault(stream, torch.cuda.current_stream(device))
            for other in streams.values():
                if other is not current:
                    current.wait_stream(other)


class Graph(NamedTuple):
    """A captured function: the function that launches it, and the tensors that hold its results after a launch."""

    launch: Callable[[], None]
    outputs: Sequence[torch.Tensor]
    device: torch.device
    tables: GraphTables | None = None  # which the kernels read


class Stopwatch:
    """Measures how long the host and a GPU take for what is called between `__init__` and `stop`."""

    def __init__(self, device: torch.device):
        self.idle = torch.cuda.current_stream(device).query()  # whether the GPU waits for the host
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._start.record(torch.cuda.current_stream(device))
        self._device = device
        self._host = perf_counter()

    def stop(self) -> None:
        """End the measurement."""
        self._host = (perf_counter() - self._host) * 1e3
        self._end.record(torch.cuda.current_stream(self._device))

    def read(self) -> tuple[float, float] | None:
        """Return the milliseconds of the host and of the GPU, or None if the GPU has not finished."""
        return (self._host, self._start.elapsed_time(self._end)) if self._end.query() else None


def is_capturing() -> bool:
    """Check whether a graph is already being captured."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


_UNSAFE = ("data_dependent_output", "dynamic_output_shape", "nondeterministic_seeded", "cudagraph_unsafe")


@functools.cache
def can_be_captured(fn: Any) -> bool:
    """Check whether a function is an operator of torch that neither writes nor draws, with results of known size.

    So is the gradient of such an operator that torch computes. If it waits for the GPU nevertheless, the capture fails,
    which changes nothing.
    """
    fn = getattr(fn, "differentiated", fn)
    name = getattr(fn, "__name__", "")
    packet = getattr(torch.ops.aten, name, None)
    if not isinstance(fn, types.BuiltinFunctionType) or getattr(torch, name, None) is not fn or packet is None:
        return False
    overloads = [getattr(packet, overload) for overload in packet.overloads()]
    unsafe = {getattr(torch.Tag, tag, None) for tag in _UNSAFE}
    functional = [op for op in overloads if not op._schema.is_mutable]
    return bool(functional) and not name.endswith("_") and all(unsafe.isdisjoint(op.tags) for op in overloads)


def has_grouped_kernel(index: int | None) -> bool:
    """Check whether torch has a kernel for grouped matmuls in bfloat16 on a GPU. Otherwise it reads `offs` on the host.

    Without a GPU, only tests ask.
    """
    return not torch.cuda.is_available() or torch.cuda.get_device_capability(index)[0] in (9, 10)


# -- capturing --------------------------------------------------------------------------------------------------------
def capture(fn: Callable[..., Any], inputs: Sequence[Any], pools: Pools, tables: Sequence[int] = ()) -> Graph:
    """Capture `fn` on `inputs`. `tables` are the sizes of the tables that it makes (`runtime/device_tables.py`)."""
    devices = {x.device for x in inputs if isinstance(x, torch.Tensor)}
    device = devices.pop() if len(devices) == 1 else None
    if device is None or device.type != "cuda":
        names = ", ".join(sorted(map(str, devices))) or device
        raise RuntimeError(f"its inputs are on {names} instead of one GPU")
    with torch.cuda.device(device), torch.no_grad():
        made = GraphTables(device, tables)
        graph = _captured(fn, inputs, pools, made)
        made.write()
        return graph


_streams: dict[torch.device, torch.cuda.Stream] = {}


def _captured(fn: Callable[..., Any], inputs: Sequence[Any], pools: Pools, tables: GraphTables) -> Graph:
    device = tables.memory.device
    handle, graphs = pools.of(device)
    graph = torch.cuda.CUDAGraph()
    stream = _streams.get(device)
    if stream is None:
        stream = _streams[device] = torch.cuda.Stream(device)
    torch.cuda.synchronize(device)
    with torch.cuda.stream(stream):
        torch.ones(1, 1, device=device).mm(torch.ones(1, 1, device=device))  # creates the thread's handle of cuBLAS
    torch.cuda.synchronize(device)
    _forget_workspaces()
    with torch.cuda.stream(stream):  # restored even if capturing fails
        try:
            graph.capture_begin(pool=handle, capture_error_mode="thread_local")
            graphs.add(graph)
            with tables:
                outputs = fn(*inputs)
            graph.capture_end()
        except BaseException:
            _streams.pop(device)
            graphs.discard(graph)
            _give_up(graph, handle, device)
            raise
        finally:
            _forget_workspaces()
    return Graph(graph.replay, outputs, device, tables)


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
