# SPDX-License-Identifier: Apache-2.0
"""Tables that kernels read from a device, alone and in a CUDA graph."""

from __future__ import annotations

import pytest
import torch

from thunder.runtime.device_tables import GraphTables, device_table, is_capturing_graph

CPU = torch.device("cpu")


def test_a_table_has_its_values_at_once() -> None:
    assert device_table(CPU, iter([3, -1, 1 << 40])).tolist() == [3, -1, 1 << 40]
    assert not is_capturing_graph()


def test_a_table_under_a_default_device() -> None:
    with torch.device("meta"):
        assert device_table(CPU, [3, -1]).tolist() == [3, -1]


def test_tables_of_a_graph_are_written_after_the_capture() -> None:
    tables = GraphTables(CPU, [3, 33, 0])
    tables.memory.fill_(7)
    with tables:
        assert is_capturing_graph()
        first, second, empty = device_table(CPU, [1, 2]), device_table(CPU, range(33)), device_table(CPU, [])
    assert not is_capturing_graph()
    assert first.tolist() == [7, 7]  # a copy from the host cannot be captured
    tables.write()
    assert first.tolist() == [1, 2]
    assert second.tolist() == [*range(33)]
    assert empty.numel() == 0
    starts = [(x.data_ptr() - tables.memory.data_ptr()) % 256 for x in (first, second)]
    assert starts == [0, 0]


def test_more_tables_than_declared() -> None:
    tables = GraphTables(CPU, [3])
    with pytest.raises(RuntimeError, match="more tables than its operations have declared"), tables:
        device_table(CPU, range(33))
    assert not is_capturing_graph()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_users_own_graph() -> None:
    with (
        pytest.raises(RuntimeError, match="which a CUDA graph would not repeat"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        device_table(torch.device("cuda"), [1])
