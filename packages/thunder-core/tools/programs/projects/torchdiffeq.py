# SPDX-License-Identifier: Apache-2.0
"""torchdiffeq: `odeint` with the solvers and options of the README, and the networks of its folder of examples."""

from __future__ import annotations

from typing import Any

import torch

from programs.program import Project

PROJECT = Project("torchdiffeq", rank=4624, requires=["torchdiffeq==0.2.*"])


class _Dynamics(torch.nn.Module):
    """The network of examples/ode_demo.py."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(2, 50), torch.nn.Tanh(), torch.nn.Linear(50, 2))
        for m in self.net.modules():
            if isinstance(m, torch.nn.Linear):
                torch.nn.init.normal_(m.weight, mean=0, std=0.1)
                torch.nn.init.constant_(m.bias, val=0)

    def forward(self, t: Any, y: Any) -> Any:
        return self.net(y**3)


def _solver(method: str, **options: Any) -> None:
    def build() -> Any:
        from torchdiffeq import odeint

        func = _Dynamics()
        times = torch.linspace(0.0, 1.0, 5)
        return (lambda y0: odeint(func, y0, times, method=method, **options)), lambda: (torch.randn(4, 2),), func

    PROJECT.add(method, f"README, odeint(method='{method}'), with the network of examples/ode_demo.py", build)


for _method in ("dopri8", "dopri5", "bosh3", "fehlberg2", "adaptive_heun"):
    _solver(_method)
for _method in ("euler", "midpoint", "rk4", "explicit_adams", "implicit_adams"):
    _solver(_method, options={"step_size": 0.1})


@PROJECT.program("odeint_adjoint", "README, odeint_adjoint", trains=True)
def _adjoint() -> Any:
    from torchdiffeq import odeint_adjoint

    func = _Dynamics()
    times = torch.linspace(0.0, 1.0, 5)

    def step(y0: Any) -> Any:
        return odeint_adjoint(func, y0, times).abs().mean()

    return step, lambda: (torch.randn(4, 2),), func


@PROJECT.program("bouncing ball", "examples/bouncing_ball.py")
def _ball() -> Any:
    from torchdiffeq import odeint_event

    class Ball(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gravity = torch.nn.Parameter(torch.tensor([9.8]))

        def forward(self, t: Any, state: Any) -> Any:
            return state[1], -self.gravity.expand_as(state[1])

    ball = Ball()

    def fall(height: Any) -> Any:
        state = (height, torch.zeros(1))
        return odeint_event(ball, state, torch.tensor([0.0]), event_fn=lambda t, s: s[0], atol=1e-6, rtol=1e-6)

    return fall, lambda: (torch.rand(1) + 5.0,), ball
