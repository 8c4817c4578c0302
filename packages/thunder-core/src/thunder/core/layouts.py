# SPDX-License-Identifier: Apache-2.0
"""Layouts: how a tensor is distributed over the processes of a device mesh. This module does not import torch.

A layout has one placement for each dimension of the mesh: `Replicated`, `Sharded(dim)` or `Partial(op)`, as in
`torch.distributed.tensor`. In a trace, only values at the border of the program have layouts: DTensors that the
program receives and returns. All other operations are operations of each process on its own, local tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from thunder.core.groups import Group

__all__ = ["NORM", "Layout", "Mesh", "Partial", "Placement", "Replicated", "Sharded"]


class Replicated(NamedTuple):
    """Each process of a dimension of the mesh has the whole tensor."""


class Sharded(NamedTuple):
    """Each process has an equal part of one dimension of the tensor.

    With a factor, the dimension was divided into so many blocks, and each process has a part of each block. The blocks
    are shared by another dimension of the mesh, e.g. that of tensor parallelism, over which `fully_shard` shards.
    """

    dim: int
    factor: int = 1

    def __repr__(self) -> str:
        return f"Sharded(dim={self.dim})" if self.factor == 1 else f"Sharded(dim={self.dim}, factor={self.factor})"


# The reduction of norms of the parts of a tensor, followed by their order: the norm of these norms.
NORM = "norm "


class Partial(NamedTuple):
    """The tensor is the reduction, by `op`, of the tensors of all processes."""

    op: str


Placement = Replicated | Sharded | Partial


class Mesh:
    """A device mesh: the process groups of its dimensions that contain this process, and their names."""

    __slots__ = ("device", "groups", "key", "names")

    def __init__(self, device: str, groups: Sequence[Group], names: Sequence[str] | None = None):
        self.device = device
        self.groups = tuple(groups)
        self.names = None if names is None else tuple(names)
        self.key = (device, self.groups, self.names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"Mesh({self.device!r}, {list(self.groups)!r}{'' if self.names is None else f', {self.names!r}'})"


class Layout:
    """The placements of a tensor on a mesh, and the shape and strides of the whole tensor.

    `part` is the shape of this process's tensor if the processes share the tensor unevenly or in blocks, else None.
    """

    __slots__ = ("key", "mesh", "part", "placements", "shape", "stride")

    def __init__(
        self,
        placements: Sequence[Placement],
        shape: Sequence[int],
        stride: Sequence[int],
        mesh: Mesh,
        part: Sequence[int] | None = None,
    ):
        self.placements = tuple(placements)
        self.shape = tuple(shape)
        self.stride = tuple(stride)
        self.mesh = mesh
        self.part = None if part is None else tuple(part)
        self.key = (tuple([(type(p).__name__, *p) for p in self.placements]), self.shape, self.stride, mesh, self.part)

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of the tensor of each process."""
        if self.part is not None:
            return self.part
        sizes = list(self.shape)
        for placement, group in zip(self.placements, self.mesh.groups):
            if isinstance(placement, Sharded):
                sizes[placement.dim] //= group.size
        return tuple(sizes)

    @property
    def of_gradient(self) -> Layout:
        """The layout of gradients: each process has the whole gradient of its part of a sum."""
        placements = [Replicated() if isinstance(p, Partial) else p for p in self.placements]
        return Layout(placements, self.shape, self.stride, self.mesh, self.part)

    @property
    def has_blocks(self) -> bool:
        """Whether processes have parts of several blocks of a dimension."""
        return any(isinstance(p, Sharded) and p.factor > 1 for p in self.placements)

    @property
    def is_even(self) -> bool:
        """Whether the sharded dimensions can be divided among the processes."""
        sizes = list(self.shape)
        for placement, group in zip(self.placements, self.mesh.groups):
            if isinstance(placement, Sharded):
                if sizes[placement.dim] % group.size:
                    return False
                sizes[placement.dim] //= group.size
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        placements = ", ".join([repr(p) for p in self.placements])
        part = "" if self.part is None else f", {self.part}"
        return f"Layout([{placements}], {self.shape}, {self.stride}, {self.mesh!r}{part})"

    def __thunder_text__(self, context: Any) -> str:
        """Return the expression that printed traces contain for the layout."""
        context.imports.add("from thunder.core.groups import Group")
        context.imports.add("from thunder.core.layouts import Layout, Mesh, Partial, Replicated, Sharded")
        return repr(self)
