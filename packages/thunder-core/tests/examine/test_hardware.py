# SPDX-License-Identifier: Apache-2.0
"""Times of lines and collectives: formulas of rings and trees, measured curves, and ranges."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thunder.core.errors import ThunderError
from thunder.examine import HARDWARE, Curve
from thunder.examine.hardware import hardware_named, hardware_of

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send", "synchronize_ranks")


@given(
    st.sampled_from(sorted(HARDWARE)), st.sampled_from(KINDS), st.integers(0, 10**10), st.integers(2, 1024),
    st.integers(1, 16),
)  # fmt: skip
def test_an_estimate_is_in_its_range_and_grows_with_bytes(
    name: str, kind: str, size: int, count: int, step: int
) -> None:
    ranks = range(0, count * step, step)
    found = HARDWARE[name].collective(kind, size, ranks)
    assert 0 < found.low <= found.seconds <= found.high
    more = HARDWARE[name].collective(kind, 2 * size + 10**6, ranks)
    assert more.seconds > found.seconds or kind == "synchronize_ranks"
    assert not found.is_measured


@given(st.sampled_from(KINDS), st.integers(10**6, 10**9))
def test_a_network_is_slower_than_a_node(kind: str, size: int) -> None:
    machine = HARDWARE["h100"]
    inside, outside = machine.collective(kind, size, range(8)), machine.collective(kind, size, range(0, 64, 8))
    assert inside.seconds < outside.seconds


@pytest.mark.parametrize(
    ("kind", "factor"),
    [("all_reduce", 2 * 7 / 8), ("all_gather", 7 / 8), ("reduce_scatter", 7 / 8), ("broadcast", 1.0)],
)
def test_many_bytes_take_the_time_of_the_bandwidth(kind: str, factor: float) -> None:
    machine, size = HARDWARE["h100"], 1 << 40
    seconds = machine.collective(kind, size, range(8)).low
    assert seconds == pytest.approx(factor * size / machine.node.bandwidth, rel=1e-3)


def test_all_adapters_of_a_node_carry_a_large_group() -> None:
    machine, size = HARDWARE["h100"], 1 << 40
    whole, one = (
        machine.collective("all_gather", size, range(16)),
        machine.collective("all_gather", size, range(0, 128, 8)),
    )
    assert one.low / whole.low == pytest.approx(8, rel=1e-2)


def test_a_curve_is_a_line_between_its_points() -> None:
    curve = Curve("all_reduce", 2, ((1000, 1.0), (2000, 2.0), (4000, 8.0)))
    assert [curve.seconds(n) for n in (0, 1000, 1500, 3000, 8000)] == [1.0, 1.0, 1.5, 5.0, 16.0]
    machine = HARDWARE["cpu"].with_curves([curve])
    assert machine.collective("all_reduce", 1500, (0, 1)) == (1.5, 1.5, 1.5, True)
    assert not machine.collective("all_reduce", 8000, (0, 1)).is_measured  # beyond the last point
    assert not machine.collective("all_gather", 1500, (0, 1)).is_measured
    assert machine.collective("all_reduce", 1500, (0,)).seconds == 0.0


def test_machines_have_names() -> None:
    assert hardware_named("H200") is HARDWARE["h200"]
    assert hardware_named(HARDWARE["cpu"]) is HARDWARE["cpu"]
    assert hardware_of(torch.device("cpu")) is HARDWARE["cpu"]
    with pytest.raises(ThunderError, match="'b300' is no machine: pass one of h100, h200, cpu"):
        hardware_named("b300")
