# SPDX-License-Identifier: Apache-2.0
"""`thunder.core.transforms` re-exports what lives on higher floors, when it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import thunder.core.transforms
import thunder.passes.autodiff
from thunder.core import prims


def test_every_name_is_there() -> None:
    """And is the very thing."""
    for name in thunder.core.transforms.__all__:
        assert callable(getattr(thunder.core.transforms, name)), name
    assert set(dir(thunder.core.transforms)) == set(thunder.core.transforms.__all__)
    assert thunder.core.transforms.get_grad is prims.get_grad
    assert thunder.core.transforms.register_grad is thunder.passes.autodiff.register_grad


def test_a_name_that_is_not() -> None:
    """As any module says it."""
    with pytest.raises(AttributeError, match=r"module 'thunder.core.transforms' has no attribute 'nothing'"):
        thunder.core.transforms.nothing  # noqa: B018


def test_it_is_lazy() -> None:
    """Importing it imports no torch."""
    code = "import sys, thunder.core.transforms; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
