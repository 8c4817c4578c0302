# SPDX-License-Identifier: Apache-2.0
"""Private interfaces of torch that compiled programs use, with a fallback for versions that lack them.

The private interfaces that tracing and compilation use are in `torch/private.py`.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.utils._device
import torch.utils.dlpack
from torch._prims_common import suggest_memory_format
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

__all__ = [
    "SCRIPTED",
    "any_autocast",
    "at_end_of_backward",
    "attention_order",
    "autocast_devices",
    "backward_pass",
    "clear_saved_tensors",
    "current_cuda_device",
    "current_device",
    "current_stream",
    "deterministic",
    "direct_apply",
    "direct_backward",
    "dispatch_keys",
    "executes",
    "function_modes",
    "function_transform_active",
    "functorch_active",
    "fx_is_tracing",
    "hidden_from_dynamo",
    "in_data_parallel",
    "increment_versions",
    "is_batch_of_gradients",
    "jit_tracing_state",
    "kernels_enabled",
    "launch_cubin",
    "load_cubin",
    "matmul_precision",
    "new_tensor",
    "no_device",
    "norm_placement",
    "on_profiling",
    "references_to_gradient",
    "saved_tensor_hooks",
    "storage_references",
    "suggest_memory_format",
    "tensor_guards",
]


def current_device() -> torch.device | None:
    """Return the default device, or None if no default has been set."""
    try:
        return torch.utils._device.CURRENT_DEVICE
    except AttributeError:
        return torch.get_default_device()


def autocast_devices() -> tuple[str, ...]:
    """Return the types of devices that can have autocast: the CPU, CUDA and another accelerator of this process."""
    accelerator = torch.accelerator.current_accelerator()
    other = accelerator is not None and accelerator.type not in ("cpu", "cuda")
    return ("cpu", "cuda", accelerator.type) if other and accelerator is not None else ("cpu", "cuda")


def _any_autocast() -> bool:
    return any(map(torch.is_autocast_enabled, autocast_devices()))


def _never() -> bool:
    return False


# Returns whether autocast is enabled for any device, in one call.
any_autocast: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", _any_autocast)


# The C++ functions behind torch's public functions. The public functions are several times slower.
deterministic: Callable[[], bool] = getattr(
    torch._C, "_get_deterministic_algorithms", torch.are_deterministic_algorithms_enabled
)
_matmul_precision: Callable[[], str] = getattr(
    torch._C, "_get_float32_matmul_precision", torch.get_float32_matmul_precision
)


def matmul_precision() -> str:
    """Return the precision of products in float32, also if it was set for single backends (`fp32_precision`)."""
    try:
        return _matmul_precision()
    except RuntimeError:  # torch has no answer for all backends
        return ", ".join(each.matmul.fp32_precision for each in (torch.backends.cuda, torch.backends.mkldnn))


def _function_modes() -> int:
    return len(torch.overrides._get_current_function_mode_stack())


# The number of active torch function modes. `torch.set_default_device` adds one.
function_modes: Callable[[], int] = getattr(torch._C, "_len_torch_function_stack", _function_modes)

# Returns whether a transform of torch.func is active.
functorch_active: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", _never)


# Checks whether a tensor is a batch of gradients, as `autograd.grad(..., is_grads_batched=True)` passes them to nodes.
is_batch_of_gradients: Callable[[torch.Tensor], bool] = getattr(
    getattr(torch._C, "_functorch", None), "is_legacy_batchedtensor", lambda x: False
)


def function_transform_active() -> bool:
    """Check whether a transform of torch.func or torch's forward mode is active. Both need torch's own operations."""
    return functorch_active() or forward_ad._current_level >= 0


def direct_apply(function: type[torch.autograd.Function], fallback: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function.apply` without its slow Python wrapper for transforms of torch.func.

    The returned function calls `fallback` inside these transforms and in torch's forward mode.
    """
    direct = getattr(super(torch.autograd.Function, function), "apply", None)
    if not isinstance(direct, types.BuiltinFunctionType):
        direct = function.apply

    def apply(*inputs: Any) -> Any:
        return fallback(*inputs) if functorch_active() or forward_ad._current_level >= 0 else direct(*inputs)

    return apply


def direct_backward(function: Any, backward: Callable[..., Any]) -> None:
    """Make nodes of `function` call `backward` directly, without the Python code that looks up the method."""
    node = getattr(function, "_backward_cls", None)
    if node is not None and hasattr(node, "apply"):
        node.apply = backward


