# SPDX-License-Identifier: Apache-2.0
"""Execution plans: cuDNN graphs that are built once for given shapes, strides and flags, and then executed cheaply.

A cuDNN handle belongs to one thread and one device. (Autograd runs backward in separate threads.) Each thread therefore
has a `Context` per device: a handle and a bounded cache of plans. A call looks up the plan and executes it on the
current stream, with a workspace from torch's allocator.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from thunder.toolkit.launch import current_cuda_device as current_device
from thunder.toolkit.launch import current_stream, new_tensor
from thunder_ex_cudnn.probe import capability_of

__all__ = [
    "Context",
    "Description",
    "Layout",
    "Plan",
    "Unsupported",
    "context",
    "current_device",
    "dense",
    "has_deterministic_attention",
    "library",
    "new_tensor",
    "packed_strides",
    "require_deterministic_attention",
    "type_of",
]

#: Logs the calls that fall back to torch.
log = logging.getLogger("thunder.cudnn")
_MOST = 256  # the maximal number of plans that a thread caches per device; the oldest plan is evicted

Ints = tuple[int, ...]
Layout = tuple[Ints, Ints]  # the shape and the strides


class Unsupported(RuntimeError):
    """Raised if cuDNN has no plan for a graph."""


def library() -> Any:
    """Return cuDNN's Python frontend. The first call imports it."""
    return importlib.import_module("cudnn")


def type_of(dtype: torch.dtype) -> Any:
    """Return cuDNN's name of a dtype."""
    names = {torch.float16: "HALF", torch.bfloat16: "BFLOAT16", torch.float32: "FLOAT", torch.int32: "INT32"}
    return getattr(library().data_type, names.get(dtype, "INT64"))


def has_deterministic_attention(device: int) -> bool:
    """Check whether cuDNN has a deterministic backward of attention on a GPU. Before Hopper it has none."""
    return capability_of(device) >= (9, 0)


def require_deterministic_attention(device: int, *, bias_grad: bool = False) -> None:
    """Raise Unsupported if cuDNN adds up gradients of attention in any order. For a bias it always does."""
    if bias_grad:
        raise Unsupported("cuDNN has no deterministic gradient of a bias")
    if not has_deterministic_attention(device):
        raise Unsupported("cuDNN has no deterministic backward of attention on this GPU")


class Plan:
    """A graph that is ready to run. `run(buffers)` accepts the tensors of the graph's description, in that order.

    outputs: the shape, strides and dtype of each tensor that the caller allocates.
    """

    __slots__ = ("context", "execute", "outputs", "workspace")

    def __init__(self, context: Context, graph: Any, tensors: Sequence[Any], outputs: Sequence[Any]):
        self.context = context
        self.workspace = int(graph.get_workspace_size())
        self.outputs = tuple(outputs)
        uids = tuple(x.get_uid() for x in tensors)
        self.execute = _by_address(graph, uids, context.handle) or _by_tensor(graph, uids, context.handle)

    def run(self, buffers: Sequence[torch.Tensor]) -> None:
        """Execute the plan on the current device and its current stream.

        The current device must be the plan's device.
        """
        context = self.context
        stream = current_stream(context.device)
        handle = context.handle
        if handle.stream != stream:
            library().set_stream(handle, stream)
        size = self.workspace
        self.execute(buffers, new_tensor((size,), (1,), torch.uint8) if size else None)


def _by_tensor(graph: Any, uids: tuple[int, ...], handle: Any) -> Callable[[Any, Any], None]:
    """Return the frontend's public function that executes a graph. It inspects each tensor at every call."""

    def execute(buffers: Sequence[torch.Tensor], workspace: torch.Tensor | None) -> None:
        graph.execute(tuple(buffers), workspace, handle, tensor_uids=uids)

    return execute


