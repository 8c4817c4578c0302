# SPDX-License-Identifier: Apache-2.0
"""The comparison of printed traces sees what differs, and only that."""

from __future__ import annotations

import pytest
from compare_printed_traces import normalised, same_trace

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
    same_trace(TRACE, OTHERWISE)


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
        ("@no_autocast\n", ""),
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


def test_one_tensor_given_twice() -> None:
    """Inputs that were one tensor are one input."""
    merged = TRACE.replace("computation(a, b)", "computation(a)").replace('  # b: "cpu f32[2, 2]"\n', "")
    merged = merged.replace("  del b\n", "").replace("a, b)", "a, a)").replace("(b, 2", "(a, 2").replace(", b)", ", a)")
    same_trace(TRACE.replace("  del b\n", ""), merged, given_twice={"b": "a"})
