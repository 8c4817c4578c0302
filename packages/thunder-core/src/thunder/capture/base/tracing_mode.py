# SPDX-License-Identifier: Apache-2.0
"""The torch function mode through which torch functions that traced user code calls reach the tracer."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from thunder.core.errors import TracingError
from thunder.core.state import state

__all__ = ["TracingMode", "dispatch"]


class TracingMode(TorchFunctionMode):
    """Catch every torch function that user code calls while it is traced.

    torch takes the mode off while it handles a call: Python that is to be traced within one enters it again.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if state.frontend is None:
            # A symbol that user code called directly is being evaluated: what it asks torch (a device, a dtype) is no
            # operation of the program.
            return func(*args, **(kwargs or {}))
        if types:
            for owner in types:
                if owner.__torch_function__ is not _BY_DEFAULT and not issubclass(owner, torch.Tensor):
                    # A class of the user's, no tensor's, which says itself what torch functions do with its instances.
                    with self:
                        result = owner.__torch_function__(func, types, args, kwargs or {})
                    if result is not NotImplemented:
                        return result
        return dispatch(func, args, kwargs or {})


_BY_DEFAULT = torch.Tensor.__torch_function__


def dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a torch function for user code, by whoever traces the program that is running."""
    if state.frontend is None:
        raise TracingError(
            "a tensor from inside a traced function was used outside it: it was stored somewhere while the function "
            "was traced and has no data. Return it from the function instead"
        )
    return state.frontend.dispatch(func, args, kwargs)
