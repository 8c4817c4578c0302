# SPDX-License-Identifier: Apache-2.0
"""`autocast(dtype)`: run the program as if under `torch.autocast`.

Contract: the casts are the same as those of torch, which keeps lists of operations: matmuls and convolutions run in
`dtype`, losses and norms in float32, and promoting operations in the widest dtype of their inputs. The casts are
operations of the program. Parameters and their gradients keep their dtype. An autocast context that the program itself
enters takes precedence.

The transform is active while the program is traced. Casts that are no-ops without autocast (e.g. `x.float()`) are
therefore recorded too.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch

from thunder.runtime.torch_private import autocast_devices
from thunder.transforms.base import Transform

__all__ = ["AutocastTransform", "autocast"]


class AutocastTransform(Transform):
    """Run matmuls and convolutions in a lower precision."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16):
        if dtype not in (torch.bfloat16, torch.float16):
            raise ValueError(f"autocast requires torch.bfloat16 or torch.float16, not {dtype!r}")
        self.dtype = dtype

    @contextlib.contextmanager
    def _contexts(self) -> Any:
        with contextlib.ExitStack() as stack:
            for device in autocast_devices():
                if device == "cuda" and not torch.cuda.is_available():
                    continue  # torch would warn
                stack.enter_context(torch.autocast(device, self.dtype))
            yield

    def tracing(self) -> AbstractContextManager[Any]:
        return self._contexts()

    def __repr__(self) -> str:
        return f"thunder.transforms.autocast({self.dtype})"


def autocast(dtype: torch.dtype = torch.bfloat16) -> AutocastTransform:
    """Return a transform that runs a program as under `torch.autocast` with `dtype`, on all devices."""
    return AutocastTransform(dtype)
