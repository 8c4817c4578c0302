# SPDX-License-Identifier: Apache-2.0
"""torchsde: the README's quick example, with its methods and noise types."""

from __future__ import annotations

from typing import Any

import torch

from programs.program import Project

PROJECT = Project("torchsde", rank=3038, requires=["torchsde==0.2.*"])


class _SDE(torch.nn.Module):
    def __init__(self, noise: str, kind: str) -> None:
        super().__init__()
        self.noise_type, self.sde_type = noise, kind
        self.mu = torch.nn.Linear(3, 3)
        self.sigma = torch.nn.Linear(3, 3 * 2 if noise == "general" else 3)

    def f(self, t: Any, y: Any) -> Any:
        return self.mu(y)

    def g(self, t: Any, y: Any) -> Any:
        out = self.sigma(y)
        return out.view(-1, 3, 2) if self.noise_type == "general" else out


def _method(name: str, noise: str, kind: str, method: str) -> None:
    def build() -> Any:
        import torchsde

        sde = _SDE(noise, kind)
        times = torch.linspace(0, 1, 5)
        return (lambda y0: torchsde.sdeint(sde, y0, times, method=method, dt=0.1)), lambda: (torch.randn(4, 3),), sde

    PROJECT.add(name, f"README, quick example with {method}", build)


_method("general noise", "general", "ito", "euler")
_method("diagonal noise, milstein", "diagonal", "ito", "milstein")
_method("srk", "diagonal", "ito", "srk")
_method("Stratonovich, midpoint", "general", "stratonovich", "midpoint")
