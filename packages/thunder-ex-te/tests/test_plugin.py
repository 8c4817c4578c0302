# SPDX-License-Identifier: Apache-2.0
"""The wheel as thunder sees it."""

from __future__ import annotations

import subprocess
import sys

import torch
from torch.nn import functional as F

import thunder

CODE = """
import pytest, torch, thunder
from thunder import plugins
from thunder.plugins import PluginLoadError
(record,) = [each for each in plugins.records() if each.name == "te"]
assert record.distribution in ("thunder-ex-te", "thunder_ex_te"), record
x, w = torch.randn(16, 16), torch.randn(16, 16)
f = lambda x, w: torch.nn.functional.linear(x, w)
torch.testing.assert_close(thunder.jit(f)(x, w), f(x, w))
(record,) = [each for each in plugins.records() if each.name == "te"]
if not record.ready:
    with pytest.raises(PluginLoadError, match="needs"):
        thunder.jit(f, executors=["te"])(x, w)
    said = "unknown compile option 'te_recipe': executor plugin 'te' .* is unavailable: needs"
    with pytest.raises(TypeError, match=said):
        thunder.jit(f, te_recipe=None)
"""


def test_it_is_found() -> None:
    """Installing it is enough; where it cannot run, who names it is told so, and others run as before."""
    subprocess.run([sys.executable, "-c", CODE], check=True)


def test_importing_the_hooks_costs_nothing() -> None:
    """torch is not imported to find out that it cannot run."""
    code = "import thunder_ex_te.plugin, sys; assert 'torch' not in sys.modules, 'heavy import'"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_a_recipe_nothing_changes(device: str) -> None:
    """fp8 is asked for, or not used."""
    x = torch.randn(32, 64, device=device, dtype=torch.bfloat16)
    w = torch.randn(48, 64, device=device, dtype=torch.bfloat16)
    for executors in (None, ["te"]):
        f = thunder.jit(lambda x, w: F.linear(x, w), executors=executors)
        assert torch.equal(f(x, w), F.linear(x, w))
        assert "te_" not in str(thunder.last_traces(f)[-1])
    assert "thunder.jit(…, te_recipe=…)" in str(thunder.examine(lambda x, w: F.linear(x, w), x, w, executors=["te"]))
