# SPDX-License-Identifier: Apache-2.0
"""`no_autocast`, the decorator of every compiled program, because a trace already contains the casts of autocast."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from thunder.runtime.torch_private import any_autocast, autocast_devices

__all__ = ["no_autocast"]

F = TypeVar("F", bound=Callable[..., Any])


def no_autocast(fn: F) -> F:
    """Decorate `fn` so that it runs with autocast disabled."""

    @functools.wraps(fn)
    def without(*args: Any, **kwargs: Any) -> Any:
        if not any_autocast():
            return fn(*args, **kwargs)
        # Set the flags directly, one per device type: torch's context managers would take microseconds.
        enabled = [d for d in autocast_devices() if torch.is_autocast_enabled(d)]
        for device in enabled:
            torch.set_autocast_enabled(device, False)
        try:
            return fn(*args, **kwargs)
        finally:
            for device in enabled:
                torch.set_autocast_enabled(device, True)

    return without  # type: ignore[return-value]
