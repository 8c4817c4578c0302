# SPDX-License-Identifier: Apache-2.0
"""Collectives of compiled programs, run by torch.distributed.

Each function starts a collective and returns its result, a tensor that stores torch's handle of the running work as an
attribute. `wait` waits for this work. The collectives are those that eager mode runs for the same call, so that a rank
that runs eagerly can communicate with a rank that runs a compiled program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder.core.groups import Group
from thunder.runtime.kernels.table import kernel
from thunder.runtime.rank_checks import compare_start, raise_mismatch

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "gather_shards",
    "gather_to",
    "group_ranks",
    "receive",
    "reduce",
    "reduce_scatter",
    "scatter_from",
    "send",
    "synchronize_ranks",
    "unpack_shards",
    "wait",
]


def _c10d() -> Any:
    """Return torch's module of process groups. It is loaded only if a program communicates."""
    import torch.distributed.distributed_c10d as c10d

    return c10d


def process_group(group: Group, name: str = "", *described: Any) -> Any:
    """Return torch's process group, in which the collective `name` starts. `described` is equal on all ranks."""
    try:
        found = _c10d()._resolve_process_group(group.name)
    except (RuntimeError, ValueError, KeyError) as error:
        raise RuntimeError(
            f"the program communicates in {group!r}, which does not exist (anymore). Create the process groups before "
            "the call, in the same order as when the program was compiled"
        ) from error
    if group.checked and name:
        compare_start(group, name, described)
    return found


def group_ranks(name: str) -> tuple[int, ...] | None:
    """Return the global ranks of the process group with a name, or None. Prologues of programs call this function."""
    c10d = _c10d()
    try:
        return tuple(c10d.get_process_group_ranks(c10d._resolve_process_group(name)))
    except (RuntimeError, ValueError, KeyError):
        return None


def _options(kind: str, **values: Any) -> Any:
    options = getattr(_c10d(), kind)()
    for name, value in values.items():
        setattr(options, name, value)
    options.asyncOp = True
    return options


def _reduction(op: str) -> Any:
    return getattr(_c10d().ReduceOp, op.upper())


def _real(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x) if x.is_complex() else x


def _copy(a: torch.Tensor) -> torch.Tensor:
    return a.clone(memory_format=torch.contiguous_format)


def _empty(a: torch.Tensor, first: int) -> torch.Tensor:
    return torch.empty((first, *a.shape[1:]), dtype=a.dtype, device=a.device)


def _running(group: Group, result: torch.Tensor, work: Any, *operands: torch.Tensor) -> torch.Tensor:
    """Store the running work on its result, with the tensors that must not be freed before the work is complete."""
    result._work = work, group, operands  # type: ignore[attr-defined]
    return result


@kernel
def wait(a: torch.Tensor) -> torch.Tensor:
    """Wait for the collective that computes `a`, and return `a`."""
    running = a.__dict__.pop("_work", None)
    if running is not None and running[0] is not None:
        try:
            running[0].wait()
        except RuntimeError as error:
            raise_mismatch(running[1], error)
            raise
    return a


@kernel
def all_reduce(a: torch.Tensor, op: str, group: Group) -> torch.Tensor:
    """Start to reduce the tensors of all ranks."""
    result = _copy(a)
    if group.size == 1:
        return result
    work = process_group(group, "all_reduce", a, op).allreduce(
        [_real(result)], _options("AllreduceOptions", reduceOp=_reduction(op))
    )
    return _running(group, result, work)


@kernel
def reduce(a: torch.Tensor, op: str, root: int, group: Group) -> torch.Tensor:
    """Start to reduce the tensors of all ranks on rank `root`."""
    result = _copy(a)
    if group.size == 1:
        return result
    options = _options("ReduceOptions", reduceOp=_reduction(op), rootRank=root)
    return _running(group, result, process_group(group, "reduce", a, op, root).reduce([_real(result)], options))


@kernel
def broadcast(a: torch.Tensor, root: int, group: Group) -> torch.Tensor:
    """Start to send the tensor of rank `root` to all ranks."""
    result = _copy(a)
    if group.size == 1:
        return result
    options = _options("BroadcastOptions", rootRank=root, rootTensor=0)
    return _running(group, result, process_group(group, "broadcast", a, root).broadcast([_real(result)], options))


