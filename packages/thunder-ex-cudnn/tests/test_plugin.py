# SPDX-License-Identifier: Apache-2.0
"""The wheel as thunder sees it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import thunder
from thunder import plugins
from thunder.extend import get_default_executors
from thunder.plugins import PluginLoadError


def test_it_is_found() -> None:
    """Installing it is enough; where it cannot run, who names it is told why."""
    (record,) = [each for each in plugins.records() if each.name == "cudnn"]
    assert record.distribution in ("thunder-ex-cudnn", "thunder_ex_cudnn")
    names = [ex.name for ex in get_default_executors()]
    if record.ready:
        assert "cudnn" in names
        return
    assert "cudnn" not in names
    with pytest.raises(PluginLoadError, match="needs"):
        thunder.jit(lambda x: x + 1, executors=["cudnn"])(torch.ones(2))


def test_importing_the_hooks_costs_nothing() -> None:
    """Neither cuDNN nor torch is imported to find out that it cannot run."""
    code = "import thunder_ex_cudnn.plugin, sys; assert not {'cudnn', 'torch'} & set(sys.modules), 'heavy import'"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_programs_run_without_it() -> None:
    """An operation that it does not take is run by others."""
    q = torch.randn(1, 2, 4, 8)
    f = thunder.jit(lambda q: F.scaled_dot_product_attention(q, q, q))
    torch.testing.assert_close(f(q), F.scaled_dot_product_attention(q, q, q))
