# SPDX-License-Identifier: Apache-2.0
"""The comparison of printed traces sees what differs, and only that."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest


def _compare() -> Any:
    spec = importlib.util.spec_from_file_location("seeds_compare", Path(__file__).with_name("compare.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


compare = _compare()
normalised, check_form = compare.normalised, compare.check_form

TRACE = """\
# Constructed by Delete Last Used (took 3 milliseconds)
import torch
from thunder.executors.torchex import no_autocast

@torch.no_grad()
@no_autocast
def computation(a, b):
  # a: "cpu f32[2, 1]"
  # b: "cpu f32[2, 2]"
  t2 = torch.mul(a, b)  # t2: "cpu f32[2, 2]"
    # t2 = ltorch.mul(a, b)  # t2: "cpu f32[2, 2]"
      # t1 = prims.broadcast_in_dim(a, [2, 2], (0, 1))  # t1: "cpu f32[2, 2]"
      # t2 = prims.mul(t1, b)  # t2: "cpu f32[2, 2]"
  (t3, _) = acme.pair(b, 2, mode="up")
  del b
  t4 = torch.sin(a)  # t4: "cpu f32[2, 1]"
  del a
  t5 = torch.add(t2, t3)  # t5: "cpu f32[2, 2]"
  del t2, t3
  return [t5, t4]
"""

# The same program: other names, other order, one call twice.
OTHERWISE = """\
# Constructed by Delete Last Used (took 0 milliseconds)
import torch
from thunder.executors.torchex import no_autocast

@torch.no_grad()
@no_autocast
def computation(x, y):
  # x: "cpu f32[2, 1]"
  # y: "cpu f32[2, 2]"
  (p, q) = acme.pair(y, 2, mode='up')
  del q
  u = torch.sin(x)  # u: "cpu f32[2, 1]"
  w = torch.mul(x, y)  # w: "cpu f32[2, 2]"
    # w = ltorch.mul(x, y)  # w: "cpu f32[2, 2]"
      # z = prims.broadcast_in_dim(x, [2, 2], (0, 1))  # z: "cpu f32[2, 2]"
      # w = prims.mul(z, y)  # w: "cpu f32[2, 2]"
  w2 = torch.mul(x, y)  # w2: "cpu f32[2, 2]"
    # w2 = ltorch.mul(x, y)  # w2: "cpu f32[2, 2]"
      # z2 = prims.broadcast_in_dim(x, [2, 2], (0, 1))  # z2: "cpu f32[2, 2]"
      # w2 = prims.mul(z2, y)  # w2: "cpu f32[2, 2]"
  del x, y, w2
  s = torch.add(w, p)  # s: "cpu f32[2, 2]"
  del w, p
  return [s, u]
"""


def test_what_may_differ() -> None:
    """Names, order of independent lines, repeated calls and the time that a pass took."""
    assert normalised(OTHERWISE) == normalised(TRACE)
    check_form(TRACE, OTHERWISE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("torch.sin(a)", "torch.cos(a)"),
        ("torch.mul(a, b)  #", "torch.mul(b, a)  #"),
        ("ltorch.mul(a, b)", "ltorch.mul(b, a)"),
        ("(0, 1))", "(1, 0))"),
        ('mode="up"', 'mode="down"'),
        ("return [t5, t4]", "return (t5, t4)"),
        ("return [t5, t4]", "return [t4, t5]"),
        ('# a: "cpu f32[2, 1]"', '# a: "cpu f64[2, 1]"'),
        ('# t5: "cpu f32[2, 2]"', '# t5: "cpu f64[2, 2]"'),
        ('# t1: "cpu f32[2, 2]"', '# t1: "cpu f64[2, 2]"'),
        ("import torch\n", "import torch\nimport acme\n"),
        ("Delete Last Used", "Dead Code Elimination"),
        ("(a, b):", "(b, a):"),
    ],
)
def test_what_may_not_differ(old: str, new: str) -> None:
    """Everything else."""
    changed = TRACE.replace(old, new)
    assert changed != TRACE
    assert normalised(changed) != normalised(TRACE)


@pytest.mark.parametrize(
    ("old", "new"),
    [("  del b\n", ""), ("  del a\n", ""), ("  del b\n", "  del b, t3\n"), ("  return", "  del t4\n  return")],
)
def test_values_are_deleted_after_their_last_use(old: str, new: str) -> None:
    """Neither later, nor earlier, nor what is returned."""
    with pytest.raises(AssertionError, match="last used"):
        normalised(TRACE.replace(old, new))


@pytest.mark.parametrize("line", ["@torch.no_grad()\n", "@no_autocast\n"])
def test_decorators_are_required_of_ours(line: str) -> None:
    """A document may have none."""
    without = TRACE.replace(line, "")
    assert normalised(without) == normalised(TRACE)
    check_form(without, TRACE)
    with pytest.raises(AssertionError):
        check_form(TRACE, without)


def test_where_comments_of_inputs_stand() -> None:
    """At the top, or at the first use of each if the document has some of them there."""
    comment = '  # b: "cpu f32[2, 2]"\n'
    late = TRACE.replace(comment, "").replace("  (t3, _) =", f"{comment}  (t3, _) =")
    first = TRACE.replace(comment, "").replace("  t2 = torch.mul", f"{comment}  t2 = torch.mul")
    sunk = SUNK.replace(comment, "").replace("  t1 = torch.cos", f"{comment}  t1 = torch.cos")
    check_form(TRACE, first)
    check_form(sunk, sunk)
    for shown, printed in ((TRACE, late), (late, late), (TRACE, sunk), (sunk, SUNK)):
        with pytest.raises(AssertionError, match="comments of inputs"):
            check_form(shown, printed)


SUNK = """\
# Constructed by Delete Last Used (took 0 milliseconds)
import torch
from thunder.executors.torchex import no_autocast

@torch.no_grad()
@no_autocast
def computation(a, b):
  # a: "cpu f32[2, 1]"
  # b: "cpu f32[2, 2]"
  t0 = torch.sin(a)  # t0: "cpu f32[2, 1]"
  del a
  t1 = torch.cos(b)  # t1: "cpu f32[2, 2]"
  del b
  return [t0, t1]
"""
