# SPDX-License-Identifier: Apache-2.0
"""linear_operator: the README's examples."""

from __future__ import annotations

from typing import Any

import torch

from programs.program import Project

PROJECT = Project("linear-operator", rank=4596, requires=["linear-operator==0.6.*"])


def _positive(n: int = 6) -> torch.Tensor:
    a = torch.randn(n, n)
    return (a @ a.mT + n * torch.eye(n)).requires_grad_()


@PROJECT.program("low rank plus diagonal", "README, efficient solves")
def _low_rank() -> Any:
    from linear_operator.operators import DiagLinearOperator, LowRankRootLinearOperator

    def solve(c: Any, d: Any, b: Any) -> Any:
        return torch.linalg.solve(LowRankRootLinearOperator(c) + DiagLinearOperator(d), b)

    return solve, lambda: (torch.randn(8, 2, requires_grad=True), torch.rand(8) + 1.0, torch.randn(8))


@PROJECT.program("Toeplitz", "documentation, ToeplitzLinearOperator")
def _toeplitz() -> Any:
    from linear_operator.operators import ToeplitzLinearOperator

    return (lambda c, x: ToeplitzLinearOperator(c) @ x), lambda: (torch.rand(6, requires_grad=True), torch.randn(6, 2))


@PROJECT.program("Kronecker product", "documentation, KroneckerProductLinearOperator")
def _kronecker() -> Any:
    from linear_operator import to_linear_operator
    from linear_operator.operators import KroneckerProductLinearOperator

    def product(a: Any, b: Any, x: Any) -> Any:
        return KroneckerProductLinearOperator(to_linear_operator(a), to_linear_operator(b)) @ x

    return product, lambda: (_positive(2), _positive(3), torch.randn(6, 2))


@PROJECT.program("logdet", "documentation, inv_quad_logdet")
def _logdet() -> Any:
    from linear_operator import to_linear_operator

    return (lambda a, b: to_linear_operator(a).inv_quad_logdet(b, logdet=True)), lambda: (
        _positive(),
        torch.randn(6, 1),
    )


@PROJECT.program("cholesky", "documentation, cholesky")
def _cholesky() -> Any:
    from linear_operator import to_linear_operator

    return (lambda a: to_linear_operator(a).cholesky().to_dense()), lambda: (_positive(),)
