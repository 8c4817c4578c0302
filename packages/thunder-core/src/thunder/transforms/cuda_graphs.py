# SPDX-License-Identifier: Apache-2.0
"""`CUDAGraphTransform`: capture parts of a program as CUDA graphs.

A stretch is a sequence of operations that can be captured. It runs uncaptured in the first call, and is captured in a
later one: the second, or with `auto` as soon as it is known to be worth it. Each specialization has its own graphs, one
for each of the first combinations of symbolic sizes.

Contract: the pass runs last, on operations that may write to inputs. The results stay the same, even if the addresses
of parameters and arguments change. Tensors that were passed in or returned earlier stay valid. Inputs with a constant
address (e.g. parameters, a cache) are read in place; other inputs are copied to static memory. Inputs that a stretch
writes to are never copied. Some results are read where the graph wrote them (`lent_results.py`): those that only the
program itself reads, values saved for a backward program, gradients that the program assigns to `.grad`, and those that
a backward program returns. Other results are copied out of the graphs' memory pool. All forward graphs of a transform
share a pool, and all graphs of backward programs share another one, because gradients are still read when the next
forward graph is launched. A pool is freed with its last graph. Random numbers come from torch's generator: each launch
advances the generator, and `manual_seed` repeats the numbers. Some operations are not captured: operations on the CPU,
with numbers that change between calls, with effects, and operations that synchronize with the device.

If nothing can be captured, the program runs unchanged, and a comment in the trace gives the reason. If a capture fails,
a warning gives the reason, which `thunder.explain` repeats. The stretch then runs uncaptured in all later calls. The
states of the generator, the stream and the memory are restored (`transforms/graph_capture.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from thunder.core import prims
from thunder.core.dtypes import bfloat16
from thunder.core.nbytes import bytes_of
from thunder.core.prims.structure import Saved
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol, OpTags, Symbol, proxies_in
from thunder.core.trace import Trace, construct
from thunder.passes.deletion import delete_last_used, stage_ends
from thunder.passes.operation_memory import shared_arguments, written_arguments
from thunder.passes.postponing import innermost, may_fail
from thunder.passes.region import Region, without_views
from thunder.transforms.base import PassContext, Transform, check_option
from thunder.transforms.debugging import runs

__all__ = ["CUDAGraphTransform"]

_GPU = "cuda"  # tests without a GPU patch this
_LEFT_OUT = frozenset({OpTags.SIDE_EFFECT, OpTags.COLLECTIVE, OpTags.DEVICE_SYNC_OP, OpTags.OPAQUE_OP})
_NUMBERS = frozenset({prims.item, prims.items, prims.number})
# Operations that keep their place among others.
_ORDERED = frozenset(
    {OpTags.RANDOM_OP, OpTags.GENERATOR_STATE_OP, OpTags.IN_PLACE_OP, OpTags.SIDE_EFFECT, OpTags.COLLECTIVE,
     OpTags.OPAQUE_OP, OpTags.CHECK_OP}
)  # fmt: skip
# Operations that return their argument or a copy, with memory that the program uses for nothing else.
_OWN_MEMORY = frozenset({"new_gradient"})
# The fewest operations of a stretch that `cuda_graphs="auto"` considers.
_AUTO = 12
# A result of this size takes longer to copy out of a graph's memory than the host needs to launch the operations that
# compute it, if they are the last ones and not more than these.
_LARGE_RESULT = 1 << 24
_LAST = 16


class CUDAGraphTransform(Transform):
    """Capture stretches of at least `min_operations` operations on a GPU.

    With `auto`, a stretch is captured only if the GPU waits for the host in its first calls, and if memory suffices.
    """

    changes_results = False

    def __init__(self, *, min_operations: int | None = None, auto: bool = False):
        fewest = (_AUTO if auto else 2) if min_operations is None else min_operations
        good = type(fewest) is int and fewest >= 1
        check_option("CUDAGraphTransform", "min_operations", min_operations, good, "a whole number, at least 1")
        self.min_operations = fewest
        self.auto = auto
        self.reason: str | None = None  # the reason if no part of the last program was captured
        self._memory: Any = None

    def saved_key(self) -> str:
        return f"{self.min_operations} {self.auto}"

    def transform_final(self, trace: Trace, context: PassContext) -> Trace:
        if self.auto and not any(map(_is_on_gpu, trace.bound_symbols)):
            return trace
        # These modules import torch, which is not needed earlier.
        from thunder.transforms.captured_region import CapturedRegion
        from thunder.transforms.graph_capture import Memory

        self._memory = self._memory or Memory()
        fixed = _laid_out_as_guarded(trace)
        kept = _kept(trace, _results(trace))
        returned = _kept(trace, [trace.output]) if _is_backward(trace) else set()
        made = {name for op in trace.bound_symbols if _creates(op) for name in op.out_names}
        count = 0
        with construct(trace, "CUDA Graphs") as out:
            for stretch in _stretches(trace, self.min_operations, kept, _saved(trace)):
                if isinstance(stretch, Region):
                    before, inner, after = without_views(stretch, inside=_OWN_MEMORY)
                    if len(inner) < self.min_operations:
                        out.bound_symbols += stretch.operations
                        continue
                    name = f"CUDAGraph{count}"
                    program = _program(name, inner)
                    run = CapturedRegion(
                        name,
                        program.python_callable(),
                        self._memory,
                        written=_written(inner),
                        lent=[k for k, p in enumerate(inner.outputs) if p.name not in kept],
                        returned=[k for k, p in enumerate(inner.outputs) if p.name in returned - kept],
                        backward=_is_backward(trace),
                        moving=[k for k, p in enumerate(inner.inputs) if p.name in made],
                        tables=[n for op in inner.operations for n in getattr(op.sym.fn, "table_sizes", ())],
                        auto=self.auto,
                        needs=_most_bytes(inner),
                        keeps=_bytes_of_results(inner) if _saves(trace) or _is_backward(trace) else 0,
                        reads=sum(bytes_of(p) for p in inner.inputs if isinstance(p, TensorProxy) and _numbers([p])),
                        **_watched(inner.inputs, fixed),
                    )
                    run.trace = program
                    out.bound_symbols += [*before, _operation(run, inner), *after]
                    count += 1
                else:
                    out.record(stretch)
            self.reason = None if count else _why_nothing(trace, self.min_operations)
            if self.reason is not None:
                line = BoundSymbol(prims.comment, (f"CUDA graphs: {self.reason}",), {}, None)
                first = next((i for i, op in enumerate(out.bound_symbols) if not _is_input(op)), 0)
                out.bound_symbols.insert(first, line)
        return out if count or not self.auto else trace


def _is_backward(trace: Trace) -> bool:
    """Check for a backward program that is not differentiated itself: torch's autograd receives its results."""
    return trace.name == "backward" and not _saves(trace)


