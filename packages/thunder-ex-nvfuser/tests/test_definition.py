# SPDX-License-Identifier: Apache-2.0
"""The text of definitions."""

from __future__ import annotations

import torch

import thunder
from thunder_ex_nvfuser.definition import order_of


def test_a_program_that_can_be_read(device: str) -> None:
    """Values have the trace's names, its lines are comments, half precision is converted at the borders."""
    f = thunder.jit(lambda x, w: torch.exp(x * w).sum(1), executors=["nvfuser"])
    f(torch.ones(4, 6, dtype=torch.bfloat16, device=device), torch.ones(6, dtype=torch.bfloat16, device=device))
    (fusion,) = thunder.examine.fusions(f)
    text = fusion.source
    compile(text, "<source>", "exec")
    for line in (
        "    x = fd.define_tensor(sizes=[4, 6], strides=[6, 1], dtype=DataType.BFloat16, static_sizes=True)",
        "    x = fd.ops.cast(x, DataType.Float)",
        "fd.ops.broadcast_in_dim(w, [4, 6], [1])",
        "    # t",
        "fd.ops.exp(",
        ", [1], False)",
        "    fd.add_output(fd.ops.cast(",
        'if __name__ == "__main__":',
    ):
        assert line in text, text
    assert fusion.template == "nvFuser's" and fusion.executor == "nvfuser"


def test_the_order_of_dimensions() -> None:
    """Those of one element lie as torch lays them: what looks like channels last is laid out so by later operations."""
    for strides in ((3, 1, 1, 1), (6, 6, 1, 1), (1, 1), (1,), ()):
        assert order_of(strides) == tuple(range(len(strides)))[::-1]
    assert order_of((12, 1, 6, 3)) == (3, 0, 2, 1) and order_of((1, 4)) == (0, 1)
