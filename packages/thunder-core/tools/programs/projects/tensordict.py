# SPDX-License-Identifier: Apache-2.0
"""TensorDict: the README's examples."""

from __future__ import annotations

from typing import Any

import torch

from programs.program import Project

PROJECT = Project("tensordict", rank=3067, requires=["tensordict==0.15.*"])


def _data() -> Any:
    from tensordict import TensorDict

    return (TensorDict({"obs": torch.randn(4, 3), "next": {"obs": torch.randn(4, 3)}}, batch_size=[4]),)


@PROJECT.program("operations", "README, tensor-like features")
def _operations() -> Any:
    return (lambda data: (data[:2] + 1).to_dict()), _data


@PROJECT.program("TensorDictModule", "README, TensorDictModule")
def _module() -> Any:
    from tensordict.nn import TensorDictModule, TensorDictSequential

    model = TensorDictSequential(
        TensorDictModule(torch.nn.Linear(3, 5), in_keys=["obs"], out_keys=["hidden"]),
        TensorDictModule(torch.nn.Linear(5, 2), in_keys=["hidden"], out_keys=["action"]),
    )
    return model, _data


@PROJECT.program("stack", "README, stacking")
def _stack() -> Any:
    from tensordict import TensorDict

    return (lambda a, b: TensorDict.stack([a, b]).to_dict()), lambda: (*_data(), *_data())
