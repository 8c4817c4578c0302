# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs of modules whose gradients `DistributedDataParallel` reduces, on two processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist
from processes import reports

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="a torch without gloo")


def test_graphs_train_as_eager_mode_does(tmp_path: Path) -> None:
    """Losses, gradients and parameters of each step; the backward program is a graph for each of its stages."""
    for report in reports("ranks_graphs.py", 2, tmp_path):
        for name, found in report.items():
            assert all(found["close"]), name
            forward, backward = found["captures"]
            assert forward >= 1 and backward >= 2, (name, found)
