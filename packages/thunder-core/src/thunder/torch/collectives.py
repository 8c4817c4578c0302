# SPDX-License-Identifier: Apache-2.0
"""The collectives of torch.distributed in terms of primitives.

`FUNCTIONAL` maps the names of the operators in `torch.ops._c10d_functional` to functions with the same arguments. Their
results are in flight, as in torch: `prims.wait` reads them. A list of tensors is a sequence of collectives, or one of
their concatenation (`joins_tensors`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thunder.core import prims
from thunder.core.groups import Group
from thunder.core.proxies import TensorProxy

__all__ = ["FUNCTIONAL", "group_named", "joins_tensors", "reduction_name"]


def group_named(name: Any) -> Group:
    """Return the process group that torch knows by `name`, which may also be torch's group itself."""
    import torch.distributed.distributed_c10d as c10d

    found = c10d._resolve_process_group(getattr(name, "group_name", name))
    ranks = c10d.get_process_group_ranks(found)
    return Group(str(found.group_name), ranks, str(getattr(found, "group_desc", "")))


def joins_tensors(name: Any, device: Any) -> bool:
    """Check whether a group runs a collective of several tensors on their concatenation, as the backend gloo does.

    Other backends run a sequence of collectives.
    """
    import torch.distributed.distributed_c10d as c10d

    found = c10d._resolve_process_group(getattr(name, "group_name", name))
    try:
        return bool(found._get_backend(device).name() == "gloo")
    except RuntimeError:  # the group has no backend for this device
        return False


def reduction_name(op: Any) -> str | None:
    """Return the name of a `torch.distributed.ReduceOp`, or None if no primitive has this reduction.

    Reductions that multiply by a factor first (`PREMUL_SUM`) have no name.
    """
    name = str(getattr(op, "op", op)).rpartition(".")[2].lower()
    return name if name in prims.REDUCTIONS else None


def _all_reduce(input: TensorProxy, reduce_op: str, group_name: Any) -> TensorProxy:
    return prims.all_reduce(input, reduce_op.lower(), group_named(group_name))  # type: ignore[no-any-return]


def _all_reduce_coalesced(inputs: Sequence[TensorProxy], reduce_op: str, group_name: Any) -> list[TensorProxy]:
    return [_all_reduce(x, reduce_op, group_name) for x in inputs]


def _all_gather(input: TensorProxy, group_size: int, group_name: Any) -> TensorProxy:
    return prims.all_gather(input, group_named(group_name))  # type: ignore[no-any-return]


def _all_gather_coalesced(inputs: Sequence[TensorProxy], group_size: int, group_name: Any) -> list[TensorProxy]:
    return [_all_gather(x, group_size, group_name) for x in inputs]


def _reduce_scatter(input: TensorProxy, reduce_op: str, group_size: int, group_name: Any) -> TensorProxy:
    return prims.reduce_scatter(input, reduce_op.lower(), group_named(group_name))  # type: ignore[no-any-return]


def _reduce_scatter_coalesced(
    inputs: Sequence[TensorProxy], reduce_op: str, group_size: int, group_name: Any
) -> list[TensorProxy]:
    return [_reduce_scatter(x, reduce_op, group_size, group_name) for x in inputs]


def _all_to_all(
    input: TensorProxy, output_split_sizes: Sequence[int], input_split_sizes: Sequence[int], group_name: Any
) -> TensorProxy:
    return prims.all_to_all(  # type: ignore[no-any-return]
        input, list(output_split_sizes), list(input_split_sizes), group_named(group_name)
    )


def _broadcast(input: TensorProxy, src: int, group_name: Any) -> TensorProxy:
    return prims.broadcast(input, src, group_named(group_name))  # type: ignore[no-any-return]


FUNCTIONAL: dict[str, Callable[..., Any]] = {
    "all_reduce": _all_reduce,
    "all_reduce_coalesced": _all_reduce_coalesced,
    "all_gather_into_tensor": _all_gather,
    "all_gather_into_tensor_coalesced": _all_gather_coalesced,
    "reduce_scatter_tensor": _reduce_scatter,
    "reduce_scatter_tensor_coalesced": _reduce_scatter_coalesced,
    "all_to_all_single": _all_to_all,
    "broadcast": _broadcast,
}
