# SPDX-License-Identifier: Apache-2.0
"""The torch function mode that sends each torch function called by user code to the tracer."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from thunder.core.errors import TracingError
from thunder.core.state import state

__all__ = ["TracingMode", "dispatch"]


class TracingMode(TorchFunctionMode):
    """Intercept every torch function that user code calls while it is traced.

    torch disables the mode while the mode handles a call. A handler that traces Python code enters the mode again.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if state.frontend is None:
            # thunder is evaluating a symbol that user code called directly. Its own torch calls (e.g. for a device or
            # a dtype) are not operations of the program.
            return func(*args, **(kwargs or {}))
        if types:
            for owner in types:
                if owner.__torch_function__ is not _BY_DEFAULT and not issubclass(owner, torch.Tensor):
                    # A user class that is not a tensor, but defines what torch functions do with its instances.
                    with self:
                        result = owner.__torch_function__(func, types, args, kwargs or {})
                    if result is not NotImplemented:
                        return result
        return dispatch(func, args, kwargs or {})


_BY_DEFAULT = torch.Tensor.__torch_function__


def dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a torch function for user code, through the tracer of the running program."""
    if state.frontend is None:
        raise TracingError(
            "a traced tensor was used outside its traced function: the function stored the tensor somewhere, and the "
            "tensor has no data. Return it from the function instead"
        )
    return state.frontend.dispatch(func, args, kwargs)
