# SPDX-License-Identifier: Apache-2.0
"""Pyro: log probabilities and inference of the introductory tutorials."""

from __future__ import annotations

from typing import Any

import torch

from programs.program import Project

PROJECT = Project("pyro-ppl", rank=4286, requires=["pyro-ppl==1.9.*"])


@PROJECT.program("log_prob of a trace", "tutorial, introduction to Pyro")
def _log_prob() -> Any:
    import pyro
    import pyro.distributions as dist

    def model(data: Any) -> Any:
        weight = pyro.sample("weight", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 5):
            pyro.sample("obs", dist.Normal(weight, 0.75), obs=data)

    def log_prob(data: Any) -> Any:
        return pyro.poutine.trace(model).get_trace(data).log_prob_sum()

    return log_prob, lambda: (torch.randn(5),)


@PROJECT.program("Trace_ELBO", "tutorial, SVI part I", trains=True)
def _elbo() -> Any:
    import pyro
    import pyro.distributions as dist
    from pyro.infer import Trace_ELBO
    from pyro.nn import PyroModule

    class Model(PyroModule):  # type: ignore[misc,valid-type]
        def forward(self, data: Any) -> Any:
            f = pyro.sample("latent", dist.Beta(torch.tensor(10.0), torch.tensor(10.0)))
            with pyro.plate("plate", 5):
                return pyro.sample("obs", dist.Bernoulli(f), obs=data)

    class Guide(PyroModule):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.alpha = torch.nn.Parameter(torch.tensor(15.0))
            self.beta = torch.nn.Parameter(torch.tensor(15.0))

        def forward(self, data: Any) -> Any:
            pyro.sample("latent", dist.Beta(self.alpha.exp().log1p(), self.beta.exp().log1p()))

    loss = Trace_ELBO()(Model(), Guide())
    return loss, lambda: (torch.randint(2, (5,)).float(),)


@PROJECT.program("PyroModule", "tutorial, modules in Pyro")
def _module() -> Any:
    from pyro.nn import PyroModule

    model = PyroModule[torch.nn.Sequential](PyroModule[torch.nn.Linear](4, 8), torch.nn.Tanh(),
                                            PyroModule[torch.nn.Linear](8, 2))  # fmt: skip
    return model, lambda: (torch.randn(3, 4),)


def _flow(name: str, make: Any) -> None:
    def build() -> Any:
        import pyro.distributions as dist

        base = dist.Normal(torch.zeros(2), torch.ones(2)).to_event(1)
        transform = make(dist.transforms)
        flow = dist.TransformedDistribution(base, [transform])

        def log_prob(x: Any) -> Any:
            flow.clear_cache()
            return flow.log_prob(x)

        if name == "planar":  # has no inverse
            return (lambda: flow.rsample(torch.Size([6]))), lambda: (), transform
        return log_prob, lambda: (torch.rand(6, 2),), transform

    PROJECT.add(name, f"tutorial, normalizing flows, {name}", build)


_flow("spline", lambda t: t.Spline(2, count_bins=4))
_flow("spline_coupling", lambda t: t.spline_coupling(2, count_bins=4))
_flow("planar", lambda t: t.Planar(2))
