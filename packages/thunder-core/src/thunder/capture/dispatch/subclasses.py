# SPDX-License-Identifier: Apache-2.0
"""Results of operations on tensors of plain subclasses of `torch.Tensor`: they have the subclass, too."""

from __future__ import annotations

from typing import Any

import torch

from thunder.capture.base.fallback import fall_back
from thunder.capture.base.subclasses import common_subclass, is_plain_subclass, keeps_class, why_not_plain
from thunder.capture.tensors.aliasing import twin
from thunder.capture.tensors.tracer import Tracer, tensors_in

__all__ = ["as_subclass", "with_subclass"]


def with_subclass(tracer: Tracer, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
    """Return the result of a call of torch as torch's default `__torch_function__` returns it."""
    given = tensors_in(args, kwargs)
    classes = list(dict.fromkeys(x.__class__ for x in given if is_plain_subclass(x.__class__)))
    if not classes or keeps_class(func):
        return result
    cls = common_subclass(classes)
    if cls is None:
        names = " and ".join(c.__qualname__ for c in classes)
        fall_back(f"the program combines tensors of the classes {names}, for which torch raises an error")
    inputs = {id(x.handle) for x in tracer.inputs}
    return _converted(tracer, result, cls, inputs | {id(x) for x in given})


def _converted(tracer: Tracer, x: Any, cls: type, existing: set[int]) -> Any:
    """Convert the tensors in a result. Tensors that already existed keep their class, and the result is an alias."""
    if isinstance(x, torch.Tensor) and not isinstance(x, cls):
        handle = tracer.handle_of(x)
        if id(x) in existing or handle is not x:
            handle = twin(handle)
        handle._class = cls
        return handle
    if isinstance(x, (tuple, list)):
        items = [_converted(tracer, i, cls, existing) for i in x]
        return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)
    return x


def as_subclass(tracer: Tracer, x: torch.Tensor, cls: type) -> torch.Tensor:
    """Compute `x.as_subclass(cls)`, an alias of a tensor with another class."""
    reason = why_not_plain(cls)
    if reason is not None or issubclass(cls, torch.nn.Parameter):
        fall_back(f"the program creates a tensor of class {reason or cls.__qualname__}")
    tracer.class_used(cls)
    out = twin(tracer.handle_of(x))
    out._class = cls
    return out
