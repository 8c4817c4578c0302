# SPDX-License-Identifier: Apache-2.0
"""What a tracer knows of the collectives of the program."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from thunder.capture.tensors import aliasing
from thunder.capture.tensors.handle import Handle
from thunder.core.groups import Group
from thunder.core.proxies import TensorProxy

__all__ = ["Communication", "Replica", "Shard", "Unit", "Waiting"]


class Replica:
    """A `DistributedDataParallel` module that the program calls."""

    def __init__(self, module: Any, group: Group):
        self.module = module
        self.group = group
        self.expects_gradients = False  # whether the next backward averages them
        self.preparations: list[Any] = []  # operations for a backward that the program leaves to its caller


class Unit(NamedTuple):
    """The gathered parameters of modules that `fully_shard` communicates together, until their backward."""

    unit: Any
    plan: Any  # how it communicates
    whole: list[Handle]  # the parameters
    shown: list[Handle]  # as modules see them: DTensors if tensor parallelism shards them, too
    versions: list[int]  # of the memory of their shards when they were gathered
    trained: list[str]  # the names of the whole parameters that get a gradient; none without gradients
    differentiable: bool  # whether gradients were enabled in the forward
    reduces: bool  # whether a caller's backward() reduces gradients


class Shard(NamedTuple):
    """This process's part of a parameter that `fully_shard` has sharded, which is an input of the program."""

    parameter: torch.Tensor
    local: Handle


class Waiting:
    """The gradients of a unit's whole parameters that are not reduced yet, before the program and now."""

    def __init__(self, unit: Any, source: Any, gradients: list[Handle | None]):
        self.unit = unit
        self.source = source
        self.before = gradients
        self.now = [*gradients]


class Communication:
    """The process groups of the program, and the collectives that it has started and not waited for."""

    def __init__(self) -> None:
        self.may_wait = True  # whether first calls may run eagerly, because no transform changes the results
        self.groups: dict[str, Group] = {}  # by name
        self.in_own_order = False  # whether collectives have another order than in eager mode, or other kinds
        self.in_flight: dict[str, bool] = {}  # results that nothing has waited for; True if they get no gradient
        self.works: list[Any] = []  # works that nothing has waited for
        self.replicas: list[Replica] = []
        self.units: list[Unit] = []
        self.whole: dict[int, Any] = {}  # units that `unshard()` has gathered before their forward, by id
        self.reduced: set[str] = set()  # the names of whole parameters whose gradients a backward has computed
        self.shards: dict[int, Shard] = {}  # by id of the sharded parameter
        self.syncs: dict[int, tuple[Any, Any, bool]] = {}  # units, sources, and whether they reduce now, by id
        self.sources: dict[int, Any] = {}  # of units, by id of the unit
        # Inputs whose gradients are those of a unit's whole parameters, by id of the unit.
        self.receivers: dict[int, list[Handle]] = {}
        self.waiting: dict[int, Waiting] = {}  # by id of the unit
        self.read_only: list[tuple[Any, str]] = []  # memory that must not be written, with reasons
        # Replicated values as operations read them whose results differ between ranks, by name, group and scope.
        self.varying: dict[tuple[str, str, int], TensorProxy] = {}

    @property
    def ranks_in_own_order(self) -> list[int]:
        """The ranks of all groups if collectives have another order than in eager mode; none otherwise."""
        return sorted({r for group in self.groups.values() for r in group.ranks} if self.in_own_order else ())

    def release(self) -> None:
        """Release the handles."""
        self.units, self.receivers, self.shards, self.waiting, self.syncs, self.whole = [], {}, {}, {}, {}, {}

    def check_reads(self, handles: Iterable[Handle]) -> None:
        """Fall back if the program reads tensors that collectives in flight write."""
        for handle in handles if self.works else ():
            aliasing.check_pending(handle)
