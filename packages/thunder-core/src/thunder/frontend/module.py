# SPDX-License-Identifier: Apache-2.0
"""What `thunder.jit(module)` returns: a module that is the original in everything but how it runs."""

from __future__ import annotations

from typing import Any

import torch

from thunder.frontend.jit import CompileStats, JitFunction

__all__ = ["ThunderModule"]


def _rebuild(model: torch.nn.Module, options: Any, transforms: Any) -> ThunderModule:
    return ThunderModule(model, JitFunction(model, options, transforms=transforms))


class ThunderModule(torch.nn.Module):
    """Runs `model` through compiled programs. Parameters, buffers, submodules and attributes are the model's own."""

    def __init__(self, model: torch.nn.Module, jitted: JitFunction):
        super().__init__()
        d = self.__dict__
        d["_model"] = model
        d["_jitted"] = jitted
        d["_stats"] = jitted._stats
        # The tables of tensors, children and hooks are the model's: whatever walks this module walks the model.
        tables = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
        for table, value in model.__dict__.items():
            if table in tables or table.endswith("_hooks"):
                d[table] = value

    def __reduce_ex__(self, protocol: Any) -> Any:
        d = self.__dict__
        return (_rebuild, (d["_model"], d["_jitted"]._options, d["_jitted"]._transforms))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["_jitted"](*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model."""
        return self.__dict__["_jitted"](*args, **kwargs)

    @property
    def training(self) -> bool:  # type: ignore[override]
        """The model's mode."""
        return self.__dict__["_model"].training  # type: ignore[no-any-return]

    @training.setter
    def training(self, mode: bool) -> None:
        model = self.__dict__.get("_model")
        if model is not None:
            model.training = mode

    def train(self, mode: bool = True) -> ThunderModule:
        """Sets the model's mode."""
        self.__dict__["_model"].train(mode)
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_model"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        model = self.__dict__.get("_model")
        if model is None or name == "training":
            super().__setattr__(name, value)
        else:
            setattr(model, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__dict__["_model"], name)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The model's state, under the model's names."""
        return self.__dict__["_model"].state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Loads into the model."""
        return self.__dict__["_model"].load_state_dict(*args, **kwargs)

    def _apply(self, *args: Any, **kwargs: Any) -> ThunderModule:
        self.__dict__["_model"]._apply(*args, **kwargs)
        return self

    @property
    def stats(self) -> CompileStats:
        """What it has done so far."""
        return self.__dict__["_stats"]  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"ThunderModule(\n{self.__dict__['_model']!r}\n)"

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self.__dict__["_model"])})