@kernel
def all_gather(a: torch.Tensor, group: Group) -> torch.Tensor:
    """Start to concatenate the tensors of all ranks in the first dimension."""
    a = a.reshape(1) if a.dim() == 0 else a
    if group.size == 1:
        return _copy(a)
    result, given = _empty(a, group.size * a.shape[0]), a.contiguous()
    work = process_group(group, "all_gather", a)._allgather_base(
        _real(result), _real(given), _options("AllgatherOptions")
    )
    return _running(group, result, work, given)


@kernel
def gather_shards(a: torch.Tensor, group: Group) -> torch.Tensor:
    """Start to concatenate the tensors of all ranks, which backward does again. No gradient flows."""
    return all_gather(a.detach(), group)


@kernel
def unpack_shards(a: torch.Tensor, sizes: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Copy the shards of all ranks, a row for each, to a flat tensor for each size: one kernel on a GPU."""
    ranks = a.shape[0]
    found = [a.new_empty(ranks * n) for n in sizes]
    torch.split_with_sizes_copy(a, sizes, 1, out=[x.view(ranks, n) for x, n in zip(found, sizes)])
    return tuple(found)


@kernel
def reduce_scatter(a: torch.Tensor, op: str, group: Group) -> torch.Tensor:
    """Start to reduce the tensors of all ranks, and to distribute the result by the first dimension."""
    if group.size == 1:
        return _copy(a)
    result, given = _empty(a, a.shape[0] // group.size), a.contiguous()
    options = _options("ReduceScatterOptions", reduceOp=_reduction(op))
    work = process_group(group, "reduce_scatter", a, op)._reduce_scatter_base(_real(result), _real(given), options)
    return _running(group, result, work, given)


@kernel
def all_to_all(a: torch.Tensor, received: Sequence[int], sent: Sequence[int], group: Group) -> torch.Tensor:
    """Start to exchange parts of the first dimension with all ranks."""
    if group.size == 1:
        return _copy(a)
    result, given = _empty(a, sum(received)), a.contiguous()
    options = _options("AllToAllOptions")
    work = process_group(group, "all_to_all", a.dtype).alltoall_base(
        _real(result), _real(given), list(received), list(sent), options
    )
    return _running(group, result, work, given)


@kernel
def gather_to(a: torch.Tensor, root: int, group: Group) -> torch.Tensor:
    """Start to stack the tensors of all ranks on rank `root`."""
    if group.size == 1:
        return _copy(a)[None]
    found = process_group(group, "gather_to", a, root)
    given, is_root = a.contiguous(), found.rank() == root
    result = _empty(a[None], group.size if is_root else 0)
    outputs = [list(_real(result).unbind(0))] if is_root else []
    return _running(
        group, result, found.gather(outputs, [_real(given)], _options("GatherOptions", rootRank=root)), given
    )


@kernel
def scatter_from(parts: torch.Tensor | None, like: torch.Tensor, root: int, group: Group) -> torch.Tensor:
    """Start to send each rank its part of `parts` of rank `root`."""
    if group.size == 1:
        assert parts is not None
        return _copy(parts[0])
    result = torch.empty_like(like, memory_format=torch.contiguous_format)
    inputs = [] if parts is None else [list(_real(parts.contiguous()).unbind(0))]
    work = process_group(group, "scatter_from", like, root).scatter(
        [_real(result)], inputs, _options("ScatterOptions", rootRank=root)
    )
    return _running(group, result, work, *(inputs[0] if inputs else ()))


def _token() -> torch.Tensor:
    return torch.zeros(1, dtype=torch.uint8, device="cpu")


@kernel
def send(a: torch.Tensor, destination: int, tag: int, group: Group) -> torch.Tensor:
    """Start to send a tensor to one rank."""
    if group.size == 1:
        return _token()
    given = a.contiguous()
    return _running(group, _token(), process_group(group).send([_real(given)], destination, tag), given)


@kernel
def receive(a: torch.Tensor, source: int, tag: int, group: Group) -> torch.Tensor:
    """Start to receive a tensor from one rank."""
    if group.size == 1:
        return _copy(a.detach())
    result = torch.empty_like(a, memory_format=torch.contiguous_format)
    return _running(group, result, process_group(group).recv([_real(result)], source, tag))


@kernel
def synchronize_ranks(group: Group, device: Any = None) -> torch.Tensor:
    """Start a barrier."""
    if group.size == 1:
        return _token()
    options = _options("BarrierOptions")
    if device is not None:
        options.device = torch.device(str(device))
    return _running(group, _token(), process_group(group, "synchronize_ranks").barrier(options))
