# SPDX-License-Identifier: Apache-2.0
"""Launch kernels with minimal overhead on the host, using undocumented functions of torch.

If a version of torch lacks an undocumented function, the documented function is used. The first three functions are for
tensors on a GPU.

- `current_cuda_device()`: the index of the current device; `no_device()` replaces it if there is no GPU;
- `current_stream(device)`: the address of a device's current stream;
- `new_tensor(shape, strides, dtype)`: uninitialised memory on the current device;
- `load_cubin(path, name, shared, device)` and `launch_cubin(…)`: kernels from files of CUDA's binary format, as
  `thunder.runtime.torch_private` describes; None if torch lacks this launcher;
- `increment_versions(tensors)`: tell autograd that a kernel has written to tensors;
- `on_its_device`: decorate a function whose library launches kernels on the current device.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from thunder.runtime.torch_private import (
    current_cuda_device,
    current_stream,
    increment_versions,
    launch_cubin,
    load_cubin,
    new_tensor,
    no_device,
)

__all__ = [
    "current_cuda_device",
    "current_stream",
    "increment_versions",
    "launch_cubin",
    "load_cubin",
    "new_tensor",
    "no_device",
    "on_its_device",
]

F = TypeVar("F", bound=Callable[..., Any])


def on_its_device(fn: F) -> F:
    """Decorate a function so that it runs on the GPU of its first argument, a tensor or a list of tensors."""

    @functools.wraps(fn)
    def run(x: Any, *args: Any, **kwargs: Any) -> Any:
        first = x[0] if isinstance(x, list) else x
        if not first.is_cuda or first.get_device() == current_cuda_device():
            return fn(x, *args, **kwargs)
        with torch.cuda.device(first.get_device()):
            return fn(x, *args, **kwargs)

    return run  # type: ignore[return-value]
