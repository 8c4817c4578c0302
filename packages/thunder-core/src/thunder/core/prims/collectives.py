# SPDX-License-Identifier: Apache-2.0
"""Collectives: operations in which the processes of a group exchange tensors.

A collective *starts* and returns a tensor that is in flight. Only `wait` may read this tensor. `wait` returns it when
the communication is complete. Operations between start and wait overlap with the communication.

All ranks of a group must run the same collectives in the same order, or the numbers are wrong without an error.
Collectives have the tag COLLECTIVE: no pass drops, merges or reorders them, even if their results are unused.

The results of `all_gather`, `reduce_scatter` and `all_to_all` are concatenated or split in the first dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from thunder.core.devices import cpu
from thunder.core.dtypes import uint8
from thunder.core.errors import check
from thunder.core.groups import ONE_RANK, Group
from thunder.core.prims.base import prim
from thunder.core.prims.creation import full
from thunder.core.prims.shape import reshape, slice, transpose
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags

__all__ = [
    "REDUCTIONS",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "gather_shards",
    "gather_to",
    "receive",
    "reduce",
    "reduce_scatter",
    "scatter_from",
    "send",
    "synchronize_ranks",
    "unpack_shards",
    "wait",
]

#: The names of reductions, as in torch's functional collectives.
REDUCTIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")

_TAGS = (OpTags.COLLECTIVE,)
_WITHOUT_GRADIENT = (OpTags.COLLECTIVE, OpTags.NON_DIFFERENTIABLE)


def _check_tensor(name: str, a: Any) -> None:
    check(isinstance(a, TensorProxy), partial("{} expects a tensor, not {}".format, name, type(a).__name__), TypeError)


def _check_reduction(name: str, op: Any) -> None:
    check(op in REDUCTIONS, lambda: f"{name} got the reduction {op!r}: use one of {', '.join(REDUCTIONS)}", ValueError)


def _check_member(name: str, rank: int, group: Group) -> None:
    check(
        0 <= rank < group.size,
        lambda: f"{name} got rank {rank} of a group of {group.size} processes: ranks are counted in the group, from 0",
        ValueError,
    )


def own_rank(group: Group) -> int:
    """Return the rank of this process in a group. Programs with collectives are guarded on the global rank."""
    if group.size == 1:
        return 0
    from torch.distributed import get_rank

    return group.ranks.index(get_rank())


def check_sum(name: str, op: str) -> None:
    """Raise an error if a reduction has no gradient. (Programs that differentiate it have fallen back before.)"""
    if op not in ("sum", "avg"):
        raise NotImplementedError(f"the gradient of {name} exists for the reductions sum and avg, not for {op}")


def _like(a: TensorProxy, first: Any = None) -> TensorProxy:
    return TensorProxy(like=a, shape=a.shape if first is None else (first, *a.shape[1:]))


# -- waiting ----------------------------------------------------------------------------------------------------------
@prim(tags=_TAGS)
def wait(a: TensorProxy, /) -> TensorProxy:
    """Return the result of a collective when the communication is complete. Return other tensors at once."""
    _check_tensor("wait", a)
    return TensorProxy(like=a)


@wait.vjp
def _(g: Any, out: Any, a: TensorProxy) -> Any:
    return g


@wait.jvp
def _(t: Any, out: Any, a: TensorProxy) -> Any:
    return None if t[0] is None else wait(t[0])


@wait.batch
def _(b: Any, a: Any) -> Any:
    return wait(a)


@wait.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)))
    yield SampleInput(make(()))


@wait.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(1), TypeError, "wait expects a tensor, not int"


# -- collectives with the shape of their argument ---------------------------------------------------------------------
@prim(tags=_TAGS, layout="contiguous")
def all_reduce(a: TensorProxy, op: str, group: Group, /) -> TensorProxy:
    """Start to reduce the tensors of all ranks. Each rank gets the result."""
    _check_tensor("all_reduce", a)
    _check_reduction("all_reduce", op)
    return _like(a)


@all_reduce.vjp
def _(g: Any, out: Any, a: TensorProxy, op: str, group: Group) -> Any:
    check_sum("all_reduce", op)
    return wait(all_reduce(g, op, group))


@all_reduce.jvp
def _(t: Any, out: Any, a: TensorProxy, op: str, group: Group) -> Any:
    check_sum("all_reduce", op)
    return all_reduce(t[0], op, group)


@all_reduce.batch
def _(b: Any, a: Any, op: str, group: Group) -> Any:
    return all_reduce(a, op, group)


@all_reduce.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), "sum", ONE_RANK)
    yield SampleInput(make(()), "sum", ONE_RANK)
    yield SampleInput(make((3, 2)).mT, "sum", ONE_RANK)


@all_reduce.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(1, "sum", ONE_RANK), TypeError, "all_reduce expects a tensor, not int"
    yield SampleInput(make((2,)), "mean", ONE_RANK), ValueError, "all_reduce got the reduction 'mean': use one of sum"


@prim(tags=_TAGS, layout="contiguous")
def reduce(a: TensorProxy, op: str, root: int, group: Group, /) -> TensorProxy:
    """Start to reduce the tensors of all ranks. Only rank `root` of the group gets the result."""
    _check_tensor("reduce", a)
    _check_reduction("reduce", op)
    _check_member("reduce", root, group)
    return _like(a)


@reduce.vjp
def _(g: Any, out: Any, a: TensorProxy, op: str, root: int, group: Group) -> Any:
    check_sum("reduce", op)
    of_result = wait(broadcast(g, root, group))
    return of_result if op == "sum" else of_result / group.size


@reduce.jvp
def _(t: Any, out: Any, a: TensorProxy, op: str, root: int, group: Group) -> Any:
    check_sum("reduce", op)
    return reduce(t[0], op, root, group)


@reduce.batch
def _(b: Any, a: Any, op: str, root: int, group: Group) -> Any:
    return reduce(a, op, root, group)


@reduce.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), "sum", 0, ONE_RANK)


@reduce.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2,)), "sum", 1, ONE_RANK), ValueError, "got rank 1 of a group of 1 processes"


@prim(tags=_TAGS, layout="contiguous")
def broadcast(a: TensorProxy, root: int, group: Group, /) -> TensorProxy:
    """Start to send the tensor of rank `root` of the group to all ranks."""
    _check_tensor("broadcast", a)
    _check_member("broadcast", root, group)
    return _like(a)


@broadcast.vjp
def _(g: Any, out: Any, a: TensorProxy, root: int, group: Group) -> Any:
    total = wait(all_reduce(g, "sum", group))  # all ranks run the same collective
    return total if own_rank(group) == root else full(a.shape, 0, device=a.device, dtype=a.dtype)


@broadcast.jvp
def _(t: Any, out: Any, a: TensorProxy, root: int, group: Group) -> Any:
    return broadcast(t[0], root, group)


@broadcast.batch
def _(b: Any, a: Any, root: int, group: Group) -> Any:
    return broadcast(a, root, group)


@broadcast.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), 0, ONE_RANK)
    yield SampleInput(make(()), 0, ONE_RANK)


@broadcast.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2,)), 3, ONE_RANK), ValueError, "got rank 3 of a group of 1 processes"


# -- collectives along the first dimension ----------------------------------------------------------------------------
def _exchanged(a: TensorProxy) -> TensorProxy:
    """Exchange the dimension of the batch and the first dimension of the examples."""
    return transpose(a, (1, 0, *range(2, a.ndim)))  # type: ignore[no-any-return]


@prim(tags=_TAGS, layout="contiguous")
def all_gather(a: TensorProxy, group: Group, /) -> TensorProxy:
    """Start to concatenate the tensors of all ranks, in the order of the ranks."""
    _check_tensor("all_gather", a)
    return _like(a, group.size * (a.shape[0] if a.ndim else 1))


@all_gather.vjp
def _(g: Any, out: Any, a: TensorProxy, group: Group) -> Any:
    part = wait(reduce_scatter(g, "sum", group))
    return part if a.ndim else reshape(part, ())


@all_gather.jvp
def _(t: Any, out: Any, a: TensorProxy, group: Group) -> Any:
    return all_gather(t[0], group)


@all_gather.batch
def _(b: Any, a: Any, group: Group) -> Any:
    return _exchanged(wait(all_gather(_exchanged(b.at_least_1d(a)), group)))


@all_gather.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), ONE_RANK)
    yield SampleInput(make(()), ONE_RANK)
    yield SampleInput(make((3, 2)).mT, ONE_RANK)


@all_gather.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(1, ONE_RANK), TypeError, "all_gather expects a tensor, not int"


@prim(tags=_WITHOUT_GRADIENT, layout="contiguous")
def gather_shards(a: TensorProxy, group: Group, /) -> TensorProxy:
    """Start to concatenate the tensors of all ranks. Backward does it again instead of keeping the result."""
    return all_gather.meta(a, group)


@gather_shards.batch
def _(b: Any, a: Any, group: Group) -> Any:
    return _exchanged(wait(gather_shards(_exchanged(b.at_least_1d(a)), group)))


@gather_shards.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), ONE_RANK)


@gather_shards.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(1, ONE_RANK), TypeError, "all_gather expects a tensor, not int"


@prim(tags=(OpTags.SHAPE_OP, OpTags.NON_DIFFERENTIABLE), layout="contiguous", cost="cheap")
def unpack_shards(a: TensorProxy, sizes: Sequence[int], /) -> tuple[TensorProxy, ...]:
    """Return tensors that were gathered together, flat. `a` has a row for each rank: shards of `sizes` elements."""
    _check_tensor("unpack_shards", a)
    check(
        a.ndim == 2 and sum(sizes) == a.shape[1],
        lambda: f"unpack_shards expects rows of {sum(sizes)} elements, not a tensor of the shape {list(a.shape)}",
        ValueError,
    )
    return tuple([TensorProxy(like=a, shape=(a.shape[0] * n,)) for n in sizes])


@unpack_shards.batch
def _(b: Any, a: Any, sizes: Sequence[int]) -> Any:
    count, ranks, _ = a.shape
    ends = list(accumulate(sizes))
    parts = [slice(a, (0, 0, end - n), (count, ranks, end)) for n, end in zip(sizes, ends)]
    return tuple([reshape(part, (count, ranks * n)) for part, n in zip(parts, sizes)])


@unpack_shards.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 6)), (1, 3, 2))
    yield SampleInput(make((3, 4)), (4,))
    yield SampleInput(make((4, 2)).mT, (3, 1))


@unpack_shards.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 6)), (1, 3)), ValueError, r"rows of 4 elements, not a tensor of the shape \[2, 6\]"
    yield SampleInput(make((6,)), (6,)), ValueError, "expects rows"


@prim(tags=_TAGS, layout="contiguous")
def reduce_scatter(a: TensorProxy, op: str, group: Group, /) -> TensorProxy:
    """Start to reduce the tensors of all ranks. Each rank gets its part of the result."""
    _check_tensor("reduce_scatter", a)
    _check_reduction("reduce_scatter", op)
    check(a.ndim > 0, lambda: "reduce_scatter expects a tensor with at least one dimension", ValueError)
    check(
        a.shape[0] % group.size == 0,
        lambda: f"reduce_scatter: the first dimension of {list(a.shape)} cannot be divided among {group.size} ranks",
        ValueError,
    )
    return _like(a, a.shape[0] // group.size)


@reduce_scatter.vjp
def _(g: Any, out: Any, a: TensorProxy, op: str, group: Group) -> Any:
    check_sum("reduce_scatter", op)
    total = wait(all_gather(g, group))
    return total if op == "sum" else total / group.size


@reduce_scatter.jvp
def _(t: Any, out: Any, a: TensorProxy, op: str, group: Group) -> Any:
    check_sum("reduce_scatter", op)
    return reduce_scatter(t[0], op, group)


@reduce_scatter.batch
def _(b: Any, a: Any, op: str, group: Group) -> Any:
    return _exchanged(wait(reduce_scatter(_exchanged(a), op, group)))


@reduce_scatter.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), "sum", ONE_RANK)
    yield SampleInput(make((3, 2)).mT, "sum", ONE_RANK)


@reduce_scatter.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make(()), "sum", ONE_RANK), ValueError, "expects a tensor with at least one dimension"
    two = Group("", (0, 1))
    yield SampleInput(make((3,)), "sum", two), ValueError, r"\[3\] cannot be divided among 2 ranks"


@prim(tags=_TAGS, layout="contiguous")
def all_to_all(a: TensorProxy, received: Sequence[int], sent: Sequence[int], group: Group, /) -> TensorProxy:
    """Start to exchange parts: each rank sends a part to each rank, and concatenates the parts that it receives.

    `sent` and `received` contain the lengths of the parts in the first dimension, by rank.
    """
    _check_tensor("all_to_all", a)
    check(a.ndim > 0, lambda: "all_to_all expects a tensor with at least one dimension", ValueError)
    check(
        len(sent) == len(received) == group.size and sum(sent) == a.shape[0],
        lambda: (
            f"all_to_all of {list(a.shape)} in a group of {group.size} processes got parts of {list(sent)} to send and "
            f"of {list(received)} to receive: pass one length for each rank, which sum up to the first dimension"
        ),
        ValueError,
    )
    return _like(a, sum(received))


@all_to_all.vjp
def _(g: Any, out: Any, a: TensorProxy, received: Sequence[int], sent: Sequence[int], group: Group) -> Any:
    return wait(all_to_all(g, sent, received, group))


@all_to_all.jvp
def _(t: Any, out: Any, a: TensorProxy, received: Sequence[int], sent: Sequence[int], group: Group) -> Any:
    return all_to_all(t[0], received, sent, group)


@all_to_all.batch
def _(b: Any, a: Any, received: Sequence[int], sent: Sequence[int], group: Group) -> Any:
    return _exchanged(wait(all_to_all(_exchanged(a), received, sent, group)))


@all_to_all.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), [2], [2], ONE_RANK)
    yield SampleInput(make((3, 2)).mT, [2], [2], ONE_RANK)


@all_to_all.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make(()), [1], [1], ONE_RANK), ValueError, "at least one dimension"
    yield SampleInput(make((2,)), [2], [1], ONE_RANK), ValueError, "pass one length for each rank"


# -- from and to one rank ---------------------------------------------------------------------------------------------
@prim(tags=_TAGS, layout="contiguous")
def gather_to(a: TensorProxy, root: int, group: Group, /) -> TensorProxy:
    """Start to stack the tensors of all ranks on rank `root` of the group. Other ranks get a stack without tensors."""
    _check_tensor("gather_to", a)
    _check_member("gather_to", root, group)
    return TensorProxy(like=a, shape=(group.size if own_rank(group) == root else 0, *a.shape))


@gather_to.vjp
def _(g: Any, out: Any, a: TensorProxy, root: int, group: Group) -> Any:
    return wait(scatter_from(g if own_rank(group) == root else None, a, root, group))


@gather_to.jvp
def _(t: Any, out: Any, a: TensorProxy, root: int, group: Group) -> Any:
    return gather_to(t[0], root, group)


@gather_to.batch
def _(b: Any, a: Any, root: int, group: Group) -> Any:
    return _exchanged(wait(gather_to(a, root, group)))


@gather_to.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), 0, ONE_RANK)
    yield SampleInput(make(()), 0, ONE_RANK)


@gather_to.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2,)), 1, ONE_RANK), ValueError, "got rank 1 of a group of 1 processes"


@prim(tags=_TAGS, layout="contiguous")
def scatter_from(parts: TensorProxy | None, like: TensorProxy, root: int, group: Group, /) -> TensorProxy:
    """Start to send each rank its part of a stack of tensors, `parts` of rank `root` of the group.

    `parts` is None on other ranks. The result has the metadata of `like`.
    """
    _check_tensor("scatter_from", like)
    _check_member("scatter_from", root, group)
    expected = (group.size, *like.shape) if own_rank(group) == root else None
    check(
        expected == (None if parts is None else parts.shape),
        lambda: (
            f"scatter_from expects a stack of shape {expected} on rank {root}, and None on other ranks, not {parts}"
        ),
        ValueError,
    )
    return _like(like)


@scatter_from.vjp
def _(g: Any, out: Any, parts: TensorProxy | None, like: TensorProxy, root: int, group: Group) -> Any:
    found = wait(gather_to(g, root, group))
    return None if parts is None else found, full(like.shape, 0, device=like.device, dtype=like.dtype)


@scatter_from.jvp
def _(t: Any, out: Any, parts: TensorProxy | None, like: TensorProxy, root: int, group: Group) -> Any:
    if parts is None:
        return scatter_from(None, like, root, group)
    moving = full(parts.shape, 0, device=parts.device, dtype=parts.dtype) if t[0] is None else t[0]
    return scatter_from(moving, like, root, group)


@scatter_from.batch
def _(b: Any, parts: Any, like: Any, root: int, group: Group) -> Any:
    stacked = None if parts is None else _exchanged(b.expand(parts))
    return scatter_from(stacked, b.expand(like), root, group)


@scatter_from.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((1, 2, 3)), make((2, 3), requires_grad=False), 0, ONE_RANK)
    yield SampleInput(make((1,)), make((), requires_grad=False), 0, ONE_RANK)


@scatter_from.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), make((3,)), 0, ONE_RANK), ValueError, r"expects a stack of shape \(1, 3\)"


# -- between two ranks ------------------------------------------------------------------------------------------------
def _token() -> TensorProxy:
    """Return the result of an operation that sends only: `wait` returns it when the operation is complete."""
    return TensorProxy(shape=(1,), device=cpu, dtype=uint8)


@prim(tags=_WITHOUT_GRADIENT)
def send(a: TensorProxy, destination: int, tag: int, group: Group, /) -> TensorProxy:
    """Start to send a tensor to rank `destination` of the group."""
    _check_tensor("send", a)
    _check_member("send", destination, group)
    return _token()


@send.batch
def _(b: Any, a: Any, destination: int, tag: int, group: Group) -> Any:
    return send(b.expand(a), destination, tag, group)


@send.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), 0, 0, ONE_RANK)


@send.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(1, 0, 0, ONE_RANK), TypeError, "send expects a tensor, not int"


@prim(tags=_WITHOUT_GRADIENT, layout="contiguous")
def receive(a: TensorProxy, source: int, tag: int, group: Group, /) -> TensorProxy:
    """Start to receive a tensor with the metadata of `a` from rank `source` of the group."""
    _check_tensor("receive", a)
    _check_member("receive", source, group)
    return _like(a)


@receive.batch
def _(b: Any, a: Any, source: int, tag: int, group: Group) -> Any:
    return receive(b.expand(a), source, tag, group)


@receive.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), 0, 0, ONE_RANK)


@receive.errors
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2,)), -1, 0, ONE_RANK), ValueError, "got rank -1 of a group of 1 processes"


@prim(tags=(*_WITHOUT_GRADIENT, OpTags.SIDE_EFFECT))
def synchronize_ranks(group: Group, device: Any = None, /) -> TensorProxy:
    """Start a barrier: `wait` returns when all ranks of the group have started it.

    `device` is the device of the barrier, or None for the default of the group.
    """
    return _token()


@synchronize_ranks.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(ONE_RANK)
