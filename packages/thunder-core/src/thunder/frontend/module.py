# SPDX-License-Identifier: Apache-2.0
"""`ThunderModule`, which `thunder.jit(module)` returns. It is the module in all but how its calls run.

A jitted module is an instance of a subclass of the model's class, and has the same `__dict__` as the model. Methods,
properties, special methods and hooks are therefore the model's own, with the jitted module as `self`. Only calls,
copies, pickles and assignments of the class are overridden. The subclass stores the model and its `JitFunction` in
slots, so that no attribute of the model can have the same name.

A trace runs the model. If a traced program uses the jitted module, reads and assignments of its attributes count as
those of the model (`capture/reads/attributes.py`).
"""

from __future__ import annotations

import copy
import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from thunder.core.state import state
from thunder.core.tracebacks import present
from thunder.frontend.jit import JitFunction
from thunder.runtime.torch_private import fx_is_tracing, hidden_from_dynamo, jit_tracing_state

__all__ = ["ThunderModule", "jitted_module"]

# The tables of hooks that run around `forward`.
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def jitted_module(model: torch.nn.Module, jitted: JitFunction[..., Any]) -> ThunderModule:
    """Return a module that runs `model` through `jitted`, and has the model's attributes."""
    module: Any = object.__new__(_class_for(type(model)))
    object.__setattr__(module, "__dict__", model.__dict__)
    object.__setattr__(module, "_thunder_model", model)
    object.__setattr__(module, "_thunder_jitted", jitted)
    jitted.module = weakref.ref(module)
    return module  # type: ignore[no-any-return]


def _rebuild(model: torch.nn.Module, options: Any, transforms: Any, extra_state: Any = None) -> ThunderModule:
    return jitted_module(model, JitFunction(model, options, transforms=transforms, extra_state=extra_state))


