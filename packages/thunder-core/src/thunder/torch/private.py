# SPDX-License-Identifier: Apache-2.0
"""What thunder uses of torch that is private to torch, with what is done where a torch lacks it.

Everything else goes by torch's documented interface, or by this file. Two kinds of things stand where they are used:
operators with private names (`torch._softmax_backward_data`, those of `torch._C._nn`), and what only one file touches
(`capture/torch_patches.py`, `transforms/graph_capture.py`, `dynamo.py`).
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.utils._device
import torch.utils._pytree as pytree  # whose containers are those of torch.func
from torch._prims_common import suggest_memory_format
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "ATTENTION_ADDS_A_BATCH",
    "DISABLED_DISPATCH",
    "DISABLED_FUNCTION",
    "SCRIPTED",
    "TIES_ARE_SHARED",
    "DataDependentOutputException",
    "DeviceContext",
    "DisableTorchFunction",
    "DisableTorchFunctionSubclass",
    "DynamicOutputShapeException",
    "FakeTensorMode",
    "HigherOrderOperator",
    "OpOverload",
    "OpOverloadPacket",
    "TorchDispatchMode",
    "any_autocast",
    "attention_order",
    "clear_saved_tensors",
    "current_cuda_device",
    "current_device",
    "current_stream",
    "differentiated_otherwise",
    "direct_apply",
    "direct_backward",
    "executes",
    "forward_not_begun",
    "function_modes",
    "functorch_active",
    "hidden_from_dynamo",
    "mask_detectors",
    "new_tensor",
    "no_device",
    "pytree",
    "sharding",
    "tensor_guards",
]


F = TypeVar("F", bound=Callable[..., Any])

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])

# Since then the gradients of clamp, fmax and fmin are shared where operands are equal, and none at a number's bound.
TIES_ARE_SHARED = VERSION >= (2, 14)

# Since then attention of three dimensions is that of a batch of one, for which there are kernels.
ATTENTION_ADDS_A_BATCH = VERSION >= (2, 14)


# On the CPU their results are laid out as their first argument is, channels last or in the usual way.
_LAID_OUT_AS_INPUT = frozenset(
    getattr(torch.ops.aten, name).default
    for name in (
        "channel_shuffle", "native_group_norm", "reflection_pad2d", "reflection_pad3d", "replication_pad2d",
        "replication_pad3d",
    )
)  # fmt: skip


class FakeTensorMode(fake_tensor.FakeTensorMode):
    """torch's, which in one version or another takes the results of these for ones laid out in the usual way."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = super().__torch_dispatch__(func, types, args, kwargs)
        if func not in _LAID_OUT_AS_INPUT or args[0].device.type != "cpu":
            return found
        layout = suggest_memory_format(args[0])
        if isinstance(found, torch.Tensor):
            return torch.empty_like(found, memory_format=layout)
        return torch.empty_like(found[0], memory_format=layout), *found[1:]


# Documented for those who write tensors or modes of their own, though under a private name: there is no other way.
DisableTorchFunctionSubclass: Any = torch._C.DisableTorchFunctionSubclass  # classes override nothing within it
DisableTorchFunction: Any = torch._C.DisableTorchFunction  # nor do modes

# What a class of tensors has that overrides nothing.
DISABLED_FUNCTION: Any = getattr(torch._C, "_disabled_torch_function_impl", None)
DISABLED_DISPATCH: Any = getattr(torch._C, "_disabled_torch_dispatch_impl", None)

# Within it no dispatch mode of the user's is active.
without_modes: Callable[[], Any] = getattr(
    torch.utils._python_dispatch, "_disable_current_modes", contextlib.nullcontext
)


def current_device() -> torch.device | None:
    """The default device, None where it is the usual one."""
    try:
        return torch.utils._device.CURRENT_DEVICE
    except AttributeError:
        return torch.get_default_device()


def swap_contents(a: torch.Tensor, b: torch.Tensor) -> None:
    """Makes each of two tensors what the other was, without asking whether somebody refers to them weakly."""
    swap = getattr(torch._C, "_swap_tensor_impl", torch.utils.swap_tensors)
    swap(a, b)


# Whether attention may take each of its kernels, as `torch.backends.cuda` tells in Python.
kernels_enabled: tuple[Callable[[], bool], ...] = tuple(
    getattr(torch._C, f"_get_{kernel}_sdp_enabled", getattr(torch.backends.cuda, f"{kernel}_sdp_enabled"))
    for kernel in ("flash", "mem_efficient", "math", "cudnn")
)

# In which order attention's kernels are asked; nothing where torch does not say.
attention_order: Callable[[], Sequence[int]] = getattr(torch._C, "_get_sdp_priority_order", tuple)


def set_attention_order(order: Sequence[int]) -> None:
    """Has attention's kernels asked in this order, which `attention_order` gave."""
    torch._C._set_sdp_priority_order(order)


