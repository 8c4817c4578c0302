# SPDX-License-Identifier: Apache-2.0
"""Captum: the README's model with the attribution methods of its documentation, as functions that are compiled."""

from __future__ import annotations

from typing import Any

import torch

from programs.program import Project

PROJECT = Project("captum", rank=6539, requires=["captum==0.9.*"])


def _toy() -> Any:
    class ToyModel(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin1, self.relu, self.lin2 = torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)

        def forward(self, x: Any) -> Any:
            return self.lin2(self.relu(self.lin1(x)))

    return ToyModel().eval()


def _method(name: str, **options: Any) -> None:
    def build() -> Any:
        import captum.attr

        model = _toy()
        method = getattr(captum.attr, name)(model)
        return (lambda x: method.attribute(x, target=0, **options)), lambda: (torch.rand(2, 3),), model

    PROJECT.add(name, f"documentation, {name}", build)


_method("IntegratedGradients", n_steps=8)
_method("Saliency")
_method("InputXGradient")
_method("FeatureAblation")
_method("Occlusion", sliding_window_shapes=(1,))
