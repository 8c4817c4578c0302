# SPDX-License-Identifier: Apache-2.0
"""e3nn: the README's example, and the layers and functions of its documentation."""

from __future__ import annotations

from typing import Any

import torch

from programs.program import Project

PROJECT = Project("e3nn", rank=4275, requires=["e3nn==0.6.*"])


def _x(irreps: str = "2x0e + 1x1o") -> torch.Tensor:
    from e3nn import o3

    return o3.Irreps(irreps).randn(4, -1)


def _layer(name: str, make: Any, inputs: Any) -> None:
    PROJECT.add(name, f"documentation, {name}", lambda: (make(), inputs))


def _o3(name: str, *args: Any, **options: Any) -> Any:
    def make() -> Any:
        from e3nn import o3

        return getattr(o3, name)(*args, **options)

    return make


_layer("o3.Linear", _o3("Linear", "2x0e + 1x1o", "2x0e + 2x1o"), lambda: (_x(),))
_layer("o3.FullTensorProduct", _o3("FullTensorProduct", "2x0e + 1x1o", "2x0e + 1x1o"), lambda: (_x(), _x()))
_layer("o3.FullyConnectedTensorProduct",
       _o3("FullyConnectedTensorProduct", "2x0e + 1x1o", "1x0e + 1x1o", "2x0e + 1x1o"),
       lambda: (_x(), _x("1x0e + 1x1o")))  # fmt: skip
_layer("o3.ElementwiseTensorProduct", _o3("ElementwiseTensorProduct", "2x0e + 1x1o", "2x0e + 1x1o"),
       lambda: (_x(), _x()))  # fmt: skip
_layer("o3.TensorSquare", _o3("TensorSquare", "2x0e + 1x1o"), lambda: (_x(),))
_layer("o3.Norm", _o3("Norm", "2x0e + 1x1o"), lambda: (_x(),))
_layer("o3.SphericalHarmonics", _o3("SphericalHarmonics", [0, 1, 2], True), lambda: (torch.randn(4, 3),))


@PROJECT.program("nn.Gate", "documentation, nn.Gate")
def _gate() -> Any:
    from e3nn.nn import Gate

    gate = Gate("4x0e", [torch.relu], "2x0e", [torch.sigmoid], "2x1o")
    return gate, lambda: (gate.irreps_in.randn(4, -1),)


@PROJECT.program("nn.BatchNorm", "documentation, nn.BatchNorm")
def _norm() -> Any:
    from e3nn.nn import BatchNorm

    return BatchNorm("2x0e + 1x1o"), lambda: (_x(),)


@PROJECT.program("nn.FullyConnectedNet", "documentation, nn.FullyConnectedNet")
def _net() -> Any:
    from e3nn.nn import FullyConnectedNet

    return FullyConnectedNet([4, 16, 2], torch.relu), lambda: (torch.randn(5, 4),)


@PROJECT.program("convolution", "user guide, convolution")
def _convolution() -> Any:
    from e3nn import nn, o3
    from e3nn.math import soft_one_hot_linspace

    irreps_sh = o3.Irreps.spherical_harmonics(lmax=2)
    tp = o3.FullyConnectedTensorProduct("4x0e + 2x1o", irreps_sh, "4x0e + 2x1o", shared_weights=False)
    fc = nn.FullyConnectedNet([10, 16, tp.weight_numel], torch.relu)

    def conv(f_in: Any, pos: Any, src: Any, dst: Any) -> Any:
        edge_vec = pos[dst] - pos[src]
        sh = o3.spherical_harmonics(irreps_sh, edge_vec, normalize=True, normalization="component")
        emb = soft_one_hot_linspace(edge_vec.norm(dim=1), 0.0, 1.5, 10, basis="smooth_finite", cutoff=True).mul(10**0.5)
        out = tp(f_in[src], sh, fc(emb))
        return torch.zeros(5, out.shape[1]).index_add(0, dst, out).div(2.0)

    def inputs() -> Any:
        return _x("4x0e + 2x1o").repeat(2, 1)[:5], torch.randn(5, 3), torch.randint(5, (8,)), torch.randint(5, (8,))

    return conv, inputs, tp, fc


@PROJECT.program("rotations", "documentation, o3 parametrizations")
def _rotations() -> Any:
    from e3nn import o3

    def rotate(a: Any, b: Any, c: Any) -> Any:
        return o3.angles_to_matrix(a, b, c), o3.angles_to_quaternion(a, b, c), o3.wigner_D(1, a, b, c)

    return rotate, lambda: tuple(torch.rand(4) for _ in range(3))