def _saves(trace: Trace) -> bool:
    output = trace.output
    return isinstance(output, tuple) and len(output) == 2 and isinstance(output[1], Saved)


def _is_on_gpu(bsym: BoundSymbol) -> bool:
    return any(isinstance(p, TensorProxy) and p.device.type == _GPU for p in bsym.flat_outs)


def _is_input(bsym: BoundSymbol) -> bool:
    return OpTags.UNPACK_OP in bsym.sym.tags


def _why_not(bsym: BoundSymbol) -> str | None:
    """Return the reason why an operation cannot be part of a graph, or None."""
    if not runs(bsym) or not bsym.out_names:
        return "is not a computation"
    declared = _declared(bsym)
    if declared is not None:
        return declared
    if _has_tag(bsym):
        return "has effects, waits for the device, or is opaque"
    if written_arguments(bsym) is None:
        return "writes to memory that is not known"
    if any(part.sym is prims.tensor_from_sequence for part in innermost(bsym)):
        return "copies from the host"
    values = (*bsym.flat_args, *bsym.flat_outs)
    if not all(p.device.type == _GPU for p in values if isinstance(p, TensorProxy)):
        return "is not on a GPU"
    if any(not isinstance(p, TensorProxy) for p in bsym.flat_outs) or not all(map(_is_known, _numbers(values))):
        return "has data-dependent sizes or numbers"
    if _has_seed_on_the_cpu(bsym):
        return "keeps its seed on the CPU"
    if _reads_groups_on_the_host(bsym):
        return "reads the ends of groups on the host"
    return None


def _declared(bsym: BoundSymbol) -> str | None:
    """Return why the executor does not want an operation in a graph (`capturable=`), or None."""
    found = bsym.sym.capturable
    if callable(found):
        found = found(*bsym.args, **bsym.kwargs)
    return None if found is True else found or f"must not be captured, as the executor {bsym.sym.executor} says"


def _numbers(values: Iterable[Any]) -> list[Any]:
    """Return the numbers among `values` and in the shapes of tensors."""
    return [n for p in values for n in (proxies_in(p.shape) if isinstance(p, TensorProxy) else [p])]


def _is_known(number: Any) -> bool:
    """Check whether a number is a constant, or a size that selects a graph."""
    return isinstance(number, NumberProxy) and number.python_type is int and number.value is not None


def _has_tag(bsym: BoundSymbol) -> bool:
    found = _LEFT_OUT & bsym.sym.tags
    if found == {OpTags.OPAQUE_OP}:
        from thunder.transforms.graph_capture import can_be_captured  # imports torch

        copies = not any(isinstance(p, TensorProxy) for p in bsym.flat_args)  # from the host
        return copies or not can_be_captured(bsym.sym.fn)
    return bool(found) or any(_has_tag(sub) for sub in bsym.subsymbols)


