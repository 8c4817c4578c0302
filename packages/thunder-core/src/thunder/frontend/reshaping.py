# SPDX-License-Identifier: Apache-2.0
"""In-place operations that change what a tensor looks like (`squeeze_`, `t_`, `as_strided_`) and not what is in it.

The handle becomes the view that the form without the underscore gives: it stays the same Python object and gets the
view's metadata and place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thunder.frontend.fallback import leave_to_python
from thunder.frontend.handle import Handle
from thunder.frontend.tracer import Tracer
from thunder.torch.private import swap_contents

__all__ = ["FORMS", "reshape_in_place"]

#: Methods that give a view of the same memory, and change the tensor itself with an underscore.
FORMS = ("transpose_", "t_", "squeeze_", "unsqueeze_", "as_strided_", "swapaxes_", "swapdims_")


def reshape_in_place(name: str) -> Callable[..., Any]:
    """What `tensor.name(…)` does while a program is traced."""
    view = getattr(torch.Tensor, name[:-1])

    def handler(tracer: Tracer, target: Any, *args: Any, **kwargs: Any) -> Any:
        from thunder.frontend.dispatch import call_torch_function

        handle = tracer.handle_of(target)
        if any(lifted.handle is handle for lifted in tracer.inputs):
            leave_to_python(f"{name} changes the shape of a tensor that comes from outside of the program")
        before = _twin(handle)
        after = call_torch_function(view, (before, *args), kwargs)
        if after is not before:
            _become(handle, before, after)
        return target

    return handler


def _twin(handle: Handle) -> Handle:
    """Another handle of the same value and memory."""
    out = Handle.make(
        handle._tracer,
        handle._value,
        requires_grad=handle._needs_grad,
        storage=handle._storage,
        views=handle._views,
    )
    out._parent, out._version_seen = handle._parent, handle._version_seen
    return out


def _become(handle: Handle, before: Handle, after: Handle) -> None:
    """Makes `handle` what `after` is; what was seen through it is seen through `before` from now on."""
    for other in list(handle._tracer.handles):
        if other._parent is handle:
            other._parent = before
    swap_contents(handle, after)
    for name in ("_value", "_storage", "_views", "_parent", "_version_seen", "_needs_grad"):
        setattr(handle, name, getattr(after, name))