# The number of the kernel that attention takes for its arguments; 0, plain operations, where torch does not tell.
fused_sdp_choice: Callable[..., int] = getattr(torch, "_fused_sdp_choice", lambda *args, **kwargs: 0)


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
    """Whether one of torch.func's transforms runs, or torch's forward mode, which look into operations."""
    return functorch_active() or forward_ad._current_level >= 0


def direct_apply(function: type[torch.autograd.Function], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """`function.apply`, without the Python that is there for torch.func's transforms: it costs more than all the rest.

    Within these transforms, and in torch's forward mode, it is `otherwise`.
    """
    direct = getattr(super(torch.autograd.Function, function), "apply", None)
    if not isinstance(direct, types.BuiltinFunctionType):
        direct = function.apply

    def apply(*inputs: Any) -> Any:
        return otherwise(*inputs) if functorch_active() or forward_ad._current_level >= 0 else direct(*inputs)

    return apply


def direct_backward(function: Any, backward: Callable[..., Any]) -> None:
    """Has nodes of `function` call `backward` itself, without the Python that looks for the user's first."""
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
    """The index of no device."""
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
    """torch's own comparison of the metadata of several tensors with what it is now, in one call of C++.

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


def function_transforms() -> list[tuple[Any, str, str]]:
    """Where torch does the work of the transforms of `torch.func`, and what of `frontend/functional.py` does it here.

    Where torch has none of these, only calls through `torch.func` are seen.
    """
    try:
        from torch._functorch import apis, eager_transforms
    except ImportError:
        return []
    places = [
        (apis, "vmap_impl", "run_vmap"),
        (eager_transforms, "grad_impl", "run_grad"),
        (eager_transforms, "grad_and_value_impl", "run_grad_and_value"),
        (eager_transforms, "_vjp_with_argnums", "run_vjp"),
        (eager_transforms, "_jvp_with_argnums", "run_jvp"),
    ]
    return [place for place in places if hasattr(place[0], place[1])]


def flex_attention() -> tuple[Any, str, Any] | None:
    """Where torch calls the kernel of flex attention, and the function that is its mathematics, in torch's Python."""
    module: Any = sys.modules.get("torch.nn.attention.flex_attention")
    mathematics: Any = sys.modules.get("torch._higher_order_ops.flex_attention")
    if not hasattr(module, "flex_attention_hop") or not hasattr(mathematics, "math_attention"):
        return None  # nobody has imported it
    return module, "flex_attention_hop", mathematics.math_attention


def modes_that_replace_indexing() -> list[tuple[Any, str]]:
    """Where flex attention has its functions of scores and masks call another operation in place of an index."""
    module, name = sys.modules.get("torch._dynamo._trace_wrapped_higher_order_op"), "TransformGetItemToIndex"
    return [(module, name)] if hasattr(module, name) else []


def mask_detectors() -> list[tuple[Any, str]]:
    """Where torch's transformer modules compare a mask with the causal one, to choose a kernel; none, none do."""
    module = torch.nn.modules.transformer
    return [(module, name) for name in ("_detect_is_causal_mask",) if hasattr(module, name)]


def sharding() -> list[tuple[Any, str]]:
    """What modules whose parameters are sharded (FSDP, both kinds) call first; none, if nobody has imported them."""
    two = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_state")
    places = (getattr(two, "FSDPState", None), sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel"))
    return [(owner, name) for owner in places for name in ("_root_pre_forward",) if hasattr(owner, name)]


def forward_not_begun(sharded: Any) -> None:
    """Takes back what the second kind of FSDP has noted on its state before it calls that."""
    states: Any = getattr(sharded, "_training_state", None)
    if hasattr(type(states), "IDLE"):
        sharded._training_state = type(states).IDLE


SCRIPTED: tuple[type, ...] = (torch.jit.ScriptFunction, *[c for c in [getattr(torch._C, "ScriptMethod", None)] if c])
"""What TorchScript makes of functions and methods."""

HigherOrderOperator: Any = torch._ops.HigherOrderOperator
"""Operators that take functions, such as those of control flow."""

OpOverload: Any = torch._ops.OpOverload
OpOverloadPacket: Any = torch._ops.OpOverloadPacket
"""What `torch.ops` holds: an operator for arguments of certain types, and all of one name."""


def hidden_from_dynamo(fn: F) -> F:
    """Decorator: `torch.compile` breaks its graph at calls of the function and leaves all that it calls alone.

    Where torch has no such mark Dynamo tries to trace the function, and says where it cannot.
    """
    fn._torchdynamo_disable = True  # type: ignore[attr-defined]
    with contextlib.suppress(ImportError, AttributeError, TypeError):
        from torch._C._dynamo import eval_frame

        skip: Any = eval_frame._FrameAction.SKIP  # type: ignore[attr-defined]
        eval_frame.set_code_exec_strategy(fn.__code__, eval_frame._FrameExecStrategy(skip, skip))  # type: ignore[attr-defined]
    return fn
