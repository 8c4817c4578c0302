# SPDX-License-Identifier: Apache-2.0
"""Samples of special functions."""

from __future__ import annotations

from collections.abc import Iterator

from surface.samples import Maker, calls
from thunder.core.samples import SampleInput

_OF_ONE = ("airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "modified_bessel_i0", "modified_bessel_i1",
           "modified_bessel_k0", "modified_bessel_k1", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1",
           "spherical_bessel_j0")  # fmt: skip
_POLYNOMIALS = ("chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w",
                "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p",
                "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v",
                "shifted_chebyshev_polynomial_w")  # fmt: skip


@calls(*(f"torch.special.{name}" for name in _OF_ONE))
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(3, 4, low=0.1))
    yield SampleInput(make(4, 3, low=0.1).t())


@calls(*(f"torch.special.{name}" for name in _POLYNOMIALS))
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make.unit(3, 4), make.ints(4, high=5).to(make.dtype))
    yield SampleInput(make.unit(3, 4), 3)


@calls("torch.Tensor.polygamma", "torch.Tensor.polygamma_")
def _(make: Maker) -> Iterator[SampleInput]:
    yield SampleInput(make(3, 4, low=0.5), 0)
    yield SampleInput(make(3, 4, low=0.5), 2)
