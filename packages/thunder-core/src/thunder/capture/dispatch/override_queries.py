# SPDX-License-Identifier: Apache-2.0
"""Answers to user code that asks torch whether a tensor or a mode overrides torch functions.

Handles and thunder's own mode do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.overrides
from torch.overrides import _get_current_function_mode_stack

from thunder.capture.base.tracing_mode import TracingMode
from thunder.capture.base.user_lines import asked_by_torch
from thunder.capture.numbers.overrides import ANSWERS
from thunder.capture.tensors.handle import is_handle
from thunder.core.state import state
from thunder.torch.private import DISABLED_FUNCTION

__all__ = ["override_queries"]


def _overrides(x: Any) -> bool:
    """Check whether torch calls the value's own `__torch_function__`."""
    if is_handle(x) or type(x) is torch.Tensor:
        return False
    return getattr(type(x), "__torch_function__", DISABLED_FUNCTION) is not DISABLED_FUNCTION


def _replacement(name: str) -> Callable[..., bool]:
    original = getattr(torch.overrides, name)

    def call(*args: Any) -> bool:
        if state.frontend is None or asked_by_torch():  # torch's own functions dispatch to handles
            return bool(original(*args))
        if any(not isinstance(mode, TracingMode) for mode in _get_current_function_mode_stack()):
            return True  # e.g. of a default device
        return any(map(_overrides, args[0] if name == "has_torch_function" else args))

    return call


_REPLACEMENTS = {
    name: _replacement(name)
    for name in ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
}
ANSWERS.update((id(getattr(torch.overrides, name)), replacement) for name, replacement in _REPLACEMENTS.items())


def override_queries() -> list[tuple[Any, str, Any]]:
    """Return the replacements to set in `torch.overrides`."""
    return [(torch.overrides, name, replacement) for name, replacement in _REPLACEMENTS.items()]
