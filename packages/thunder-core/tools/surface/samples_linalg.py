# SPDX-License-Identifier: Apache-2.0
"""Samples of linear algebra."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from surface.samples import Maker, calls
from thunder.core.samples import SampleInput


@calls("torch.det", "torch.Tensor.det", "torch.linalg.det", "torch.slogdet", "torch.Tensor.slogdet",
       "torch.linalg.slogdet", "torch.inverse", "torch.Tensor.inverse", "torch.linalg.inv", "torch.linalg.inv_ex",
       "torch.matrix_exp", "torch.Tensor.matrix_exp", "torch.linalg.matrix_exp", "torch.linalg.lu_factor",
       "torch.linalg.lu_factor_ex", "torch.linalg.lu", "torch.lu", "torch.Tensor.lu", "torch.linalg.eig",
       "torch.linalg.eigvals")  # fmt: skip
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make.regular(3, 3))
    yield SampleInput(make.regular(2, 4, 4))


@calls("torch.linalg.cholesky", "torch.linalg.cholesky_ex", "torch.cholesky", "torch.Tensor.cholesky",
       "torch.linalg.eigh", "torch.linalg.eigvalsh", "torch.logdet", "torch.Tensor.logdet", "torch.linalg.ldl_factor",
       "torch.linalg.ldl_factor_ex")  # fmt: skip
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make.positive(3, 3))
    yield SampleInput(make.positive(2, 4, 4))


@calls("torch.cholesky_inverse", "torch.Tensor.cholesky_inverse")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(torch.linalg.cholesky(make.positive(3, 3)))


@calls("torch.cholesky_solve", "torch.Tensor.cholesky_solve")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(3, 2), torch.linalg.cholesky(make.positive(3, 3)))


@calls("torch.linalg.svd", "torch.svd", "torch.Tensor.svd", "torch.linalg.svdvals", "torch.linalg.qr", "torch.qr",
       "torch.Tensor.qr", "torch.geqrf", "torch.Tensor.geqrf", "torch.linalg.pinv", "torch.pinverse",
       "torch.Tensor.pinverse", "torch.linalg.matrix_norm", "torch.linalg.norm", "torch.nuclear_norm",
       "torch.linalg.matrix_rank")  # fmt: skip
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make.regular(4, 3))
    yield SampleInput(make.regular(2, 3, 3))


@calls("torch.linalg.matrix_norm")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make.regular(4, 3))
    for order in ("fro", "nuc", 1, -1, 2, -2, float("inf"), float("-inf")):
        yield SampleInput(make.regular(2, 3, 3), order, keepdim=order == "nuc")


@calls("torch.linalg.norm")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make.regular(4, 3))
    yield SampleInput(make(5), 3)
    for order in ("fro", "nuc", 1, 2, float("inf")):
        yield SampleInput(make.regular(3, 3), order)
    yield SampleInput(make(2, 3, 4), 2, 1, True)
    yield SampleInput(make(2, 3, 4), "fro", (0, 2))


@calls("torch.frobenius_norm")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(4, 3), (0, 1))


@calls("torch.norm_except_dim")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(4, 3), 2, 0)


@calls("torch.linalg.cond")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make.regular(3, 3))
    yield SampleInput(make.regular(3, 3), "fro")


@calls("torch.linalg.householder_product", "torch.orgqr", "torch.Tensor.orgqr")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(*torch.geqrf(make.regular(4, 3)))


@calls("torch.ormqr", "torch.Tensor.ormqr")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(*torch.geqrf(make.regular(4, 3)), make(4, 2))


@calls("torch.linalg.ldl_solve")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(*torch.linalg.ldl_factor(make.positive(3, 3)), make(3, 2))


@calls("torch.linalg.lstsq")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make.regular(4, 3), make(4, 2))


@calls("torch.linalg.lu_solve")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(*torch.linalg.lu_factor(make.regular(3, 3)), make(3, 2))


@calls("torch.lu_solve", "torch.Tensor.lu_solve")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(3, 2), *torch.linalg.lu_factor(make.regular(3, 3)))


@calls("torch.lu_unpack")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(*torch.linalg.lu_factor(make.regular(3, 3)))


@calls("torch.matrix_power", "torch.Tensor.matrix_power", "torch.linalg.matrix_power")
def _(make: Maker) -> Iterator[SampleInput]:
    for n in (3, 0, -2):
        yield SampleInput(make.regular(3, 3), n)


@calls("torch.linalg.solve", "torch.linalg.solve_ex")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make.regular(3, 3), make(3, 2))
    yield SampleInput(make.regular(2, 3, 3), make(2, 3), left=True)


@calls("torch.linalg.solve_triangular")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make.regular(3, 3).triu(), make(3, 2), upper=True)


@calls("torch.triangular_solve", "torch.Tensor.triangular_solve")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(3, 2), make.regular(3, 3).triu())


@calls("torch.linalg.tensorinv")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make.regular(4, 4).reshape(4, 2, 2), ind=1)


@calls("torch.linalg.tensorsolve")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make.regular(4, 4).reshape(2, 2, 4), make(2, 2))


@calls("torch.svd_lowrank", "torch.pca_lowrank")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make.regular(5, 4), 2)
