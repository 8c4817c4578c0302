# SPDX-License-Identifier: Apache-2.0
"""Launching kernels with minimal overhead on the host, by undocumented functions of torch.

Each falls back to the documented function in versions of torch that lack it. They are for tensors on a GPU.

- `current_cuda_device()`: the index of the current device; `no_device()` replaces it where there is no GPU;
- `current_stream(device)`: the address of a device's current stream;
- `new_tensor(shape, strides, dtype)`: uninitialised memory on the current device.
"""

from thunder.runtime.torch_private import current_cuda_device, current_stream, new_tensor, no_device

__all__ = ["current_cuda_device", "current_stream", "new_tensor", "no_device"]