class ThunderModule(torch.nn.Module):
    """The base class of jitted modules. Their classes are also subclasses of the class of the model."""

    __slots__ = ()
    # In the subclasses. The reference to the class of the model is weak, so that thunder keeps no class alive.
    _model_class: weakref.ref[type]
    _thunder_model: torch.nn.Module
    _thunder_jitted: Any  # the `JitFunction`; mypy takes it for a method, because it has `__get__`

    def __new__(cls, /, *args: Any, **kwargs: Any) -> Any:
        """Return a new model. Methods of the model call `type(self)(…)` and, in class methods, `cls(…)`."""
        return _model_class_of(cls)(*args, **kwargs)

    def __init_subclass__(cls, **options: Any) -> None:
        """Skip the `__init_subclass__` of the class of the model: it may e.g. register user classes by name."""

    @hidden_from_dynamo
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._thunder_jitted(*args, **kwargs)
        except Exception as error:
            if state.frontend is None:
                present(error)
            raise

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class of the model, for user code that looks at names of classes or creates subclasses."""
        return type(self._thunder_model)

    @__class__.setter
    def __class__(self, cls: type) -> None:
        self._thunder_model.__class__ = cls  # type: ignore[assignment]
        _adopt_class(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_thunder_"):
            raise AttributeError(name)
        if _adopt_class(self):
            return getattr(self, name)
        try:
            return super().__getattr__(name)
        except AttributeError:  # attributes of the model have priority
            jitted = self._thunder_jitted
            if name == "_model":
                return self._thunder_model
            if name == "_jitted":
                return jitted
            if name in ("stats", "_stats"):
                return jitted._stats
            raise

    @property
    def _extra_state(self) -> dict[str, Any]:
        """State of executors that persists between calls, such as fp8 scales: dicts of tensors, not in `state_dict()`.

        Save the state with `torch.save`. To restore it, assign the loaded state to this attribute.
        """
        return self._thunder_jitted._extra_state

    @_extra_state.setter
    def _extra_state(self, state: dict[str, Any]) -> None:
        self._thunder_jitted._extra_state = state

    # -- copies -------------------------------------------------------------------------------------------------------
    def __reduce_ex__(self, protocol: Any) -> Any:
        return _rebuild, (self._thunder_model, *self._thunder_jitted.settings)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        model = copy.deepcopy(self._thunder_model, memo)
        if id(self) not in memo:  # otherwise an attribute of the model stores a method of the jitted module
            memo[id(self)] = _rebuild(model, *copy.deepcopy(self._thunder_jitted.settings, memo))
        return memo[id(self)]

    def __copy__(self) -> Any:
        return _rebuild(copy.copy(self._thunder_model), *self._thunder_jitted.settings)

    def _replicate_for_data_parallel(self) -> Any:
        return self._thunder_model._replicate_for_data_parallel()

    def __prepare_scriptable__(self) -> torch.nn.Module:
        """Return what `torch.jit.script` compiles."""
        return self._thunder_model

    def __repr__(self) -> str:
        return f"ThunderModule(\n{self._thunder_model!r}\n)"


# -- classes ----------------------------------------------------------------------------------------------------------
# The class for each model class. Both references are weak, because the class itself refers to the model class.
_classes: weakref.WeakKeyDictionary[type, weakref.ref[type]] = weakref.WeakKeyDictionary()


def _model_class_of(cls: type[ThunderModule]) -> type:
    found = cls._model_class()
    assert found is not None  # it is a base class
    return found


def _class_for(model_class: type) -> type:
    known = _classes.get(model_class)
    found = None if known is None else known()
    if found is None:
        found = _make_class(model_class)
        _classes[model_class] = weakref.ref(found)
    return found


def _make_class(model_class: Any) -> type:
    content = {
        "__slots__": ("_thunder_model", "_thunder_jitted", "_thunder_forward"), "__module__": model_class.__module__,
        "__doc__": model_class.__doc__, "_model_class": weakref.ref(model_class), "forward": _Forward(),
        **{name: _slot_of_model(slot) for name, slot in _slots(model_class)},
    }  # fmt: skip
    if issubclass(model_class, torch.fx.GraphModule):
        content["recompile"] = lambda self: self._thunder_model.recompile()  # which assigns to the class of `self`
    return type(f"ThunderModule[{model_class.__name__}]", (ThunderModule, model_class), content)


def _slots(cls: type) -> list[tuple[str, Any]]:
    found = [(name, x) for c in reversed(cls.__mro__) for name, x in vars(c).items()]
    return [(name, x) for name, x in found if isinstance(x, types.MemberDescriptorType)]


def _slot_of_model(slot: Any) -> property:
    """Return a property that accesses a slot of the model. Unlike the `__dict__`, slots cannot be shared."""
    return property(
        lambda self: slot.__get__(self._thunder_model),
        lambda self, value: slot.__set__(self._thunder_model, value),
        lambda self: slot.__delete__(self._thunder_model),
    )


def _adopt_class(module: ThunderModule) -> bool:
    """Follow the model if its class has changed, e.g. by a parametrization; return whether it has."""
    wanted = _class_for(type(module._thunder_model))
    changed = type(module) is not wanted
    if changed:
        object.__dict__["__class__"].__set__(module, wanted)
    return changed


# -- forward ----------------------------------------------------------------------------------------------------------
class _Forward:
    """The attribute `forward`: the model's own function of the class, and a compiled method of its instances."""

    def __init__(self) -> None:
        self._method: Any = None

    def __get__(self, module: ThunderModule | None, cls: Any) -> Any:
        forward = _model_class_of(cls).forward  # type: ignore[attr-defined]
        if module is None:
            return forward
        if self._method is None or self._method.__wrapped__ is not forward:
            self._method = functools.wraps(forward)(lambda self, /, *args, **kwargs: _run_forward(self, args, kwargs))
        return types.MethodType(self._method, module)


def _run_forward(module: ThunderModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the `forward` of the class of the model, without hooks."""
    model = module._thunder_model
    if state.frontend is not None or jit_tracing_state() is not None or fx_is_tracing():
        return type(model).forward(model, *args, **kwargs)
    return _program_of_forward(module)(*args, **kwargs)


def _program_of_forward(module: ThunderModule) -> Callable[..., Any]:
    """Return the program of the `forward` of the model's class.

    A call of the module runs more if there are hooks, or if a function replaces `forward`. This function may itself
    call the original `forward`, which it has read from the jitted module (`module.forward = autocast(module.forward)`).
    """
    model = module._thunder_model
    tables = model.__dict__
    if "forward" not in tables and not any(tables.get(name) for name in _HOOKS) and not _has_own_call(model):
        return module._thunder_jitted
    found: Any = getattr(module, "_thunder_forward", None)
    forward = type(model).forward
    if found is None or found[0] is not forward:
        jitted = module._thunder_jitted
        options, transforms, extra_state = jitted.settings
        fn = types.MethodType(forward, model)
        found = forward, JitFunction(fn, options, transforms=transforms, extra_state=extra_state)
        object.__setattr__(module, "_thunder_forward", found)
    return found[1]  # type: ignore[no-any-return]


def _has_own_call(model: torch.nn.Module) -> bool:
    return type(model).__call__ is not torch.nn.Module.__call__
