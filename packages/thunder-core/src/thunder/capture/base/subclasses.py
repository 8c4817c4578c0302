# SPDX-License-Identifier: Apache-2.0
"""Subclasses of `torch.Tensor` that a trace supports: those that only add attributes and methods.

torch converts results of operations on such tensors to the subclass (`torch.Tensor.__torch_function__`). A class that
overrides anything else decides itself what operations do, so a program with such tensors runs eagerly.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import get_default_nowrap_functions

from thunder.capture.base.fallback import fall_back
from thunder.core.layouts import Layout
from thunder.runtime.kernels.dtensors import layout_of_spec, mesh_of
from thunder.torch.private import DISABLED_DISPATCH, DISABLED_FUNCTION

__all__ = ["common_subclass", "is_dtensor_class", "is_plain_subclass", "keeps_class", "layout_of", "why_not_plain"]

_WITHOUT_OVERRIDES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_BY_DEFAULT = torch.Tensor.__torch_function__.__func__  # type: ignore[attr-defined]
# Attributes that every class has, and constructors, which conversions do not call.
_OF_CLASSES = frozenset({
    "__annotations__", "__annotate_func__", "__annotations_cache__", "__dict__", "__doc__", "__firstlineno__",
    "__init__", "__init_subclass__", "__module__", "__new__", "__orig_bases__", "__parameters__", "__qualname__",
    "__static_attributes__", "__weakref__",
})  # fmt: skip


def why_not_plain(cls: type) -> str | None:
    """Return why a trace does not support tensors of a class. None for `torch.Tensor` and plain subclasses."""
    if cls in _WITHOUT_OVERRIDES:
        return None
    name = cls.__qualname__
    if cls.__torch_dispatch__ is not DISABLED_DISPATCH:  # type: ignore[attr-defined]
        return f"{name}, which defines its own __torch_dispatch__"
    if issubclass(cls, torch.nn.Parameter):
        return None
    function = cls.__torch_function__  # type: ignore[attr-defined]
    if function is DISABLED_FUNCTION:
        return None
    if getattr(function, "__func__", None) is not _BY_DEFAULT:
        return f"{name}, which defines its own __torch_function__"
    for owner in cls.__mro__[: cls.__mro__.index(torch.Tensor)]:
        replaced = [x for x in vars(owner) if x not in _OF_CLASSES and hasattr(torch.Tensor, x)]
        if replaced:
            return f"{name}, which overrides torch.Tensor.{replaced[0]}"
        if "__getattr__" in vars(owner):
            return f"{name}, which defines __getattr__"
    return None


def is_dtensor_class(cls: type) -> bool:
    """Check for torch's class of distributed tensors, whose operations a trace runs on local tensors."""
    return cls.__name__ == "DTensor" and cls is getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)


def is_plain_subclass(cls: type) -> bool:
    """Check whether torch converts the results of operations on tensors of a class to this class."""
    return (
        cls is not torch.Tensor
        and issubclass(cls, torch.Tensor)
        and not issubclass(cls, torch.nn.Parameter)
        and cls.__torch_function__ is not DISABLED_FUNCTION  # type: ignore[attr-defined]
        and why_not_plain(cls) is None
    )


def common_subclass(classes: Sequence[type]) -> type | None:
    """Return the class of the results of an operation on tensors of these plain subclasses.

    None if there is no such class. torch then raises an error.
    """
    return next((cls for cls in classes if all(issubclass(cls, other) for other in classes)), None)


@functools.lru_cache(maxsize=1)
def _not_converted() -> frozenset[Any]:
    return frozenset(get_default_nowrap_functions())


def keeps_class(func: Any) -> bool:
    """Check whether torch does not convert the result of a function."""
    return func in _not_converted()


def layout_of(tensor: torch.Tensor) -> Layout | None:
    """Return the layout of a DTensor; None for other tensors."""
    if not is_dtensor_class(type(tensor)):
        return None
    spec, local = tensor._spec, tensor._local_tensor  # type: ignore[attr-defined]
    if type(local) is not torch.Tensor:
        fall_back(f"the program gets a DTensor whose local tensor is of class {type(local).__qualname__}")
    layout = layout_of_spec(spec)
    if layout is None:
        destroyed = " on a mesh whose process groups have been destroyed" if mesh_of(spec.mesh) is None else ""
        fall_back(f"the program gets a DTensor with the placements {spec.placements}{destroyed}")
    if layout.is_even and layout.local_shape == tuple(local.shape) and not layout.has_blocks:
        return layout
    return Layout(layout.placements, layout.shape, layout.stride, layout.mesh, part=tuple(local.shape))
