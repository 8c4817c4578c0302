# SPDX-License-Identifier: Apache-2.0
"""The wheel as thunder sees it."""

from __future__ import annotations

import subprocess
import sys

import torch
from torch.nn import functional as F

import thunder
from thunder import plugins
from thunder.extend import get_default_executors


def test_it_is_found_and_used() -> None:
    """Installing it is enough."""
    (record,) = [each for each in plugins.records() if each.name == "triton"]
    assert record.distribution in ("thunder-ex-triton", "thunder_ex_triton")
    assert "triton_crossentropy" in [ex.name for ex in get_default_executors()]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    f = thunder.jit(lambda x, t: F.cross_entropy(x, t, ignore_index=2, reduction="sum"))
    f(torch.randn(3, 5, device=device), torch.tensor([0, 2, 4], device=device))
    line = next(line for line in str(thunder.last_traces(f)[-1]).splitlines() if "triton_crossentropy(" in line)
    assert "triton_crossentropy(x, t, None, None, 2, None, 'sum', 0.0)" in line


def test_importing_the_hooks_costs_nothing() -> None:
    """Neither Triton nor torch is imported to find out that it cannot run."""
    code = "import thunder_ex_triton.plugin, sys; assert not {'triton', 'torch'} & set(sys.modules), 'heavy import'"
    subprocess.run([sys.executable, "-c", code], check=True)
