# SPDX-License-Identifier: Apache-2.0
"""The implementations of collectives: the functions of `runtime/kernels/collectives.py`."""

from __future__ import annotations

from thunder.core import prims
from thunder.executors.torchex.base import torch_impl
from thunder.runtime.kernels import collectives

__all__: list[str] = []

for _sym in (
    prims.wait,
    prims.all_reduce,
    prims.reduce,
    prims.broadcast,
    prims.all_gather,
    prims.gather_shards,
    prims.unpack_shards,
    prims.reduce_scatter,
    prims.all_to_all,
    prims.gather_to,
    prims.scatter_from,
    prims.send,
    prims.receive,
    prims.synchronize_ranks,
):
    torch_impl(_sym)(getattr(collectives, _sym.name))