def _has_seed_on_the_cpu(bsym: BoundSymbol) -> bool:
    """Check for torch's efficient attention, which keeps its seed on the CPU except during capture."""
    is_it = bsym.sym in (prims.attention_dropout, prims.attention_dropout_backward)
    if is_it and any(isinstance(a, str) and a == "efficient" for a in bsym.args):
        return True
    return any(map(_has_seed_on_the_cpu, bsym.subsymbols))


def _reads_groups_on_the_host(bsym: BoundSymbol) -> bool:
    """Check for a grouped matmul for which torch has no kernel that reads the ends of groups on the GPU."""
    for part in innermost(bsym):
        if part.sym is prims.grouped_mm and len(part.tensors()) == 3:
            from thunder.transforms.graph_capture import has_grouped_kernel  # imports torch

            out = part.output
            if out.dtype is not bfloat16 or not has_grouped_kernel(out.device.index):
                return True
    return False


def _why_nothing(trace: Trace, min_operations: int) -> str:
    reasons = dict.fromkeys(f"{op.sym.name} {why}" for op in trace.bound_symbols if runs(op) and (why := _why_not(op)))
    if not reasons:
        return f"not captured: there are fewer than {min_operations} operations"
    return f"not captured, {next(iter(reasons))}"


def _stretches(trace: Trace, min_operations: int, kept: set[str], saved: set[str]) -> list[BoundSymbol | Region]:
    """Return the program as stretches that can be captured, and the operations between them.

    An operation on the host does not end a stretch if it can be moved before or behind it. A stretch ends with a stage
    of a backward program, which hands over gradients there. Last operations that compute a large result are left out of
    a stretch: `kept` are the values that the caller keeps, and `saved` those that the backward program reads.
    """
    ends = {*stage_ends(trace)} if "stages" in trace.info else set()
    read: dict[str, int] = {}
    for bsym in trace.bound_symbols:
        for name in set(bsym.arg_names):
            read[name] = read.get(name, 0) + 1
    parts: list[BoundSymbol | Region] = []
    stretch: list[BoundSymbol] = []
    behind: list[BoundSymbol] = []  # operations on the host that were moved behind the stretch
    made: set[str] = set()  # the values of both
    made_behind: set[str] = set()

    def close() -> None:
        end = _first_of_large_results(stretch, kept, saved)
        if end >= min_operations:
            parts.append(Region(stretch[:end], None, read))
            parts.extend(stretch[end:])
        else:
            parts.extend(stretch)
        parts.extend(behind)
        for found in (stretch, behind, made, made_behind):
            found.clear()

    for i, bsym in enumerate(trace.bound_symbols):
        if _why_not(bsym) is None:
            if not made_behind.isdisjoint(bsym.arg_names):
                close()
            stretch.append(bsym)
            made.update(bsym.out_names)
        elif stretch and _may_come_first(bsym, bool(behind)) and made.isdisjoint(bsym.arg_names):
            parts.append(bsym)
        elif stretch and _is_on_host(bsym):
            behind.append(bsym)
            made.update(bsym.out_names)
            made_behind.update(bsym.out_names)
        else:
            close()
            parts.append(bsym)
        if i in ends:
            close()
    close()
    return parts


def _first_of_large_results(stretch: list[BoundSymbol], kept: set[str], saved: set[str]) -> int:
    """Return the number of operations before the first of the last ones that computes a large result of the program.

    All operations are counted if more would be copied without the last ones: the backward graph reads what they save
    where the forward graph wrote it.
    """
    end, last = len(stretch), 0
    gain = gain_at_end = 0  # the bytes that are copied less without the last operations
    for i in reversed(range(len(stretch))):
        if OpTags.VIEW_OP in stretch[i].sym.tags:
            continue
        last += 1
        if last > _LAST:
            break
        made = {p.name: bytes_of(p) for p in stretch[i].flat_outs if isinstance(p, TensorProxy)}
        gain += sum(size if name in kept else -size for name, size in made.items() if name in kept or name in saved)
        if any(name in kept and size >= _LARGE_RESULT for name, size in made.items()):
            end, gain_at_end = i, gain
    return end if gain_at_end > 0 else len(stretch)


def _creates(bsym: BoundSymbol) -> bool:
    """Check whether an operation only computes tensors and numbers from numbers."""
    if not runs(bsym) or bsym.has_effect or may_fail(bsym) or _has_tag(bsym):
        return False
    return bool(bsym.out_names) and not any(isinstance(p, TensorProxy) for p in bsym.flat_args)


