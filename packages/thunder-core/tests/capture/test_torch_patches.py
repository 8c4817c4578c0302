# SPDX-License-Identifier: Apache-2.0
"""Replacements of torch's functions leave nothing behind."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import torch
import thunder


def f(x):
    torch.overrides.get_ignored_functions()  # torch computes this list once
    return x * 2


x = torch.ones(2)
assert torch.equal(thunder.jit(f)(x), x * 2)
listed = {fn for fns in torch.overrides.get_overridable_functions().values() for fn in fns}
assert not listed & {torch.seed, torch.compile, torch.manual_seed, torch.cond}
assert not any((getattr(fn, "__module__", None) or "").startswith("thunder") for fn in listed)
names = {getattr(fn, "__name__", "") for fn in listed}
assert not names & {"seed", "compile", "set_rng_state", "set_printoptions"}, names
"""


def test_torchs_lists_of_functions() -> None:
    """torch computes lists of its functions once, maybe while a program is traced."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
