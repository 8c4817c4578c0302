# SPDX-License-Identifier: Apache-2.0
"""Calls of process groups in a traced program.

All functions of torch.distributed that communicate call a method of a `ProcessGroup`. While a program is traced, these
methods record primitives and return a `TracedWork`. A method that is not recorded ends the trace: the program runs
eagerly, and the modules that it calls are compiled.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import torch

from thunder.capture.base.fallback import fall_back
from thunder.capture.dispatch.collectives import check_scope, start, wait
from thunder.capture.dispatch.writing import assign
from thunder.capture.tensors import aliasing
from thunder.capture.tensors.handle import Handle
from thunder.capture.tensors.layout import memory_order
from thunder.capture.tensors.tracer import Tracer, needs_grad, tensors_in
from thunder.core import prims
from thunder.core.groups import Group
from thunder.core.state import state
from thunder.torch.collectives import group_named, joins_tensors, reduction_name

__all__ = ["TracedWork", "replaced_methods"]

F = TypeVar("F", bound=Callable[..., Any])

#: The methods that are recorded: `(tracer, group, *arguments of the method) -> work`.
_RECORDED: dict[str, Callable[..., TracedWork]] = {}

# The methods of a process group that communicate. All functions of torch.distributed call them.
_METHODS = (
    "_end_coalescing", "_start_coalescing", "all_gather_single", "all_gather_single_coalesced", "all_to_all_single",
    "allgather", "_allgather_base", "allgather_coalesced", "allgather_into_tensor_coalesced", "allreduce",
    "allreduce_coalesced", "alltoall", "alltoall_base", "barrier", "broadcast", "gather", "monitored_barrier", "recv",
    "recv_anysource", "reduce", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single",
    "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", "scatter", "send",
)  # fmt: skip


class TracedWork:
    """The work that a traced collective returns: `wait` assigns the results to `targets`, which receive them.

    Until then, nothing may use the targets.
    """

    def __init__(
        self, tracer: Tracer, results: Sequence[Handle], finish: Callable[..., None], targets: Sequence[Any] = ()
    ):
        self._tracer = tracer
        self._rest: tuple[Sequence[Handle], Callable[..., None]] | None = (results, finish)
        self._pending = [tracer.handle_of(x) for x in targets]
        with tracer.recording():
            for x in self._pending:
                aliasing.check_pending(x)
        for x in self._pending:
            x._storage.pending += (x,)
        tracer.communication.works.append(self)

    def wait(self, timeout: Any = None) -> bool:
        """Record the wait for the collective, and the assignment of its results."""
        if self._rest is not None:
            (results, finish), self._rest = self._rest, None  # it must not keep tensors of the trace alive
            self._tracer.communication.works.remove(self)
            for x in self._pending:
                x._storage.pending = tuple([other for other in x._storage.pending if other is not x])
            self._pending.clear()
            finish(*[wait(self._tracer, x) for x in results])
        return True

    def synchronize(self) -> None:
        """Record the wait for the collective."""
        self.wait()

    block_current_stream = synchronize

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Make `isinstance(work, torch.distributed.Work)` true."""
        return torch.distributed.Work  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return fall_back(f"the program reads `{name}` of a collective's work, which depends on the other processes")


def _recorded(*names: str) -> Callable[[F], F]:
    def register(record: F) -> F:
        _RECORDED.update(dict.fromkeys(names, record))
        return record

    return register


def replaced_methods() -> list[tuple[Any, str, Any]]:
    """Return the replacements of the methods of process groups."""
    group: Any = getattr(sys.modules.get("torch._C._distributed_c10d"), "ProcessGroup", None)
    if group is None or not torch.distributed.is_initialized():
        return []
    return [(group, name, _replacement(name)) for name in _METHODS if hasattr(group, name)]


def _replacement(name: str) -> Callable[..., Any]:
    record = _RECORDED.get(name)
    if record is None:
        return functools.partial(_leave_to_python, name)

    def call(group: Any, *args: Any, **kwargs: Any) -> TracedWork:
        tracer: Any = state.frontend
        check_scope(tracer, f"`{name}` of torch.distributed")
        if torch.is_grad_enabled() and any(map(needs_grad, tensors_in(args, kwargs))):
            fall_back(f"the program calls `{name}` of torch.distributed on a tensor that requires grad")
        given = [_as_in_memory(tracer, name, x) for x in args]
        with tracer.recording():
            named = group_named(group)
        return record(tracer, named, *given, **kwargs)

    return call


