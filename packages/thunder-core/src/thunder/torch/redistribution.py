# SPDX-License-Identifier: Apache-2.0
"""Redistributions of local tensors over a process group: the collectives that DTensors need, with their gradients.

A value is *replicated* (each process has all of it), *sharded* in a dimension, or *partial* (the processes have
summands). The gradient of a replicated or partial value is replicated, and the gradient of a sharded value is sharded.
An operation of a replicated value with a sharded one gives each process only a summand of the replicated value's
gradient. Such operations read it through `varying`, whose gradient is the sum over the processes. Several operations
that read one value read the same `varying`, so that one all-reduce serves them all.
"""

from __future__ import annotations

from typing import Any

from thunder.core import prims
from thunder.core.groups import ONE_RANK, Group
from thunder.core.prims.collectives import check_sum, own_rank
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.torch.base import operations as ltorch
from thunder.torch.base import torchsymbol

__all__ = ["gather_shards", "move_shards", "own_shard", "scatter_sum", "split_sum", "sum_partial", "varying"]


def _first(a: TensorProxy, dim: int) -> TensorProxy:
    return a if dim == 0 else ltorch.movedim(a, dim, 0)  # type: ignore[no-any-return]


def _back(a: TensorProxy, dim: int) -> TensorProxy:
    return a if dim == 0 else ltorch.movedim(a, 0, dim)  # type: ignore[no-any-return]


@torchsymbol(is_method=False)
def varying(a: TensorProxy, group: Group) -> TensorProxy:
    """Return a replicated value for operations that compute different things on each rank."""
    return prims.alias(a)  # type: ignore[no-any-return]


@varying.vjp
def _(g: Any, out: Any, a: TensorProxy, group: Group) -> Any:
    return sum_partial(g, "sum", group)


@torchsymbol(is_method=False)
def sum_partial(a: TensorProxy, op: str, group: Group) -> TensorProxy:
    """Return the replicated value of a partial one: its reduction over the ranks."""
    if op == "avg":
        return prims.wait(prims.all_reduce(a / group.size, "sum", group))  # type: ignore[no-any-return]
    return prims.wait(prims.all_reduce(a, op, group))  # type: ignore[no-any-return]


@sum_partial.vjp
def _(g: Any, out: Any, a: TensorProxy, op: str, group: Group) -> Any:
    check_sum("sum_partial", op)
    return g / group.size if op == "avg" else varying(g, group)


@torchsymbol(is_method=False)
def split_sum(a: TensorProxy, group: Group) -> TensorProxy:
    """Return equal summands of a replicated value."""
    out: Any = a / group.size
    return out  # type: ignore[no-any-return]


@split_sum.vjp
def _(g: Any, out: Any, a: TensorProxy, group: Group) -> Any:
    return varying(g, group)


@torchsymbol(is_method=False)
def gather_shards(a: TensorProxy, dim: int, group: Group) -> TensorProxy:
    """Return the replicated value of a sharded one: the shards of all ranks, concatenated in dimension `dim`."""
    return _back(prims.wait(prims.all_gather(_first(a, dim), group)), dim)


@gather_shards.vjp
def _(g: Any, out: Any, a: TensorProxy, dim: int, group: Group) -> Any:
    return own_shard(g, dim, group)


@torchsymbol(is_method=False)
def own_shard(a: TensorProxy, dim: int, group: Group) -> TensorProxy:
    """Return this rank's shard of a replicated value."""
    length = a.shape[dim] // group.size
    return ltorch.narrow(a, dim, own_rank(group) * length, length)  # type: ignore[no-any-return]


@own_shard.vjp
def _(g: Any, out: Any, a: TensorProxy, dim: int, group: Group) -> Any:
    return gather_shards(g, dim, group)


@torchsymbol(is_method=False)
def scatter_sum(a: TensorProxy, dim: int, group: Group) -> TensorProxy:
    """Return this rank's shard of the sum of a partial value."""
    return _back(prims.wait(prims.reduce_scatter(_first(a, dim), "sum", group)), dim)


@scatter_sum.vjp
def _(g: Any, out: Any, a: TensorProxy, dim: int, group: Group) -> Any:
    return gather_shards(g, dim, group)


@torchsymbol(is_method=False)
def move_shards(a: TensorProxy, old: int, new: int, group: Group) -> TensorProxy:
    """Return this rank's shard in dimension `new` of a value that is sharded in dimension `old`."""
    n = group.size
    parts = prims.cat([_first(part, old) for part in ltorch.chunk(a, n, new)], 0)
    received = prims.wait(prims.all_to_all(parts, [a.shape[old]] * n, [a.shape[old]] * n, group))
    return _back(received, old)


@move_shards.vjp
def _(g: Any, out: Any, a: TensorProxy, old: int, new: int, group: Group) -> Any:
    return move_shards(g, new, old, group)


@varying.samples
@split_sum.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), ONE_RANK)


@sum_partial.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), "sum", ONE_RANK)
    yield SampleInput(make((2, 3)), "avg", ONE_RANK)


@gather_shards.samples
@own_shard.samples
@scatter_sum.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), 0, ONE_RANK)
    yield SampleInput(make((2, 3)), 1, ONE_RANK)


@move_shards.samples
def _(make: MakeTensor) -> Any:
    yield SampleInput(make((2, 3)), 0, 1, ONE_RANK)