def _may_come_first(bsym: BoundSymbol, after_writes: bool) -> bool:
    """Check whether an operation may run before a stretch: one that reads and computes on the host only.

    If it fails, the stretch has not run. It reads no memory that operations before it may have written.
    """
    if _creates(bsym):
        return True
    if not (runs(bsym) or bsym.sym in _NUMBERS) or not bsym.out_names or _is_ordered(bsym):
        return False
    read = [p for p in bsym.flat_args if isinstance(p, TensorProxy)]
    return _is_on_cpu([*read, *bsym.flat_outs]) and not (read and after_writes)


def _is_ordered(bsym: BoundSymbol) -> bool:
    return not _ORDERED.isdisjoint(bsym.sym.tags) or any(map(_is_ordered, bsym.subsymbols))


def _is_on_cpu(values: Iterable[Any]) -> bool:
    return all(p.device.type == "cpu" for p in values if isinstance(p, TensorProxy))


def _is_on_host(bsym: BoundSymbol) -> bool:
    """Check whether an operation has to do only with the host's memory, and does nothing else, e.g. end the run."""
    values = (*bsym.flat_args, *bsym.flat_outs)
    if not runs(bsym) or may_fail(bsym) or _has_tag(bsym) or written_arguments(bsym) is None:
        return False
    if not all(map(_is_known, _numbers(values))):  # arithmetic on numbers may fail, too
        return False
    return _is_on_cpu(values)


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


def _written(region: Region) -> list[int]:
    """Return the indices of the inputs that a region writes to."""
    names: set[str] = set()
    for op in reversed(region.operations):
        names.update(written_arguments(op) or ())
        if not names.isdisjoint(op.out_names):
            shared = shared_arguments(op)
            names.update(op.arg_names if shared is None else shared)
    return [i for i, p in enumerate(region.inputs) if p.name in names]


def _saved(trace: Trace) -> set[str]:
    """Return the values that a forward program saves."""
    return {p.name for p in trace.output[1]} if _saves(trace) else set()


def _results(trace: Trace) -> list[Any]:
    """Return what the caller of the program keeps, other than as saved values or as gradients."""
    output = trace.output
    if _saves(trace):
        return [output[0]]
    if _is_backward(trace):
        return []
    gradients = trace.info.get("gradients", frozenset())
    results = output if gradients else (output,)
    return [x for i, x in enumerate(results) if i not in gradients]


def _kept(trace: Trace, results: list[Any]) -> set[str]:
    """Return the values that may share memory with `results`, or with what an operation of unknown memory keeps."""
    kept = {p.name for x in results for p in proxies_in(x)}
    for op in reversed(trace.bound_symbols):
        if op.sym.is_return:
            continue
        shared = shared_arguments(op)
        if shared is None:
            kept.update(op.arg_names)
        elif not kept.isdisjoint(op.out_names):
            kept.update(shared)
    return kept


def _bytes_of_results(region: Region) -> int:
    """Estimate the bytes that the results of a region stay allocated with."""
    read = {p.name for p in region.outputs}
    own = [op for op in region.operations if OpTags.VIEW_OP not in op.sym.tags and not written_arguments(op)]
    return sum(bytes_of(p) for op in own for p in op.flat_outs if p.name in read)


def _most_bytes(region: Region) -> int:
    """Estimate the most bytes of the values of a region that are alive at a time."""
    last = {name: i for i, op in enumerate(region.operations) for name in op.arg_names}
    last.update({p.name: len(region.operations) for p in region.outputs})
    alive = most = 0
    ends: dict[int, int] = {}
    for i, op in enumerate(region.operations):
        if OpTags.VIEW_OP not in op.sym.tags and not written_arguments(op):
            for p in op.flat_outs:
                alive += bytes_of(p)
                end = last.get(p.name, i)
                ends[end] = ends.get(end, 0) + bytes_of(p)
        most = max(most, alive)
        alive -= ends.pop(i, 0)
    return most


def _program(name: str, region: Region) -> Trace:
    """Return the region as a program of its own."""
    inner = Trace(name, args=region.inputs)
    inner.names.update(n for op in region.operations for n in (*op.arg_names, *op.out_names))
    inner.bound_symbols += region.operations
    inner.bound_symbols.append(BoundSymbol(prims.python_return, (region.outputs,), {}, None))
    return delete_last_used(inner)


def _operation(run: Any, region: Region) -> BoundSymbol:
    """Return the region as one operation."""

    def meta(*args: Any) -> Any:
        return region.outputs

    sym = Symbol(run.name, meta, id=("cuda_graph", id(run)), is_prim=True, fn=run)
    sym.is_fusion = True
    return BoundSymbol(sym, region.inputs, {}, region.outputs, region.operations)
