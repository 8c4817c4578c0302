# SPDX-License-Identifier: Apache-2.0
"""`CUDAGraphTransform`: capture parts of a program as CUDA graphs.

A stretch is a sequence of operations that can be captured. It runs uncaptured in the first call, and is captured in the
second call. Each specialization has its own graphs, one for each of the first combinations of symbolic sizes.

Contract: the results stay the same, even if the addresses of parameters and arguments change. Tensors that were passed
in or returned earlier stay valid. Inputs with a constant address (e.g. parameters, a cache)
are read in place; other inputs are copied to static memory. Results are copied out of the graphs' memory pool. All
graphs of a transform share this pool, which is freed with the last graph. Random numbers come from torch's generator:
each launch advances the generator, and `manual_seed` repeats the numbers. Some operations are not captured: writes to
memory, operations on the CPU, and operations that synchronize with the device.

If nothing can be captured, the program runs unchanged, and a comment in the trace gives the reason. If a capture fails,
a warning gives the reason, which `thunder.explain` repeats. The stretch then runs uncaptured in all later calls. The
states of the generator, the stream and the memory are restored (`transforms/graph_capture.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from thunder.core import prims
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol, OpTags, Symbol, proxies_in
from thunder.core.trace import Trace, construct
from thunder.passes.region import Region, without_views
from thunder.transforms.base import PassContext, Transform, check_option
from thunder.transforms.debugging import runs

__all__ = ["CUDAGraphTransform"]

_GPU = "cuda"  # tests without a GPU patch this
_LEFT_OUT = frozenset({OpTags.IN_PLACE_OP, OpTags.SIDE_EFFECT, OpTags.DEVICE_SYNC_OP, OpTags.OPAQUE_OP})


class CUDAGraphTransform(Transform):
    """Capture stretches of at least `min_operations` operations on a GPU."""

    changes_results = False

    def __init__(self, *, min_operations: int = 2):
        good = type(min_operations) is int and min_operations >= 1
        check_option("CUDAGraphTransform", "min_operations", min_operations, good, "a whole number, at least 1")
        self.min_operations = min_operations
        self.reason: str | None = None  # the reason if no part of the last program was captured
        self._memory: Any = None

    def transform_claimed(self, trace: Trace, context: PassContext) -> Trace:
        # This module imports torch, which is not needed earlier.
        from thunder.transforms.graph_capture import CapturedRegion, Memory

        self._memory = self._memory or Memory()
        fixed = _laid_out_as_guarded(trace)
        count = 0
        with construct(trace, "CUDA Graphs") as out:
            for stretch in _stretches(trace, self.min_operations):
                if isinstance(stretch, Region):
                    before, inner, after = without_views(stretch)
                    if len(inner) < self.min_operations:
                        out.bound_symbols += stretch.operations
                        continue
                    name = f"CUDAGraph{count}"
                    run = CapturedRegion(name, _program(name, inner), self._memory, **_watched(inner.inputs, fixed))
                    out.bound_symbols += [*before, _operation(run, inner), *after]
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
    """Return the reason why an operation cannot be part of a graph, or None."""
    if not runs(bsym) or not bsym.out_names:
        return "is not a computation"
    if _has_tag(bsym):
        return "writes memory, waits for the device, or is opaque"
    values = (*bsym.flat_args, *bsym.flat_outs)
    if not all(p.device.type == _GPU for p in values if isinstance(p, TensorProxy)):
        return "is not on a GPU"
    if any(not isinstance(p, TensorProxy) for p in bsym.flat_outs) or not all(map(_is_known, _numbers(values))):
        return "has data-dependent sizes or numbers"
    if _has_seed_on_the_cpu(bsym):
        return "keeps its seed on the CPU"
    return None


def _numbers(values: Iterable[Any]) -> list[Any]:
    """Return the numbers among `values` and in the shapes of tensors."""
    return [n for p in values for n in (proxies_in(p.shape) if isinstance(p, TensorProxy) else [p])]


def _is_known(number: Any) -> bool:
    """Check whether a number is a constant, or a size that selects a graph."""
    return isinstance(number, NumberProxy) and number.python_type is int and number.value is not None


def _has_tag(bsym: BoundSymbol) -> bool:
    return not _LEFT_OUT.isdisjoint(bsym.sym.tags) or any(_has_tag(sub) for sub in bsym.subsymbols)


def _has_seed_on_the_cpu(bsym: BoundSymbol) -> bool:
    """Check for torch's efficient attention, which keeps its seed on the CPU except during capture."""
    is_it = bsym.sym in (prims.attention_dropout, prims.attention_dropout_backward)
    if is_it and any(isinstance(a, str) and a == "efficient" for a in bsym.args):
        return True
    return any(map(_has_seed_on_the_cpu, bsym.subsymbols))


def _why_nothing(trace: Trace, min_operations: int) -> str:
    reasons = dict.fromkeys(f"{op.sym.name} {why}" for op in trace.bound_symbols if runs(op) and (why := _why_not(op)))
    if not reasons:
        return f"not captured: there are fewer than {min_operations} operations"
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


def _laid_out_as_guarded(trace: Trace) -> frozenset[str] | None:
    """Return the values whose strides are the same in every call, or None if this holds for all values.

    These are the values computed from guarded inputs. The inputs of a backward program may have any strides.
    """
    if trace.name != "backward":
        return None
    return frozenset(name for op in trace.bound_symbols if op.sym is prims.unpack_saved for name in op.out_names)


def _watched(inputs: Iterable[Proxy], fixed: frozenset[str] | None) -> dict[str, tuple[int, ...]]:
    """Return the inputs whose sizes must be checked at a launch, and those whose strides must be checked."""
    tensors = {i: p for i, p in enumerate(inputs) if isinstance(p, TensorProxy)}
    sizes = tuple(i for i, p in enumerate(inputs) if i not in tensors or _numbers([p]))
    strides = () if fixed is None else tuple(i for i, p in tensors.items() if p.name not in fixed)
    return {"sizes": sizes, "strides": strides}


def _program(name: str, region: Region) -> Any:
    """Return the region as a function of its inputs."""
    inner = Trace(name, args=region.inputs)
    inner.names.update(n for op in region.operations for n in (*op.arg_names, *op.out_names))
    inner.bound_symbols += region.operations
    inner.bound_symbols.append(BoundSymbol(prims.python_return, (region.outputs,), {}, None))
    return inner.python_callable()


def _operation(run: Any, region: Region) -> BoundSymbol:
    """Return the region as one operation."""

    def meta(*args: Any) -> Any:
        return region.outputs

    sym = Symbol(run.name, meta, id=("cuda_graph", id(run)), is_prim=True, fn=run)
    sym.is_fusion = True
    return BoundSymbol(sym, region.inputs, {}, region.outputs, region.operations)
