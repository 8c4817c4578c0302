# SPDX-License-Identifier: Apache-2.0
"""What torch is set to around a call: modes of the user's, and states that programs read through torch's functions.

States of which every program depends stand in `guards.py`. Those here are guarded where a program reads them: torch's
functions that tell them are known by name, and the choice of attention kernels is read by every attention.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack

from thunder.capture.base.substitutions import Substitutions
from thunder.runtime.torch_private import function_modes, functorch_active
from thunder.torch.private import (
    DeviceContext,
    DisableTorchFunction,
    attention_order,
    fused_sdp_choice,
    kernels_enabled,
    mode_stacks,
    restore_mode_stacks,
    set_attention_order,
    set_torch_function_state,
    torch_function_state,
    without_modes,
)

__all__ = [
    "attention_kernels",
    "is_state",
    "keep_grad_mode",
    "keep_modes",
    "mode_around",
    "settled_attention_kernels",
    "with_attention_kernels",
]

# Functions without arguments that tell how torch is set up.
_TELLING: dict[str, tuple[str, ...]] = {
    "torch": (
        "get_num_threads", "get_num_interop_threads", "is_deterministic_algorithms_warn_only_enabled",
        "get_deterministic_debug_mode", "is_anomaly_enabled", "is_warn_always_enabled", "is_autocast_cache_enabled",
    ),
    "torch.cuda": (
        "is_available", "device_count", "current_device", "is_initialized", "is_bf16_supported", "get_device_name",
        "get_device_capability",
    ),
    "torch.distributed": ("is_available", "is_initialized", "get_rank", "get_world_size", "get_backend"),
    "torch.backends.cuda": (
        "flash_sdp_enabled", "mem_efficient_sdp_enabled", "math_sdp_enabled", "cudnn_sdp_enabled",
        "fp16_bf16_reduction_math_sdp_allowed", "is_flash_attention_available", "preferred_linalg_library",
        "preferred_blas_library", "is_built",
    ),
    "torch.backends.mps": ("is_available", "is_built"),
    "torch.backends.mkldnn": ("is_available",),
    "torch.backends.cudnn": ("is_available", "version"),
    "torch.mps": ("is_available", "device_count"),
    "torch.xpu": ("is_available", "device_count", "current_device"),
    "torch.accelerator": ("is_available", "device_count", "current_device_index", "current_accelerator"),
}  # fmt: skip


def keep_modes(substitutions: Substitutions) -> None:
    """Have torch's modes be those that are active now, once the board is restored."""
    substitutions.callback(restore_mode_stacks, mode_stacks())
    substitutions.callback(set_torch_function_state, torch_function_state())


def keep_grad_mode(substitutions: Substitutions) -> None:
    """Have grad mode and autocast put back where the program does not run to its end; else it may change them."""
    autocast = {device: torch.is_autocast_enabled(device) for device in ("cpu", "cuda")}
    substitutions.callback(_restore_grad_mode, substitutions, torch.is_grad_enabled(), autocast)


def _restore_grad_mode(substitutions: Substitutions, grad: bool, autocast: dict[str, bool]) -> None:
    if substitutions.finished:
        return
    torch.set_grad_enabled(grad)
    for device, enabled in autocast.items():
        if torch.is_autocast_enabled(device) != enabled:
            torch.set_autocast_enabled(device, enabled)


def is_state(module: str, name: str) -> bool:
    """Check whether a function of torch tells how torch is set up."""
    return name in _TELLING.get(module, ())


def mode_around() -> tuple[str, str] | None:
    """Return what is active that is to see the calls that a program makes, as it writes them, and what to do; None
    mostly.

    No compiled program makes those calls.
    """
    if functorch_active():
        return (
            "a transform of torch.func is running",
            "Take thunder's transform of that name (thunder.grad, thunder.vmap)",
        )
    if not function_modes():
        return None
    for mode in _get_current_function_mode_stack():
        if not isinstance(mode, DeviceContext):
            return f"the torch function mode {type(mode).__qualname__} is active", "Leave the mode around the call"
    return None


def attention_kernels() -> tuple[Any, ...]:
    """Return which kernels `torch.nn.attention.sdpa_kernel` has left to attention, and in which order they are
    asked.
    """
    flash, efficient, math, cudnn = kernels_enabled
    found = (flash(), efficient(), math(), cudnn(), *attention_order())
    return _KERNELS.setdefault(found, found)  # the same object: guards need not look into it


_KERNELS: dict[tuple[Any, ...], tuple[Any, ...]] = {}
_settled: list[bool] = []


def settled_attention_kernels() -> tuple[Any, ...]:
    """Return the same, once torch has put them into the order for this GPU, as it does when it first chooses one."""
    if not _settled and torch.cuda.is_initialized():
        _settled.append(True)
        with contextlib.suppress(RuntimeError), DisableTorchFunction(), without_modes():  # it may have none for these
            fused_sdp_choice(*[torch.empty((1, 1, 8, 8), dtype=torch.float16, device="cuda")] * 3)
    return attention_kernels()


@contextmanager
def with_attention_kernels(kernels: tuple[Any, ...]) -> Iterator[None]:
    """Enable these attention kernels, within it. (`sdpa_kernel` does not restore their order.)"""
    before = attention_kernels()
    try:
        try:
            _set_kernels(kernels)
            yield
        finally:
            _set_kernels(before)
    finally:  # whatever has interrupted that
        _set_kernels(before)


def _set_kernels(kernels: tuple[Any, ...]) -> None:
    cuda = torch.backends.cuda
    flash, efficient, math, cudnn, *order = kernels
    cuda.enable_flash_sdp(flash)
    cuda.enable_mem_efficient_sdp(efficient)
    cuda.enable_math_sdp(math)
    cuda.enable_cudnn_sdp(cudnn)
    if order:
        set_attention_order(order)
