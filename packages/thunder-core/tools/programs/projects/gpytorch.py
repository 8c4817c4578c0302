# SPDX-License-Identifier: Apache-2.0
"""GPyTorch: the tutorials' regressions, their kernels and likelihoods."""

from __future__ import annotations

from typing import Any

import torch

from programs.program import Project

PROJECT = Project("gpytorch", rank=4563, requires=["gpytorch==1.15.*"])

_X = torch.linspace(0, 1, 20)
_Y = torch.sin(_X * 6.28)


def _exact(kernel: Any) -> Any:
    import gpytorch

    class ExactGPModel(gpytorch.models.ExactGP):
        def __init__(self, likelihood: Any) -> None:
            super().__init__(_X, _Y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = kernel

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    return ExactGPModel(likelihood), likelihood


@PROJECT.program("exact regression, training", "tutorial, GPyTorch regression", trains=True)
def _training() -> Any:
    import gpytorch

    model, likelihood = _exact(gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()))
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    return (lambda y: -mll(model(_X), y)), lambda: (_Y + torch.randn(20) * 0.2,), model


@PROJECT.program("exact regression, predictions", "tutorial, GPyTorch regression")
def _predictions() -> Any:
    import gpytorch

    model, likelihood = _exact(gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()))
    model.eval()
    likelihood.eval()

    def predict(x: Any) -> Any:
        with torch.no_grad(), gpytorch.settings.fast_pred_var():
            out = likelihood(model(x))
            return out.mean, out.variance

    return predict, lambda: (torch.rand(8),), model


def _kernel(name: str, **options: Any) -> None:
    def build() -> Any:
        import gpytorch

        if name == "SpectralMixtureKernel":
            kernel = gpytorch.kernels.SpectralMixtureKernel(num_mixtures=2)
        else:
            kernel = getattr(gpytorch.kernels, name)(**options)
        return (lambda x: kernel(x).to_dense()), lambda: (torch.randn(6, 1),), kernel

    PROJECT.add(name, f"documentation, kernels.{name}", build)


for _name in ("RBFKernel", "MaternKernel", "PeriodicKernel", "LinearKernel", "RQKernel", "CosineKernel",
              "SpectralMixtureKernel"):  # fmt: skip
    _kernel(_name)
_kernel("PolynomialKernel", power=2)


@PROJECT.program("variational regression", "tutorial, stochastic variational GP regression", trains=True)
def _svgp() -> Any:
    import gpytorch

    class GPModel(gpytorch.models.ApproximateGP):
        def __init__(self, inducing: Any) -> None:
            distribution = gpytorch.variational.CholeskyVariationalDistribution(inducing.size(0))
            strategy = gpytorch.variational.VariationalStrategy(
                self, inducing, distribution, learn_inducing_locations=True
            )
            super().__init__(strategy)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model = GPModel(torch.rand(5, 2))
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=40)
    return (lambda x, y: -mll(model(x), y)), lambda: (torch.rand(10, 2), torch.randn(10)), model, likelihood
