# SPDX-License-Identifier: Apache-2.0
"""Handlers of a tensor's gradient state: `requires_grad`, `grad_fn` and `is_leaf`."""

from __future__ import annotations

from typing import Any

import torch

from thunder.capture.base.fallback import fall_back
from thunder.capture.base.user_lines import asked_by_torch
from thunder.capture.dispatch.registry import handles, handles_property
from thunder.capture.tensors.tracer import Tracer, needs_grad
from thunder.torch import private

__all__: list[str] = []


@handles_property("requires_grad", assigned=True)
@handles(torch.Tensor.requires_grad_)
def _requires_grad_(tracer: Tracer, x: Any, requires_grad: bool = True) -> Any:
    tracer.leaves.switch(tracer, tracer.handle_of(x), requires_grad)
    return x


@handles(torch.Tensor.retain_grad)
def _retain_grad(tracer: Tracer, x: Any) -> None:
    if not needs_grad(x):
        raise RuntimeError("can't retain_grad on Tensor that has requires_grad=False")
    if not _is_leaf(tracer, x):
        fall_back("the program calls retain_grad() on a tensor that it computes")


# -- properties -------------------------------------------------------------------------------------------------------
@handles_property("grad_fn")
def _get_grad_fn(tracer: Tracer, x: Any) -> Any:
    handle = tracer.handle_of(x)
    if _is_leaf(tracer, handle):
        return None
    _leave_hooks_to_python()
    if asked_by_torch():
        return None
    fall_back("the program reads the grad_fn of a tensor that it computes")


@handles_property("is_leaf")
def _is_leaf(tracer: Tracer, x: Any) -> bool:
    handle = tracer.handle_of(x)
    if not handle._needs_grad or handle in tracer.leaves:
        return True
    lifted = tracer.input_with(handle)
    return lifted is not None and tracer.is_leaf(lifted.tensor)


def _leave_hooks_to_python() -> None:
    """Fall back if a module with a legacy backward hook reads `grad_fn`, because the hook receives autograd's node."""
    module = private.module_with_legacy_hook()
    if module is not None:
        fall_back(f"the program calls a {module} with a legacy backward hook (register_backward_hook)")
