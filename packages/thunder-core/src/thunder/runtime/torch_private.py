# SPDX-License-Identifier: Apache-2.0
"""What compiled programs use of torch that is private to torch, with a fallback for versions that lack it.

What tracing and compiling use stands in `torch/private.py`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._device
from torch.autograd import forward_ad

__all__ = [
    "any_autocast",
    "backward_pass",
    "clear_saved_tensors",
    "current_cuda_device",
    "current_device",
    "current_stream",
    "deterministic",
    "differentiated_otherwise",
    "direct_apply",
    "direct_backward",
    "executes",
    "function_modes",
    "functorch_active",
    "matmul_precision",
    "new_tensor",
    "no_device",
    "tensor_guards",
]


def current_device() -> torch.device | None:
    """Return the default device, None where it is the usual one."""
    try:
        return torch.utils._device.CURRENT_DEVICE
    except AttributeError:
        return torch.get_default_device()


def _any_autocast() -> bool:
    return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


def _never() -> bool:
    return False


# Whether autocast is on for any device: torch asks them all at once.
any_autocast: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", _any_autocast)


# What torch tells through functions in Python, which take several times as long.
deterministic: Callable[[], bool] = getattr(
    torch._C, "_get_deterministic_algorithms", torch.are_deterministic_algorithms_enabled
)
matmul_precision: Callable[[], str] = getattr(
    torch._C, "_get_float32_matmul_precision", torch.get_float32_matmul_precision
)


def _function_modes() -> int:
    return len(torch.overrides._get_current_function_mode_stack())


# How many torch function modes are active; the default device, once it has been set, is one.
function_modes: Callable[[], int] = getattr(torch._C, "_len_torch_function_stack", _function_modes)

# Whether one of torch.func's transforms runs.
functorch_active: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", _never)


def differentiated_otherwise() -> bool:
    """Check whether one of torch.func's transforms runs, or torch's forward mode, which look into operations."""
    return functorch_active() or forward_ad._current_level >= 0


def direct_apply(function: type[torch.autograd.Function], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Compute `function.apply`, without the Python that is there for torch.func's transforms: it costs more than all
    the rest.

    Within these transforms, and in torch's forward mode, it is `otherwise`.
    """
    direct = getattr(super(torch.autograd.Function, function), "apply", None)
    if not isinstance(direct, types.BuiltinFunctionType):
        direct = function.apply

    def apply(*inputs: Any) -> Any:
        return otherwise(*inputs) if functorch_active() or forward_ad._current_level >= 0 else direct(*inputs)

    return apply


def direct_backward(function: Any, backward: Callable[..., Any]) -> None:
    """Have nodes of `function` call `backward` itself, without the Python that looks for the user's first."""
    node = getattr(function, "_backward_cls", None)
    if node is not None and hasattr(node, "apply"):
        node.apply = backward


def _keep(ctx: Any) -> None:
    pass


# Frees what a node saved, while its backward runs, unless it is to be run again; else it is freed afterwards.
clear_saved_tensors: Callable[[Any], None] = getattr(torch._C._FunctionBase, "maybe_clear_saved_tensors", _keep)


def _always(node: Any) -> bool:
    return True


# Whether the backward pass that runs reaches a node; for a leaf that `torch.autograd.grad` was asked for: RuntimeError.
executes: Callable[[Any], bool] = getattr(torch._C, "_will_engine_execute_node", _always)


# Which backward pass runs, as a number.
backward_pass: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)


def _public_stream(device: int) -> int:
    stream: int = torch.cuda.current_stream(device).cuda_stream
    return stream


def _public_allocation(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device="cuda")


def no_device() -> int:
    """Return the index of no device."""
    return -1


# What torch has for generated code, which takes a third of the time. It is for use where a tensor of a GPU exists
# already: the stream in which work of a device is put, the device that launches go to, and memory there.
current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _public_stream)
current_cuda_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", no_device)
new_tensor: Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor] = getattr(
    getattr(getattr(torch._C, "_dynamo", None), "guards", None), "_empty_strided_cuda", _public_allocation
)


_TWO = torch.empty(1, device="cpu"), torch.empty(1, device="cpu")


def tensor_guards(
    tensors: Sequence[torch.Tensor], dims: Sequence[frozenset[int]] = ()
) -> tuple[Callable[..., bool] | None, bool]:
    """Return torch's own comparison of the metadata of several tensors with what it is now, in one call of C++.

    Of the dimensions in `dims` the sizes may differ, and in such tensors the strides. Also says whether it refuses a
    tensor that is given twice. `None` where torch has no comparison that takes these.
    """
    try:
        from torch._C._dynamo.guards import TensorGuards

        # Both keywords, with a list a tensor: without them its check() reads past the end.
        free = dims or [frozenset()] * len(tensors)
        sizes = [[None if i in d else n for i, n in enumerate(t.shape)] for t, d in zip(tensors, free)]
        strides = [[None] * t.ndim if d else list(t.stride()) for t, d in zip(tensors, free)]
        check = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
        if not check(*tensors):
            return None, False
        one, other = _TWO
        twice = TensorGuards(one, other, dynamic_dims_sizes=[[1], [1]], dynamic_dims_strides=[[1], [1]])
        return check, not twice.check(one, one)
    except Exception:  # the slow way is as right
        return None, False
