# SPDX-License-Identifier: Apache-2.0
"""The state of torch around a call: the user's modes, and settings that programs read through functions of torch.

The prologue always guards the settings that every program depends on (`guards.py`). The settings in this file are
guarded only where a program reads them: by calling a function listed in `_TELLING`, or by calling attention, which
depends on the enabled attention kernels.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack

from thunder.capture.base.substitutions import Substitutions
from thunder.runtime.settings import attention_kernels
from thunder.runtime.torch_private import autocast_devices, function_modes, functorch_active
from thunder.torch.private import (
    DeviceContext,
    DisableTorchFunction,
    fused_sdp_choice,
    mode_stacks,
    restore_mode_stacks,
    set_attention_order,
    set_torch_function_state,
    torch_function_state,
    without_modes,
)

__all__ = [
    "attempt",
    "is_state",
    "keep_grad_mode",
    "keep_modes",
    "mode_around",
    "settled_attention_kernels",
    "with_attention_kernels",
]

# Functions without arguments that return a setting of torch, or threads.
_TELLING: dict[str, tuple[str, ...]] = {
    "threading": ("active_count", "current_thread", "enumerate", "main_thread"),
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
    """Restore the modes that are active now when the board is restored."""
    substitutions.callback(restore_mode_stacks, mode_stacks())
    substitutions.callback(set_torch_function_state, torch_function_state())


def keep_grad_mode(substitutions: Substitutions) -> None:
    """Restore grad mode and autocast if the program raises. A program that returns may change them."""
    autocast = {device: torch.is_autocast_enabled(device) for device in autocast_devices()}
    substitutions.callback(_restore_grad_mode, substitutions, torch.is_grad_enabled(), autocast)


@contextlib.contextmanager
def attempt() -> Iterator[None]:
    """Restore grad mode if the block raises. An exception at the end of a `with` statement may skip its exit."""
    before = torch.is_grad_enabled()
    try:
        yield
    except BaseException:
        torch.set_grad_enabled(before)
        raise


def _restore_grad_mode(substitutions: Substitutions, grad: bool, autocast: dict[str, bool]) -> None:
    if substitutions.finished:
        return
    torch.set_grad_enabled(grad)
    for device, enabled in autocast.items():
        if torch.is_autocast_enabled(device) != enabled:
            torch.set_autocast_enabled(device, enabled)


def is_state(module: str, name: str) -> bool:
    """Check whether `module.name` is a function that returns a setting of torch, or threads."""
    return name in _TELLING.get(module, ())


def mode_around() -> tuple[str, str] | None:
    """Describe an active mode that must see every torch call of the program, and how to avoid it; else return None.

    A compiled program skips these calls, so such a program has to run eagerly.
    """
    if functorch_active():
        return (
            "a transform of torch.func is running",
            "Use thunder's transform of the same name instead (thunder.grad, thunder.vmap)",
        )
    if not function_modes():
        return None
    for mode in _get_current_function_mode_stack():
        if not isinstance(mode, DeviceContext):
            return f"the torch function mode {type(mode).__qualname__} is active", "Leave the mode around the call"
    return None


_settled: list[bool] = []


def settled_attention_kernels() -> tuple[Any, ...]:
    """Return `attention_kernels()`, sorted by torch for this GPU. torch sorts them when it first chooses a kernel."""
    if not _settled and torch.cuda.is_initialized():
        _settled.append(True)
        with contextlib.suppress(RuntimeError), DisableTorchFunction(), without_modes():  # maybe no kernel is enabled
            fused_sdp_choice(*[torch.empty((1, 1, 8, 8), dtype=torch.float16, device="cuda")] * 3)
    return attention_kernels()


@contextmanager
def with_attention_kernels(kernels: tuple[Any, ...]) -> Iterator[None]:
    """Enable `kernels` inside the context, and restore kernels and order after it. `sdpa_kernel` does not."""
    before = attention_kernels()
    try:
        try:
            _set_kernels(kernels)
            yield
        finally:
            _set_kernels(before)
    finally:  # again, in case an exception interrupted the first restore
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
