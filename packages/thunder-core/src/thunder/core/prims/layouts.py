# SPDX-License-Identifier: Apache-2.0
"""The border between DTensors and local tensors.

Inside of a program each process computes with its local tensors, and collectives are explicit. `local_of` takes the
local tensor of a DTensor that the program receives; `dtensor_of` makes a DTensor that the program returns.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from thunder.core.errors import check
from thunder.core.groups import ONE_RANK
from thunder.core.layouts import Layout, Mesh, Replicated, Sharded
from thunder.core.prims.base import prim
from thunder.core.proxies import TensorProxy
from thunder.core.samples import MakeTensor, SampleInput
from thunder.core.symbol import OpTags

__all__ = ["dtensor_of", "local_of"]


def _check(name: str, a: Any, shape: Any) -> None:
    check(isinstance(a, TensorProxy), partial("{} expects a tensor, not {}".format, name, type(a).__name__), TypeError)
    check(
        tuple(a.shape) == tuple(shape),
        lambda: f"{name}: a tensor of shape {list(a.shape)} does not have the layout's shape {list(shape)}",
        ValueError,
    )


@prim(tags=(OpTags.VIEW_OP,))
def local_of(a: TensorProxy, layout: Layout, /) -> TensorProxy:
    """Return the local tensor of a DTensor. A gradient with another layout is redistributed first."""
    _check("local_of", a, layout.shape)
    return TensorProxy(like=a, shape=layout.local_shape)


@local_of.vjp
def _(g: Any, out: Any, a: TensorProxy, layout: Layout) -> Any:
    return dtensor_of(g, layout.of_gradient)


@prim(tags=(OpTags.VIEW_OP,))
def dtensor_of(a: TensorProxy, layout: Layout, /) -> TensorProxy:
    """Return the DTensor of which `a` is the local tensor."""
    _check("dtensor_of", a, layout.local_shape)
    return TensorProxy(like=a, shape=layout.shape, dtensor_layout=layout)


@dtensor_of.vjp
def _(g: Any, out: Any, a: TensorProxy, layout: Layout) -> Any:
    return local_of(g, layout.of_gradient)


@local_of.errors
def _(make: MakeTensor) -> Any:
    two = Layout([Replicated()], (4, 2), (2, 1), Mesh("cpu", [ONE_RANK]))
    yield SampleInput(1, two), TypeError, "local_of expects a tensor, not int"


@dtensor_of.errors
def _(make: MakeTensor) -> Any:
    two = Layout([Sharded(0)], (4, 2), (2, 1), Mesh("cpu", [ONE_RANK]))
    yield SampleInput(make((3, 2)), two), ValueError, r"does not have the layout's shape \[4, 2\]"