def _keep(ctx: Any) -> None:
    pass


# Frees a node's saved tensors while its backward runs, unless the graph is retained. torch would free them afterwards.
clear_saved_tensors: Callable[[Any], None] = getattr(torch._C._FunctionBase, "maybe_clear_saved_tensors", _keep)


def _always(node: Any = None) -> bool:
    return True


# Returns the current hooks of saved tensors, or None.
saved_tensor_hooks: Callable[[], Any] = functools.partial(
    getattr(getattr(torch._C, "_autograd", None), "_top_saved_tensors_default_hooks", _always), True
)


# Returns whether the current backward pass executes a node. Raises RuntimeError for a leaf that is an input of
# `autograd.grad`.
executes: Callable[[Any], bool] = getattr(torch._C, "_will_engine_execute_node", _always)


# The id of the current backward pass.
backward_pass: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)


def at_end_of_backward(call: Callable[[], None]) -> None:
    """Call a function at the end of the current backward pass, or never if torch cannot do that."""
    engine: Any = getattr(torch.autograd.Variable, "_execution_engine", None)
    if engine is not None and backward_pass() != -1:
        engine.queue_callback(call)


def _public_stream(device: int) -> int:
    stream: int = torch.cuda.current_stream(device).cuda_stream
    return stream


def _public_allocation(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device="cuda")


def no_device() -> int:
    """Return -1, the index of no device."""
    return -1


# Functions that torch's generated code calls: the current stream of a device, the current device, and an allocation on
# it. They take a third of the time of the public functions. CUDA must be initialized, as it is once a tensor exists.
current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _public_stream)
current_cuda_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", no_device)
new_tensor: Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor] = getattr(
    getattr(getattr(torch._C, "_dynamo", None), "guards", None), "_empty_strided_cuda", _public_allocation
)


def dispatch_keys(t: torch.Tensor) -> int | None:
    """Return the set of dispatch keys of a tensor as a number, or None if torch does not show it."""
    try:
        return torch._C._dispatch_keys(t).raw_repr()
    except (AttributeError, TypeError):
        return None


_static_launcher: Any = getattr(torch._C, "_StaticCudaLauncher", None)


def _load_cubin(path: str, name: str, shared: int, device: int) -> int:
    # Newer versions also return the module, before the function. Both return two numbers behind it.
    return _static_launcher._load_kernel(path, name, shared, device)[-3]  # type: ignore[no-any-return]


# Loads a kernel from a file of CUDA's binary format, `(path, name, bytes of shared memory, device)`, and launches it,
# `(kernel, three sizes of the grid, warps, bytes of shared memory, types, arguments, stream)`. None if torch cannot.
load_cubin: Callable[[str, str, int, int], int] | None = None if _static_launcher is None else _load_cubin
launch_cubin: Callable[..., None] | None = getattr(_static_launcher, "_launch_kernel", None)


# Whether each kernel of attention is enabled, as in `torch.backends.cuda`.
kernels_enabled: tuple[Callable[[], bool], ...] = tuple(
    getattr(torch._C, f"_get_{kernel}_sdp_enabled", getattr(torch.backends.cuda, f"{kernel}_sdp_enabled"))
    for kernel in ("flash", "mem_efficient", "math", "cudnn")
)

# The order in which torch tries attention's kernels. It is empty if torch does not provide the order.
attention_order: Callable[[], Sequence[int]] = getattr(torch._C, "_get_sdp_priority_order", tuple)


_TWO = torch.empty(1, device="cpu"), torch.empty(1, device="cpu")


def tensor_guards(
    tensors: Sequence[torch.Tensor], dims: Sequence[frozenset[int]] = ()
) -> tuple[Callable[..., bool] | None, bool]:
    """Return torch's C++ check of the metadata of tensors, and whether it rejects a tensor that is passed twice.

    The check accepts any size in the dimensions `dims`, and any strides of tensors with such dimensions. The check is
    `None` if torch has no check that accepts these tensors.
    """
    try:
        from torch._C._dynamo.guards import TensorGuards

        # Pass both keywords with a list for each tensor: otherwise its check() reads out of bounds.
        free = dims or [frozenset()] * len(tensors)
        sizes = [[None if i in d else n for i, n in enumerate(t.shape)] for t, d in zip(tensors, free)]
        strides = [[None] * t.ndim if d else list(t.stride()) for t, d in zip(tensors, free)]
        check = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
        if not check(*tensors):
            return None, False
        one, other = _TWO
        twice = TensorGuards(one, other, dynamic_dims_sizes=[[1], [1]], dynamic_dims_strides=[[1], [1]])
        return check, not twice.check(one, one)
    except Exception:  # the caller compares in Python instead
        return None, False


