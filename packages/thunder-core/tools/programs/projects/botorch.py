# SPDX-License-Identifier: Apache-2.0
"""BoTorch: the README's quick start, part by part."""

from __future__ import annotations

from typing import Any

import torch

from programs.program import Project

PROJECT = Project("botorch", rank=5175, requires=["botorch==0.18.*"])


def _gp() -> Any:
    from botorch.models import SingleTaskGP

    x = torch.rand(10, 2, dtype=torch.double)
    return SingleTaskGP(train_X=x, train_Y=1 - (x - 0.5).norm(dim=-1, keepdim=True))


def _points() -> Any:
    return (torch.rand(4, 1, 2, dtype=torch.double, requires_grad=True),)


@PROJECT.program("marginal likelihood", "README, fit a Gaussian process", trains=True)
def _likelihood() -> Any:
    from gpytorch.mlls import ExactMarginalLogLikelihood

    gp = _gp()
    mll = ExactMarginalLogLikelihood(gp.likelihood, gp)
    return (lambda y: -mll(gp(*gp.train_inputs), y)), lambda: (torch.randn(10, dtype=torch.double),), gp


@PROJECT.program("posterior", "documentation, models")
def _posterior() -> Any:
    gp = _gp().eval()

    def moments(x: Any) -> Any:
        posterior = gp.posterior(x)
        return posterior.mean, posterior.variance

    return moments, _points, gp


def _acquisition(name: str, **options: Any) -> None:
    def build() -> Any:
        import botorch.acquisition

        gp = _gp().eval()
        return getattr(botorch.acquisition, name)(gp, **options), _points, gp

    PROJECT.add(name, f"documentation, acquisition.{name}", build)


_acquisition("LogExpectedImprovement", best_f=0.8)
_acquisition("ExpectedImprovement", best_f=0.8)
_acquisition("UpperConfidenceBound", beta=0.1)
_acquisition("PosteriorMean")
_acquisition("qExpectedImprovement", best_f=0.8)


@PROJECT.program("test function", "documentation, test functions")
def _hartmann() -> Any:
    from botorch.test_functions import Hartmann

    return Hartmann(dim=6), lambda: (torch.rand(4, 6, dtype=torch.double, requires_grad=True),)