def _by_address(graph: Any, uids: tuple[int, ...], handle: Any) -> Callable[[Any, Any], None] | None:
    """Return the frontend's private function that executes a graph by addresses; None if it does not exist.

    The addresses are in an array, in the order of the tensors' uids. A plan belongs to one thread, so it owns the
    array.
    """
    lowered = getattr(graph, "_lowered_graph", None)
    run = getattr(lowered, "_execute_with_raw_ptrs", None)
    raw = getattr(handle, "backend_handle", None)
    try:
        if run is None or raw is None or graph.selected_engine is not None:  # an engine of the frontend
            return None
        index = graph.plans[graph._plan_index].cpp_index
        order = list(graph._variant_pack_uids() or ())
    except (AttributeError, IndexError):
        return None
    if sorted(order) != sorted(uids):
        return None
    count = len(uids)
    addresses = (ctypes.c_void_p * count)()
    where = ctypes.addressof(addresses)
    places = [uids.index(uid) for uid in order]
    in_order = places == list(range(count))
    chosen = -1 if index is None else index

    def execute(buffers: Sequence[torch.Tensor], workspace: torch.Tensor | None) -> None:
        found = [x.data_ptr() for x in buffers]
        addresses[:] = found if in_order else [found[i] for i in places]
        run(where, count, 0 if workspace is None else workspace.data_ptr(), raw, chosen)

    return execute


class Context:
    """The cuDNN handle and the plans of one thread on one device."""

    def __init__(self, device: int):
        self.device = device
        self.plans: dict[Hashable, Any] = {}
        with torch.cuda.device(device):
            self.handle = library().create_handle()
        # Destroy the handle when the thread ends, but not when the process exits: CUDA may then be shut down already.
        weakref.finalize(self, library().destroy_handle, self.handle).atexit = False

    def make(self, key: Hashable, build: Callable[[Context], Any], what: str) -> Any:
        """Build and cache the plan of a new key; None if cuDNN has no plan for it."""
        try:
            with torch.cuda.device(self.device):
                made = build(self)
        except Unsupported as error:
            log.warning("%s falls back to torch: %s", what, error)
            made = None
        if len(self.plans) >= _MOST:
            del self.plans[next(iter(self.plans))]
        self.plans[key] = made
        return made


class Description:
    """A graph under construction, and its tensors in the order of the caller's arguments."""

    def __init__(self, context: Context, dtype: torch.dtype):
        kinds = library().data_type
        self.context = context
        self.graph: Any = library().pygraph(
            name="thunder",
            io_data_type=type_of(dtype),
            intermediate_data_type=kinds.FLOAT,
            compute_data_type=kinds.FLOAT,
            handle=context.handle,
        )
        self.tensors: list[Any] = []
        self.outputs: list[tuple[Ints, Ints, torch.dtype]] = []

    def tensor(self, name: str, layout: Layout, dtype: torch.dtype, **more: Any) -> Any:
        """Return a new input tensor."""
        shape, strides = layout
        made = self.graph.tensor(name=name, dim=list(shape), stride=list(strides), data_type=type_of(dtype), **more)
        self.tensors.append(made)
        return made

    def result(self, made: Any, layout: Layout, dtype: torch.dtype) -> None:
        """Make the result of an operation an output, which the caller allocates."""
        shape, strides = layout
        made.set_output(True).set_dim(list(shape)).set_stride(list(strides)).set_data_type(type_of(dtype))
        self.tensors.append(made)
        self.outputs.append((shape, strides, dtype))

    def plan(self) -> Plan:
        """Build the plan. Raise Unsupported if cuDNN has none."""
        cudnn = library()
        try:
            self.graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        except (cudnn.cudnnGraphNotSupportedError, ValueError, RuntimeError) as error:
            raise Unsupported(f"cuDNN {cudnn.backend_version()} has no plan for this graph: {error}") from error
        return Plan(self.context, self.graph, self.tensors, self.outputs)


class _Threads(threading.local):
    def __init__(self) -> None:
        self.contexts: dict[int, Context] = {}


_threads = _Threads()


def context(device: int) -> Context:
    """Return this thread's context of a device. The device must be current when the context's plans run."""
    found = _threads.contexts.get(device)
    if found is None:
        found = _threads.contexts[device] = Context(device)
    return found


def dense(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor. Copy it if it is not contiguous or not aligned to 16 bytes."""
    x = x.contiguous()
    return x.clone() if x.data_ptr() & 15 else x


def packed_strides(shape: Ints, strides: Ints) -> Ints:
    """Return dense strides for a shape. The dimensions have the order of `strides`.

    The last dimension is innermost. Dimensions of size 1, whose strides are arbitrary, are outermost.
    """
    last = len(shape) - 1
    out, step = [0] * len(shape), 1
    for dim in sorted(range(len(shape)), key=lambda d: (d != last, shape[d] == 1, strides[d], -d)):
        out[dim] = step
        step *= max(shape[dim], 1)
    return tuple(out)