def increment_versions(tensors: Sequence[torch.Tensor]) -> None:
    """Record a write to tensors by a kernel that torch does not know of, for autograd's checks of saved tensors."""
    if any(map(torch.Tensor.is_inference, tensors)):
        tensors = [x for x in tensors if not x.is_inference()]
    increment_version(tensors)


def references_to_gradient(leaf: torch.Tensor) -> tuple[int, int]:
    """Return the numbers of references to a leaf's gradient: to its Python object, and to the tensor.

    Raise AttributeError if torch cannot count them.
    """
    gradient: Any = leaf.grad
    return sys.getrefcount(gradient), gradient._use_count()


def _cannot_count(storage: int) -> int:
    raise AttributeError("this version of torch does not count the references to a storage")


#: Returns the number of references to a storage, given by its address.
storage_references: Callable[[int], int] = getattr(torch._C, "_storage_Use_Count", _cannot_count)


def on_profiling(started: Callable[[], None], stopped: Callable[[], None]) -> None:
    """Call these functions when a profiler of torch starts and stops.

    torch calls two private functions then, which are wrapped. Versions without them never call `started`.
    """
    profiler: Any = torch.autograd.profiler
    for name, ours in (("_run_on_profiler_start", started), ("_run_on_profiler_stop", stopped)):
        original = getattr(profiler, name, None)
        if original is not None:
            setattr(profiler, name, _both(original, ours))


def _both(original: Callable[[], Any], ours: Callable[[], None]) -> Callable[[], Any]:
    @functools.wraps(original)
    def call() -> Any:
        ours()
        return original()

    return call


SCRIPTED: tuple[type, ...] = (torch.jit.ScriptFunction, *[c for c in [getattr(torch._C, "ScriptMethod", None)] if c])
"""The types that TorchScript creates for functions and methods."""


F = TypeVar("F", bound=Callable[..., Any])

# Returns the state of `torch.jit.trace`, or None if it is not running.
jit_tracing_state: Callable[[], Any] = getattr(torch._C, "_get_tracing_state", lambda: None)


def fx_is_tracing() -> bool:
    """Check whether `torch.fx.symbolic_trace` is running."""
    module = sys.modules.get("torch.fx._symbolic_trace")
    if module is None:
        return False
    of_this_thread = getattr(module, "_get_is_fx_tracing", None)  # since torch 2.15
    return bool(getattr(module, "_is_fx_tracing_flag", False) if of_this_thread is None else of_this_thread())


def hidden_from_dynamo(fn: F) -> F:
    """Hide a function from `torch.compile`: calls break the graph, and Dynamo ignores all functions called inside.

    If torch lacks this mark, Dynamo tries to trace the function, and reports an error if it cannot.
    """
    fn._torchdynamo_disable = True  # type: ignore[attr-defined]
    with contextlib.suppress(ImportError, AttributeError, TypeError):
        from torch._C._dynamo import eval_frame

        skip: Any = eval_frame._FrameAction.SKIP  # type: ignore[attr-defined]
        eval_frame.set_code_exec_strategy(fn.__code__, eval_frame._FrameExecStrategy(skip, skip))  # type: ignore[attr-defined]
    return fn


def in_data_parallel() -> bool:
    """Check whether the forward of a `DistributedDataParallel` module runs."""
    module = sys.modules.get("torch.nn.parallel.distributed")
    return module is not None and getattr(module.DistributedDataParallel, "_active_ddp_module", None) is not None


def strided_placement() -> Any:
    """Return the class of placements in blocks, as `fully_shard` gives them to parameters of tensor parallelism."""
    return sys.modules["torch.distributed.tensor.placement_types"]._StridedShard  # type: ignore[attr-defined]


def norm_placement() -> Any:
    """Return the class of a DTensor's placement for norms that are reduced over ranks, or None if there is none."""
    module: Any = sys.modules.get("torch.distributed.tensor._ops._math_ops")
    return getattr(module, "_NormPartial", None)