# These take the elements in the order of memory, whatever the order of the dimensions, e.g. with channels last.
_IN_MEMORY_ORDER = ("allreduce", "broadcast", "reduce")


def _as_in_memory(tracer: Tracer, name: str, x: Any) -> Any:
    """Return a contiguous view of each tensor, or fall back: backends reject others, or ignore their strides."""
    if isinstance(x, (list, tuple)):
        return [_as_in_memory(tracer, name, item) for item in x]
    if not isinstance(x, torch.Tensor):
        return x
    with tracer.recording():
        handle = tracer.handle_of(x)
        aliasing.read(handle)  # finds the storage of the handle
        order = memory_order(handle)
    if order == list(range(x.dim())):
        return x
    if order is None or name not in _IN_MEMORY_ORDER:
        fall_back(f"the program calls `{name}` of torch.distributed on a tensor that is not contiguous")
    return x.permute(order)


def _leave_to_python(name: str, *args: Any, **kwargs: Any) -> NoReturn:
    fall_back(f"the program calls `{name}` of torch.distributed, which may communicate with other processes")


def _reduction(op: Any) -> str:
    name = reduction_name(op)
    return fall_back("the program calls a collective with a reduction that has a factor") if name is None else name


def _title(name: str) -> str:
    return f"torch.distributed.{name}"


def _in_place(tracer: Tracer, name: str, sym: Any, target: Any, *args: Any) -> TracedWork:
    """Record a collective that replaces the elements of `target`."""
    result = start(tracer, _title(name), sym, tracer.handle_of(target), *args)
    return TracedWork(tracer, [result], lambda found: assign(tracer, target, found, name), [target])


@_recorded("allreduce", "allreduce_coalesced")
def _all_reduce(tracer: Tracer, group: Group, tensors: Sequence[Any], opts: Any) -> TracedWork:
    op = _reduction(opts.reduceOp)
    if len(tensors) > 1 and joins_tensors(group.name, tensors[0].device):
        return _all_reduce_joined(tracer, group, tensors, op)
    works = [_in_place(tracer, "all_reduce", prims.all_reduce, x, op, group) for x in tensors]
    return works[0] if len(works) == 1 else _together(tracer, works)


def _all_reduce_joined(tracer: Tracer, group: Group, tensors: Sequence[Any], op: str) -> TracedWork:
    flat = tracer.handle_of(torch.cat([x.reshape(-1) for x in tensors]))
    result = start(tracer, _title("all_reduce_coalesced"), prims.all_reduce, flat, op, group)

    def finish(found: Any) -> None:
        for target, part in zip(tensors, found.split([x.numel() for x in tensors])):
            assign(tracer, target, part.reshape(target.shape), "all_reduce")

    return TracedWork(tracer, [result], finish, tensors)


def _together(tracer: Tracer, works: Sequence[TracedWork]) -> TracedWork:
    def finish() -> None:
        for work in works:
            work.wait()

    return TracedWork(tracer, [], finish)


@_recorded("reduce")
def _reduce(tracer: Tracer, group: Group, tensors: Sequence[Any], opts: Any) -> TracedWork:
    (target,) = tensors
    return _in_place(tracer, "reduce", prims.reduce, target, _reduction(opts.reduceOp), opts.rootRank, group)


@_recorded("broadcast")
def _broadcast(tracer: Tracer, group: Group, tensors: Sequence[Any], opts: Any) -> TracedWork:
    (target,) = tensors
    return _in_place(tracer, "broadcast", prims.broadcast, target, opts.rootRank, group)


@_recorded("_allgather_base", "all_gather_single")
def _all_gather(tracer: Tracer, group: Group, output: Any, input: Any, opts: Any = None) -> TracedWork:
    if output.dtype is not input.dtype or output.numel() != group.size * input.numel():
        fall_back("the program calls all_gather into a tensor that does not fit")  # eager mode raises torch's error
    result = start(tracer, _title("all_gather_into_tensor"), prims.all_gather, tracer.handle_of(input), group)
    return TracedWork(
        tracer, [result], lambda found: assign(tracer, output, found.reshape(output.shape), "all_gather"), [output]
    )


@_recorded("allgather")
def _all_gather_list(
    tracer: Tracer, group: Group, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], opts: Any = None
) -> TracedWork:
    (targets,), (given,) = outputs, inputs
    if any(x.shape != given.shape or x.dtype is not given.dtype for x in targets):
        fall_back("the program gathers tensors of different shapes")
    result = start(tracer, _title("all_gather"), prims.all_gather, tracer.handle_of(given.reshape(1, -1)), group)

    def finish(found: Any) -> None:
        for i, target in enumerate(targets):
            assign(tracer, target, found[i].reshape(target.shape), "all_gather")

    return TracedWork(tracer, [result], finish, targets)


