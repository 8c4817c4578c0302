# SPDX-License-Identifier: Apache-2.0
"""`ThunderModule`, which `thunder.jit(module)` returns. It behaves like the module but runs compiled programs."""

from __future__ import annotations

import functools
import types
import weakref
from typing import Any

import torch

from thunder.core.state import state
from thunder.core.tracebacks import present
from thunder.frontend.jit import JitFunction
from thunder.frontend.stats import CompileStats
from thunder.torch.private import hidden_from_dynamo

__all__ = ["ThunderModule"]


def _rebuild(model: torch.nn.Module, options: Any, transforms: Any, extra_state: Any = None) -> ThunderModule:
    return ThunderModule(model, JitFunction(model, options, transforms=transforms, extra_state=extra_state))


class _OfModel(type):
    """The metaclass of the classes of jitted modules. It looks up class attributes in the model's class."""

    _model_class: weakref.ref[type]

    def __getattr__(cls, name: str) -> Any:
        model_class = cls._model_class()
        if model_class is None or name.startswith("__"):
            raise AttributeError(name)
        return getattr(model_class, name)


# The class for each model class. Both references are weak, because the class itself refers to the model class.
_classes: weakref.WeakKeyDictionary[type, weakref.ref[type]] = weakref.WeakKeyDictionary()


def _forward(model_class: Any) -> Any:
    """Return a `forward` with the signature of the model's `forward`, because user code may inspect it."""

    @functools.wraps(model_class.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["_jitted"](*args, **kwargs)

    return forward


def _class_for(model_class: type) -> type:
    known = _classes.get(model_class)
    found = None if known is None else known()
    if found is None:
        content = {"__module__": __name__, "_model_class": weakref.ref(model_class), "forward": _forward(model_class)}
        found = _OfModel(f"ThunderModule[{model_class.__name__}]", (ThunderModule,), content)
        _classes[model_class] = weakref.ref(found)
    return found


class ThunderModule(torch.nn.Module):
    """Runs `model` through compiled programs. It shares parameters, buffers, submodules and attributes with the model.

    Methods of the model receive this module as `self`, so that e.g. `generate` runs compiled programs too. `super()` in
    these methods requires that `isinstance` accepts this module as an instance of the model's class.
    """

    def __new__(cls, model: torch.nn.Module, jitted: JitFunction) -> ThunderModule:
        return super().__new__(_class_for(type(model)))  # type: ignore[no-any-return]

    def __init__(self, model: torch.nn.Module, jitted: JitFunction):
        super().__init__()
        d = self.__dict__
        d["_model"] = model
        d["_jitted"] = jitted
        d["_stats"] = jitted._stats
        # Methods such as `named_parameters` traverse the model, because its tables of tensors and hooks are shared.
        tables = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
        for table, value in model.__dict__.items():
            if table in tables or table.endswith("_hooks"):
                d[table] = value

    def __reduce_ex__(self, protocol: Any) -> Any:
        d = self.__dict__
        jitted: JitFunction = d["_jitted"]
        return (_rebuild, (d["_model"], jitted._options, jitted._transforms, jitted._extra_state))

    @hidden_from_dynamo
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.__dict__["_jitted"](*args, **kwargs)
        except Exception as error:
            if state.frontend is None:
                present(error)
            raise

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model."""
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
        """Set the model's mode."""
        self.__dict__["_model"].train(mode)
        return self

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # isinstance() and super() in methods use it
        return type(self.__dict__["_model"]) if "_model" in self.__dict__ else ThunderModule

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.__dict__["_model"], name)
        if isinstance(found, types.MethodType) and found.__self__ is self.__dict__["_model"]:
            return types.MethodType(found.__func__, self)  # so that a method that calls `self` runs compiled programs
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        model = self.__dict__.get("_model")
        if model is None or name in ("training", "_extra_state"):
            super().__setattr__(name, value)
        else:
            setattr(model, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__dict__["_model"], name)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's state, under the model's names."""
        return self.__dict__["_model"].state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load a state into the model."""
        return self.__dict__["_model"].load_state_dict(*args, **kwargs)

    @property
    def _extra_state(self) -> dict[str, Any]:
        """State of executors that persists between calls, such as fp8 scales: dicts of tensors, not in `state_dict()`.

        Save the state with `torch.save`. To restore it, assign the loaded state to this attribute.
        """
        return self.__dict__["_jitted"]._extra_state  # type: ignore[no-any-return]

    @_extra_state.setter
    def _extra_state(self, state: dict[str, Any]) -> None:
        self.__dict__["_jitted"]._extra_state = state

    def _apply(self, *args: Any, **kwargs: Any) -> ThunderModule:
        self.__dict__["_model"]._apply(*args, **kwargs)
        return self

    @property
    def stats(self) -> CompileStats:
        """The statistics of the module's calls."""
        return self.__dict__["_stats"]  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"ThunderModule(\n{self.__dict__['_model']!r}\n)"

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self.__dict__["_model"])})
