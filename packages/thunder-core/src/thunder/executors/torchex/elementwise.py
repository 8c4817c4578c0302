# SPDX-License-Identifier: Apache-2.0
"""Elementwise primitives that accept numbers, by functions of torch that do not accept them."""

from __future__ import annotations

from thunder.core.prims.elementwise_base import Elementwise, each_elementwise
from thunder.executors.torchex.base import torch_impl
from thunder.runtime.kernels.elementwise import accepting_numbers
from thunder.runtime.kernels.table import kernels
from thunder.torch.base import named


@each_elementwise
def _implement(op: Elementwise) -> None:
    """Implement a primitive that accepts numbers by a function of torch that does not accept them."""
    if op.tensors_only:
        torch_impl(op.prim)(kernels.get(op.name) or accepting_numbers(op.name, named(op.torch_names[0])))
