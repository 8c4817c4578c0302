# SPDX-License-Identifier: Apache-2.0
"""Descriptions of machines, and how long a line or a collective takes on them.

A line takes as long as its bytes or its floating-point operations (the roofline), of which programs reach a share. A
collective takes a latency for each of its steps, and the time that its bytes take on the slowest link. Measured times
of collectives (`measure_collectives`) replace the formulas for their numbers of ranks, and are scaled to others.

An estimate is a range: the optimistic end has the latency of a tree and all of the bandwidth, the other end twice the
latency and half of the bandwidth. A predicted line takes 0.8 to 1.5 times its estimate. Only measured times have no
range.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from thunder.core import dtypes
from thunder.core.errors import ThunderError
from thunder.core.groups import Group
from thunder.core.nbytes import bytes_of
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, OpTags
from thunder.execution.flops import bytes_moved, flops_of

__all__ = [
    "HARDWARE",
    "LINE_RANGE",
    "Curve",
    "Estimate",
    "Hardware",
    "Link",
    "collective_bytes",
    "hardware_named",
    "hardware_of",
]

#: The ends of the range of a predicted line.
LINE_RANGE = {"low": 0.8, "seconds": 1.0, "high": 1.5}


class Link(NamedTuple):
    """The latency of a step in seconds, and the bandwidth of one rank in bytes per second, in one direction."""

    latency: float
    bandwidth: float


class Curve(NamedTuple):
    """The measured times of a collective among `ranks` processes: pairs of bytes and seconds, by bytes."""

    kind: str
    ranks: int
    points: tuple[tuple[int, float], ...]

    def seconds(self, size: float) -> float:
        """Return the time for a size: between two points along a line, beyond the last with its bandwidth."""
        (low, begin), *rest = self.points
        if size <= low or not rest:
            return begin
        for high, end in rest:
            if size <= high:
                return begin + (end - begin) * (size - low) / (high - low)
            low, begin = high, end
        return begin * size / low


class Estimate(NamedTuple):
    """A time in seconds with its range. `is_measured` if it is not extrapolated from data sheets or other sizes."""

    seconds: float
    low: float
    high: float
    is_measured: bool


class Hardware(NamedTuple):
    """A machine of nodes with `ranks_per_node` processes, one for each device.

    `bandwidth` is that of the device's memory, in bytes per second. `flops` are floating-point operations per second of
    matrix products, by the name of the dtype. `launch` is the least time of a line. `reached` are the shares of the
    bandwidth and of the operations that programs reach. `node` links ranks of a node, and `network` ranks of different
    nodes. `curves` are measured.
    """

    name: str
    bandwidth: float
    flops: Mapping[str, float]
    launch: float
    node: Link
    network: Link
    ranks_per_node: int
    reached: tuple[float, float] = (0.8, 0.7)
    curves: tuple[Curve, ...] = ()

    def with_curves(self, curves: Sequence[Curve]) -> Hardware:
        """Return the machine with measured collectives."""
        return self._replace(curves=(*self.curves, *curves))

    def seconds_of_line(self, op: BoundSymbol) -> float:
        """Return the predicted time of a line that does not communicate."""
        moved, operations = bytes_moved(op), flops_of(op)
        if not moved and not operations:
            return 0.0
        dtype = next((x.dtype for x in op.flat_args if isinstance(x, TensorProxy)), dtypes.float32)
        most = self.flops.get(str(dtype), self.flops["float32"])
        if not _multiplies(op):
            most = self.flops["float32"]  # elementwise operations do not use matrix units
        memory, compute = self.reached
        return self.launch + max(moved / (self.bandwidth * memory), operations / (most * compute))

    def collective(self, kind: str, size: int, ranks: Sequence[int]) -> Estimate:
        """Return the time of a collective of `size` bytes (`collective_bytes`) among global ranks."""
        count = len(ranks)
        if count < 2:
            return Estimate(0.0, 0.0, 0.0, True)
        nodes = {rank // self.ranks_per_node for rank in ranks}
        known = [curve for curve in self.curves if curve.kind == kind] if len(nodes) == 1 else []
        same = next((curve for curve in known if curve.ranks == count), None)
        if same is not None:
            seconds = same.seconds(size)
            return Estimate(seconds, seconds, seconds, same.points[0][0] <= size <= same.points[-1][0])
        if known:
            nearest = min(known, key=lambda curve: abs(math.log(curve.ranks / count)))
            seconds = _scaled(kind, nearest, size, count)
            return Estimate(seconds, seconds / 1.25, seconds * 1.25, False)
        low, middle, high = (self._formula(kind, size, ranks, share) for share in (1.0, 0.8, 0.5))
        return Estimate(middle, low, high, False)

    def _formula(self, kind: str, size: int, ranks: Sequence[int], share: float) -> float:
        """Return the time by the formula of a ring or a tree. `share` is that of the bandwidth which is reached."""
        count, nodes = len(ranks), len({rank // self.ranks_per_node for rank in ranks})
        per_node = -(-count // nodes)
        if nodes == 1:
            bandwidth, ring = self.node.bandwidth, (count - 1) * self.node.latency
        else:  # as many rings as a node has ranks of the group, each through another network adapter
            bandwidth = min(self.node.bandwidth, self.network.bandwidth * per_node)
            ring = (nodes - 1) * self.network.latency + nodes * (per_node - 1) * self.node.latency
        tree = math.log2(per_node) * self.node.latency + math.log2(nodes) * self.network.latency
        latency = tree if share == 1.0 else ring
        if kind in ("all_reduce", "broadcast", "reduce", "synchronize_ranks"):  # libraries choose between both
            latency = min(ring, tree)
        latency *= 1 if share > 0.5 else 2
        return _rounds(kind) * latency + _factor(kind, count) * size / (bandwidth * share)


def _multiplies(op: BoundSymbol) -> bool:
    parts = op.subsymbols or (op,)
    return any(OpTags.MATMUL_OP in part.sym.tags or (part is not op and _multiplies(part)) for part in parts)


def _rounds(kind: str) -> int:
    return 2 if kind in ("all_reduce", "synchronize_ranks") else 1


def _factor(kind: str, count: int) -> float:
    """Return how often a rank sends the bytes of a collective."""
    if kind in ("all_gather", "reduce_scatter", "all_to_all", "gather_to", "scatter_from"):
        return (count - 1) / count
    return 2 * (count - 1) / count if kind == "all_reduce" else 1.0


def _scaled(kind: str, curve: Curve, size: int, count: int) -> float:
    """Return the time among `count` ranks of a node from that among other ranks."""
    latency = curve.points[0][1]
    rest = max(0.0, curve.seconds(size) - latency)
    return latency * (count - 1) / (curve.ranks - 1) + rest * _factor(kind, count) / _factor(kind, curve.ranks)


def collective_bytes(op: BoundSymbol, group: Group) -> int:
    """Return the bytes of a collective: those of the whole tensor that ranks reduce, gather, scatter or exchange."""
    name = op.sym.name
    given = sum(map(bytes_of, op.flat_args))
    made = sum(map(bytes_of, op.flat_outs))
    if name == "synchronize_ranks":
        return 0
    if name in ("gather_to", "scatter_from"):
        return (given if name == "gather_to" else made) * group.size
    return made if name in ("all_gather", "receive") else given


#: Machines by name, from the data sheets of their vendors: dense operations, and one network adapter for each device.
HARDWARE: dict[str, Hardware] = {
    "h100": Hardware(
        "NVIDIA H100 SXM",
        bandwidth=3.35e12,
        flops={"bfloat16": 989e12, "float16": 989e12, "float32": 67e12, "float64": 67e12, "float8_e4m3fn": 1979e12},
        launch=3e-6,
        node=Link(4e-6, 450e9),
        network=Link(12e-6, 50e9),
        ranks_per_node=8,
    ),
    "h200": Hardware(
        "NVIDIA H200 SXM",
        bandwidth=4.8e12,
        flops={"bfloat16": 989e12, "float16": 989e12, "float32": 67e12, "float64": 67e12, "float8_e4m3fn": 1979e12},
        launch=3e-6,
        node=Link(4e-6, 450e9),
        network=Link(12e-6, 50e9),
        ranks_per_node=8,
    ),
    "cpu": Hardware(
        "a CPU of eight cores",
        bandwidth=4e10,
        flops={"float32": 4e11, "float64": 2e11},
        launch=2e-6,
        node=Link(5e-5, 4e9),
        network=Link(1e-4, 1e9),
        ranks_per_node=8,
    ),
}


def hardware_named(given: Any) -> Hardware:
    """Return a machine by its name, or the machine itself."""
    if isinstance(given, Hardware):
        return given
    found = HARDWARE.get(str(given).lower())
    if found is None:
        raise ThunderError(f"{given!r} is no machine: pass one of {', '.join(HARDWARE)}, or a thunder.examine.Hardware")
    return found


def hardware_of(device: torch.device) -> Hardware:
    """Return the description that fits a device of this machine best."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return HARDWARE["cpu"]
    name = torch.cuda.get_device_name(device).lower()
    return next((found for key, found in HARDWARE.items() if key in name), HARDWARE["h100"])
