# SPDX-License-Identifier: Apache-2.0
"""What a tracer knows of the collectives of the program."""

from __future__ import annotations

from typing import Any

from thunder.core.groups import Group
from thunder.core.proxies import TensorProxy

__all__ = ["Communication", "Replica"]


class Replica:
    """A `DistributedDataParallel` module that the program calls."""

    def __init__(self, module: Any, group: Group, parameters: list[Any]):
        self.module = module
        self.group = group
        self.parameters = parameters  # those whose gradients are averaged
        self.expects_gradients = False  # whether the next backward averages them


class Communication:
    """The process groups of the program, and the collectives that it has started and not waited for."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}  # by name
        self.in_flight: dict[str, bool] = {}  # results that nothing has waited for; True if they get no gradient
        self.works: list[Any] = []  # works that nothing has waited for
        self.replicas: list[Replica] = []
        self.locals: dict[str, TensorProxy] = {}  # the local tensors of inputs that are DTensors, by the inputs' names
        self.shared: list[tuple[Any, int]] = []  # memory that DTensors share, and its number of writes then
        # Replicated values as operations read them whose results differ between ranks, by name, group and scope.
        self.varying: dict[tuple[str, str, int], TensorProxy] = {}
