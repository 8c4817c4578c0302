# SPDX-License-Identifier: Apache-2.0
"""What a tracer knows of the collectives of the program."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from thunder.capture.tensors import aliasing
from thunder.capture.tensors.handle import Handle
from thunder.core.groups import Group
from thunder.core.proxies import TensorProxy

__all__ = ["Communication", "Replica", "Unit"]


class Replica:
    """A `DistributedDataParallel` module that the program calls."""

    def __init__(self, module: Any, group: Group, parameters: list[Any]):
        self.module = module
        self.group = group
        self.parameters = parameters  # those whose gradients are averaged
        self.expects_gradients = False  # whether the next backward averages them


class Unit(NamedTuple):
    """A call of modules that `fully_shard` communicates together."""

    unit: Any
    trained: list[str]  # the names of the whole parameters that get a gradient; none without gradients
    differentiable: bool  # whether gradients were enabled in the forward


class Communication:
    """The process groups of the program, and the collectives that it has started and not waited for."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}  # by name
        self.in_flight: dict[str, bool] = {}  # results that nothing has waited for; True if they get no gradient
        self.works: list[Any] = []  # works that nothing has waited for
        self.replicas: list[Replica] = []
        self.units: list[Unit] = []
        self.shards: dict[int, list[Handle]] = {}  # the inputs of units that are gathered, by id of the unit
        self.locals: dict[str, TensorProxy] = {}  # the local tensors of inputs that are DTensors, by the inputs' names
        self.shared: list[tuple[Any, int]] = []  # memory that DTensors share, and its number of writes then
        # Replicated values as operations read them whose results differ between ranks, by name, group and scope.
        self.varying: dict[tuple[str, str, int], TensorProxy] = {}

    def check_reads(self, handles: Iterable[Handle]) -> None:
        """Fall back if the program reads tensors that collectives in flight write."""
        for handle in handles if self.works else ():
            aliasing.check_pending(handle)
