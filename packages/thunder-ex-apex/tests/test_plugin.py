# SPDX-License-Identifier: Apache-2.0
"""The wheel as thunder sees it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F

import thunder
from thunder import plugins
from thunder.extend import get_default_executors
from thunder.plugins import PluginLoadError


def test_it_is_found() -> None:
    """Installing it is enough; where apex is missing, who names it is told so, and others run as before."""
    (record,) = [each for each in plugins.records() if each.name == "apex"]
    assert record.distribution in ("thunder-ex-apex", "thunder_ex_apex")
    names = [ex.name for ex in get_default_executors()]
    x, t = torch.randn(3, 40), torch.tensor([0, 2, 4])
    torch.testing.assert_close(thunder.jit(lambda x, t: F.cross_entropy(x, t))(x, t), F.cross_entropy(x, t))
    if record.ready:
        assert {"apex", "apex_norm"} & {info.name for info in record.executors}
        return
    assert "apex" not in names
    with pytest.raises(PluginLoadError, match="needs"):
        thunder.jit(lambda x: x + 1, executors=["apex"])(torch.ones(2))
    with pytest.raises(ImportError, match="needs"):
        from thunder.executors.apexex import apex_ex  # noqa: F401


def test_importing_the_hooks_costs_nothing() -> None:
    """torch is not imported to find out that it cannot run."""
    code = "import thunder_ex_apex.plugin, sys; assert 'torch' not in sys.modules, 'heavy import'"
    subprocess.run([sys.executable, "-c", code], check=True)
