# SPDX-License-Identifier: Apache-2.0
"""`CUDAGraphTransform`: stretches of a program are captured as CUDA graphs and launched at once.

Contract: results are those of the program, also when tensors that were passed in or returned earlier are still in use,
and when the addresses of parameters and arguments change; calls come one at a time, on one stream. Each specialization
has graphs of its own. A stretch is run as it is the first time and captured the second. Inputs that stay where they are
(parameters, a cache) are read there; others are copied to where the graph reads. Results are copied out of the graph's
memory. Random numbers come from torch's generator, which each launch advances, and repeat under `manual_seed`. Writes
to memory, operations on the CPU and those that wait for the device stay outside, between the stretches.

Where there is nothing to capture, the trace says so in a comment, and the program runs as it did. A capture that fails
is a warning with the reason, and the stretch runs uncaptured from then on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder.core import prims
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, OpTags, Symbol
from thunder.core.trace import Trace, construct
from thunder.transforms.base import PassContext, Transform
from thunder.transforms.debugging import runs
from thunder.transforms.region import Region, without_views

__all__ = ["CUDAGraphTransform", "CapturedRegion"]

_LEFT_OUT = frozenset({OpTags.IN_PLACE_OP, OpTags.SIDE_EFFECT, OpTags.DEVICE_SYNC_OP, OpTags.OPAQUE_OP})


class CUDAGraphTransform(Transform):
    """Captures stretches of at least `min_operations` operations on a GPU."""

    changes_results = False

    def __init__(self, *, min_operations: int = 2):
        if min_operations < 1:
            raise ValueError(f"CUDAGraphTransform: min_operations is at least 1, not {min_operations}")
        self.min_operations = min_operations
        self.reason: str | None = None  # why nothing of the last program was captured

    def transform_claimed(self, trace: Trace, context: PassContext) -> Trace:
        count = 0
        with construct(trace, "CUDA Graphs") as out:
            for stretch in _stretches(trace, self.min_operations):
                if isinstance(stretch, Region):
                    before, inner, after = without_views(stretch)
                    if len(inner) < self.min_operations:
                        out.bound_symbols += stretch.operations
                        continue
                    out.bound_symbols += [*before, _captured(f"CUDAGraph{count}", inner), *after]
                    count += 1
                else:
                    out.record(stretch)
            self.reason = None if count else _why_nothing(trace, self.min_operations)
            if self.reason is not None:
                line = BoundSymbol(prims.comment, (f"CUDA graphs: {self.reason}",), {}, None)
                first = next((i for i, op in enumerate(out.bound_symbols) if not _is_input(op)), 0)
                out.bound_symbols.insert(first, line)
        return out


def _is_input(bsym: BoundSymbol) -> bool:
    return OpTags.UNPACK_OP in bsym.sym.tags


def _why_not(bsym: BoundSymbol) -> str | None:
    """Why an operation cannot be part of a graph."""
    if not runs(bsym) or not bsym.out_names:
        return "is no computation"
    if _has_tag(bsym):
        return "writes memory, waits for the device, or is not looked into"
    tensors = (*bsym.flat_args, *bsym.flat_outs)
    if not all(isinstance(p, TensorProxy) and p.device.type == "cuda" for p in tensors):
        return "is not on a GPU"
    if any(type(d) is not int for p in tensors for d in p.shape):  # type: ignore[attr-defined]
        return "has sizes that are only known at the call"
    return None


def _has_tag(bsym: BoundSymbol) -> bool:
    return not _LEFT_OUT.isdisjoint(bsym.sym.tags) or any(_has_tag(sub) for sub in bsym.subsymbols)


def _why_nothing(trace: Trace, min_operations: int) -> str:
    reasons = dict.fromkeys(f"{op.sym.name} {why}" for op in trace.bound_symbols if runs(op) and (why := _why_not(op)))
    if not reasons:
        return f"not captured, there are fewer than {min_operations} operations"
    return f"not captured, {next(iter(reasons))}"


def _stretches(trace: Trace, min_operations: int) -> list[BoundSymbol | Region]:
    read: dict[str, int] = {}
    for bsym in trace.bound_symbols:
        for name in set(bsym.arg_names):
            read[name] = read.get(name, 0) + 1
    parts: list[BoundSymbol | Region] = []
    stretch: list[BoundSymbol] = []

    def close() -> None:
        if len(stretch) >= min_operations:
            parts.append(Region(stretch, None, read))
        else:
            parts.extend(stretch)
        stretch.clear()

    for bsym in trace.bound_symbols:
        if _why_not(bsym) is None:
            stretch.append(bsym)
        else:
            close()
            parts.append(bsym)
    close()
    return parts


def _captured(name: str, region: Region) -> BoundSymbol:
    inner = Trace(name, args=region.inputs)
    inner.names.update(n for op in region.operations for n in (*op.arg_names, *op.out_names))
    inner.bound_symbols += region.operations
    inner.bound_symbols.append(BoundSymbol(prims.python_return, (region.outputs,), {}, None))
    fn = CapturedRegion(name, inner.python_callable())

    def meta(*args: Any) -> Any:
        return region.outputs

    sym = Symbol(name, meta, id=("cuda_graph", id(fn)), is_prim=True, fn=fn)
    sym.is_fusion = True
    return BoundSymbol(sym, region.inputs, {}, region.outputs, region.operations)


class CapturedRegion:
    """A stretch of a program that is launched as one graph from its second call on."""

    def __init__(self, name: str, fn: Callable[..., Any]):
        self.name = self.__name__ = name
        self.fn = fn
        self.captures = 0
        self.failed: str | None = None
        self._seen: list[int] | None = None  # where the inputs were at the last call
        self._moving: set[int] = set()  # the inputs that do not stay where they are
        self._launch: Callable[[], None] | None = None
        self._static: dict[int, torch.Tensor] = {}
        self._outputs: Sequence[torch.Tensor] = ()

    def __call__(self, *inputs: torch.Tensor) -> Any:
        if self.failed is not None or is_capturing():  # a part of a graph that somebody else captures
            return self.fn(*inputs)
        seen, self._seen = self._seen, [x.data_ptr() for x in inputs]
        if seen is None:
            return self.fn(*inputs)
        moved = {i for i, (old, new) in enumerate(zip(seen, self._seen)) if old != new} - self._moving
        if moved or self._launch is None:
            self._moving |= moved
            if not self._capture(inputs):
                return self.fn(*inputs)
        for i, memory in self._static.items():
            memory.copy_(inputs[i])
        assert self._launch is not None
        self._launch()
        return tuple([x.clone() for x in self._outputs])

    def _capture(self, inputs: Sequence[torch.Tensor]) -> bool:
        self._static = {i: inputs[i].detach().clone() for i in self._moving}
        given = [self._static.get(i, x) for i, x in enumerate(inputs)]
        try:
            self._launch, self._outputs = capture(self.fn, given)
        except Exception as error:
            self.failed = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            self._launch, self._static = None, {}
            warnings.warn(f"CUDA graphs: {self.name} is not captured ({self.failed})", stacklevel=4)
            return False
        self.captures += 1
        return True

    def __repr__(self) -> str:
        return f"<{self.name}>"


def is_capturing() -> bool:
    """Whether a graph is being captured already."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


_pools: dict[torch.device, Any] = {}


def capture(
    fn: Callable[..., Any], inputs: Sequence[torch.Tensor]
) -> tuple[Callable[[], None], Sequence[torch.Tensor]]:
    """What launches `fn` on these inputs, and where its results are after each launch.

    `fn` is run on a stream of its own first, since libraries allocate and choose at their first calls; the generator is
    put back to where it was. All graphs of a device share memory: what is in there lives no longer than a launch.
    """
    device = inputs[0].device if inputs else torch.device("cuda", torch.cuda.current_device())
    state = torch.cuda.get_rng_state(device)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(2):
            fn(*inputs)
    torch.cuda.current_stream(device).wait_stream(stream)
    torch.cuda.set_rng_state(state, device)
    if device not in _pools:
        _pools[device] = torch.cuda.graph_pool_handle()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=_pools[device], capture_error_mode="thread_local"), torch.no_grad():
        outputs = fn(*inputs)
    return graph.replay, outputs
