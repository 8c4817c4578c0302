# SPDX-License-Identifier: Apache-2.0
"""Products in the core language, and the operator for them."""

from __future__ import annotations

import torch

import thunder
from thunder import clang
from thunder.core.langctx import langctx
from thunder.core.symbol import Symbol


def test_products() -> None:
    """The function, the layer, and `@` where the language is clang."""
    a, b, w, c = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5, 4), torch.randn(5)
    operator = Symbol("operator", langctx("clang")(lambda a, b: a @ b), id="operator")
    for fn in (Symbol("matmul", clang.matmul, id="matmul"), operator):
        torch.testing.assert_close(thunder.jit(fn)(a, b), a @ b)
    layer = Symbol("linear", clang.linear, id="linear")
    torch.testing.assert_close(thunder.jit(layer)(a, w, c), a @ w.T + c)
