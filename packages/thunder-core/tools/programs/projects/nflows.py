# SPDX-License-Identifier: Apache-2.0
"""nflows: the README's flow, and its other transforms in the same place."""

from __future__ import annotations

from typing import Any

import torch

from programs.program import Project

PROJECT = Project("nflows", rank=None, requires=["nflows==0.14"])


def _flow(name: str, make: Any, place: str = "documentation") -> None:
    def build() -> Any:
        from nflows import distributions, flows, transforms

        parts = [make(transforms), transforms.RandomPermutation(features=2)]
        flow = flows.Flow(transforms.CompositeTransform(parts), distributions.StandardNormal(shape=[2]))
        return flow.log_prob, lambda: (torch.rand(8, 2),), flow

    PROJECT.add(name, f"{place}, {name}", build)


_flow("MaskedAffineAutoregressiveTransform",
      lambda t: t.MaskedAffineAutoregressiveTransform(features=2, hidden_features=4), "README")  # fmt: skip
_flow("MaskedPiecewiseRationalQuadraticAutoregressiveTransform",
      lambda t: t.MaskedPiecewiseRationalQuadraticAutoregressiveTransform(
          features=2, hidden_features=4, num_bins=4, tails="linear", tail_bound=3.0))  # fmt: skip
_flow("LULinear", lambda t: t.LULinear(2))
_flow("QRLinear", lambda t: t.QRLinear(2, num_householder=2))
_flow("ActNorm", lambda t: t.ActNorm(2))
_flow("BatchNorm", lambda t: t.BatchNorm(2))


@PROJECT.program("AffineCouplingTransform", "documentation, AffineCouplingTransform")
def _coupling() -> Any:
    from nflows import distributions, flows, transforms
    from nflows.nn.nets import ResidualNet

    coupling = transforms.AffineCouplingTransform([1, 0, 1, 0], lambda i, o: ResidualNet(i, o, hidden_features=8))
    flow = flows.Flow(coupling, distributions.StandardNormal([4]))
    return flow.log_prob, lambda: (torch.rand(8, 4),), flow


@PROJECT.program("sample", "README, sampling")
def _sample() -> Any:
    from nflows import distributions, flows, transforms

    made = transforms.MaskedAffineAutoregressiveTransform(features=2, hidden_features=4)
    flow = flows.Flow(made, distributions.StandardNormal(shape=[2]))
    return (lambda: flow.sample(5)), lambda: (), flow