@_recorded("_reduce_scatter_base", "reduce_scatter_single")
def _reduce_scatter(tracer: Tracer, group: Group, output: Any, input: Any, opts: Any) -> TracedWork:
    if output.dtype is not input.dtype or input.numel() != group.size * output.numel():
        fall_back("the program calls reduce_scatter into a tensor that does not fit")
    op = _reduction(opts.reduceOp)
    flat = tracer.handle_of(input.reshape(group.size, -1))
    result = start(tracer, _title("reduce_scatter_tensor"), prims.reduce_scatter, flat, op, group)
    return TracedWork(
        tracer, [result], lambda found: assign(tracer, output, found.reshape(output.shape), "reduce_scatter"), [output]
    )


@_recorded("reduce_scatter")
def _reduce_scatter_list(
    tracer: Tracer, group: Group, outputs: Sequence[Any], inputs: Sequence[Sequence[Any]], opts: Any
) -> TracedWork:
    (output,), (parts,) = outputs, inputs
    if any(x.shape != output.shape or x.dtype is not output.dtype for x in parts):
        fall_back("the program calls reduce_scatter with tensors of different shapes")
    return _reduce_scatter(tracer, group, output, torch.stack(list(parts)), opts)


@_recorded("alltoall_base", "all_to_all_single")
def _all_to_all(
    tracer: Tracer, group: Group, output: Any, input: Any, received: Sequence[int], sent: Sequence[int],
    opts: Any = None,
) -> TracedWork:  # fmt: skip
    def lengths(x: Any, given: Sequence[int]) -> list[int]:
        return list(given) or [x.shape[0] // group.size] * group.size

    if sum(lengths(output, received)) != output.shape[0] or sum(lengths(input, sent)) != input.shape[0]:
        fall_back("the program calls all_to_all with parts that do not fit")
    result = start(
        tracer, _title("all_to_all_single"), prims.all_to_all, tracer.handle_of(input), lengths(output, received),
        lengths(input, sent), group,
    )  # fmt: skip
    return TracedWork(tracer, [result], lambda found: assign(tracer, output, found, "all_to_all"), [output])


@_recorded("gather")
def _gather(
    tracer: Tracer, group: Group, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], opts: Any
) -> TracedWork:
    (given,), targets = inputs, outputs[0] if outputs else ()
    if any(x.shape != given.shape or x.dtype is not given.dtype for x in targets):
        fall_back("the program gathers tensors of different shapes")
    result = start(tracer, _title("gather"), prims.gather_to, tracer.handle_of(given), opts.rootRank, group)

    def finish(found: Any) -> None:
        for i, target in enumerate(targets):
            assign(tracer, target, found[i], "gather")

    return TracedWork(tracer, [result], finish, targets)


@_recorded("scatter")
def _scatter(
    tracer: Tracer, group: Group, outputs: Sequence[Any], inputs: Sequence[Sequence[Any]], opts: Any
) -> TracedWork:
    (target,), parts = outputs, inputs[0] if inputs else ()
    if any(x.shape != target.shape or x.dtype is not target.dtype for x in parts):
        fall_back("the program scatters tensors of different shapes")
    stack = tracer.handle_of(torch.stack(list(parts))) if parts else None
    like = tracer.handle_of(target)
    result = start(tracer, _title("scatter"), prims.scatter_from, stack, like, opts.rootRank, group)
    return TracedWork(tracer, [result], lambda found: assign(tracer, target, found, "scatter"), [target])


@_recorded("send")
def _send(tracer: Tracer, group: Group, tensors: Sequence[Any], destination: int, tag: int) -> TracedWork:
    (given,) = tensors
    token = start(tracer, _title("send"), prims.send, tracer.handle_of(given), destination, tag, group)
    return TracedWork(tracer, [token], lambda found: None)


@_recorded("recv")
def _receive(tracer: Tracer, group: Group, tensors: Sequence[Any], source: int, tag: int) -> TracedWork:
    (target,) = tensors
    return _in_place(tracer, "recv", prims.receive, target, source, tag, group)


@_recorded("barrier")
def _barrier(tracer: Tracer, group: Group, opts: Any = None) -> TracedWork:
    device = getattr(opts, "device", None)
    named = None if device is None else str(device)
    token = start(tracer, _title("barrier"), prims.synchronize_ranks, group, named)
    return TracedWork(tracer, [token], lambda found: None)
