# SPDX-License-Identifier: Apache-2.0
"""What tracing and compiling use of torch that is private to torch, with a fallback for versions that lack it.

What compiled programs use when they run stands in `runtime/torch_private.py`. Everything else goes by torch's
documented interface, or by these two files. Two kinds of things stand where they are used: operators with private
names (`torch._softmax_backward_data`, those of `torch._C._nn`), and what only one file touches
(`capture/torch_patches.py`, `transforms/graph_capture.py`, `dynamo.py`).
"""

from __future__ import annotations

import contextlib
import os
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
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "ATTENTION_ADDS_A_BATCH",
    "DISABLED_DISPATCH",
    "DISABLED_FUNCTION",
    "SCRIPTED",
    "TIES_ARE_SHARED",
    "TORCH_FOLDER",
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
    "attention_order",
    "compile_stance",
    "distribution_that_checks",
    "forward_not_begun",
    "hidden_from_dynamo",
    "l1_loss_weight",
    "mask_detectors",
    "mode_stacks",
    "module_with_legacy_hook",
    "parameter_being_converted",
    "pytree",
    "restore_mode_stacks",
    "set_torch_function_state",
    "sharding",
    "torch_function_state",
]


F = TypeVar("F", bound=Callable[..., Any])

# Where torch's own Python stands.
TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep

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


def swap_contents(a: torch.Tensor, b: torch.Tensor) -> None:
    """Make each of two tensors what the other was, without asking whether somebody refers to them weakly."""
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
    """Have attention's kernels asked in this order, which `attention_order` gave."""
    torch._C._set_sdp_priority_order(order)


# The number of the kernel that attention takes for its arguments; 0, plain operations, where torch does not tell.
fused_sdp_choice: Callable[..., int] = getattr(torch, "_fused_sdp_choice", lambda *args, **kwargs: 0)


def compile_stance() -> list[tuple[Any, str]]:
    """Return where torch keeps what `torch.compiler.set_stance` sets."""
    module = sys.modules.get("torch._dynamo.eval_frame")
    return [(module, "_stance")] if hasattr(module, "_stance") else []


# Whether functions of torch are overridden: what `DisableTorchFunction` changes.
torch_function_state: Callable[[], Any] = getattr(torch._C, "_get_torch_function_state", lambda: None)
set_torch_function_state: Callable[[Any], None] = getattr(torch._C, "_set_torch_function_state", lambda before: None)


def mode_stacks() -> tuple[list[Any], list[Any]]:
    """Return the active function modes and dispatch modes, the innermost last."""
    dispatch = getattr(torch.utils._python_dispatch, "_get_current_dispatch_mode_stack", list)
    return list(torch.overrides._get_current_function_mode_stack()), list(dispatch())


def restore_mode_stacks(before: tuple[list[Any], list[Any]]) -> None:
    """Leave the modes that have become active since, and enter those again that are not active any more."""
    python_dispatch = torch.utils._python_dispatch
    ways = ((torch.overrides._pop_mode, torch.overrides._push_mode),
            (getattr(python_dispatch, "_pop_mode", None), getattr(python_dispatch, "_push_mode", None)))  # fmt: skip
    for i, (pop, push) in enumerate(ways):
        wanted, found = before[i], mode_stacks()[i]
        while found and not (len(found) <= len(wanted) and all(a is b for a, b in zip(found, wanted))):
            with contextlib.suppress(Exception):
                found[-1].__exit__(None, None, None)
            if len(mode_stacks()[i]) == len(found):  # not entered as a context
                pop()  # type: ignore[misc]
            found = mode_stacks()[i]
        for mode in wanted[len(found) :]:
            push(mode)  # type: ignore[misc]


def function_transforms() -> list[tuple[Any, str, str]]:
    """Return where torch does the work of the transforms of `torch.func`, and what does it in traced programs.

    The latter are names of `capture/higher_order/function_transforms.py`. Where torch has none of these, only calls
    through `torch.func` are seen.
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
    """Return where torch calls the kernel of flex attention, and the function that is its mathematics, in torch's
    Python.
    """
    module: Any = sys.modules.get("torch.nn.attention.flex_attention")
    mathematics: Any = sys.modules.get("torch._higher_order_ops.flex_attention")
    if not hasattr(module, "flex_attention_hop") or not hasattr(mathematics, "math_attention"):
        return None  # nobody has imported it
    return module, "flex_attention_hop", mathematics.math_attention


def modes_that_replace_indexing() -> list[tuple[Any, str]]:
    """Return where flex attention has its functions of scores and masks call another operation in place of an index."""
    module, name = sys.modules.get("torch._dynamo._trace_wrapped_higher_order_op"), "TransformGetItemToIndex"
    return [(module, name)] if hasattr(module, name) else []


def mask_detectors() -> list[tuple[Any, str]]:
    """Return where torch's transformer modules compare a mask with the causal one, to choose a kernel; none, none
    do.
    """
    module = torch.nn.modules.transformer
    return [(module, name) for name in ("_detect_is_causal_mask",) if hasattr(module, name)]


def sharding() -> list[tuple[Any, str]]:
    """Return what modules whose parameters are sharded (FSDP, both kinds) call first; none, if nobody has imported
    them.
    """
    two = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_state")
    places = (getattr(two, "FSDPState", None), sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel"))
    return [(owner, name) for owner in places for name in ("_root_pre_forward",) if hasattr(owner, name)]


def forward_not_begun(sharded: Any) -> None:
    """Take back what the second kind of FSDP has noted on its state before it calls that."""
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
    """Hide a function from `torch.compile`: it breaks its graph at the call and leaves all that it calls alone.

    Where torch has no such mark Dynamo tries to trace the function, and says where it cannot.
    """
    fn._torchdynamo_disable = True  # type: ignore[attr-defined]
    with contextlib.suppress(ImportError, AttributeError, TypeError):
        from torch._C._dynamo import eval_frame

        skip: Any = eval_frame._FrameAction.SKIP  # type: ignore[attr-defined]
        eval_frame.set_code_exec_strategy(fn.__code__, eval_frame._FrameExecStrategy(skip, skip))  # type: ignore[attr-defined]
    return fn


# -- frames of torch's own Python -------------------------------------------------------------------------------------
# What torch does not hand over in a call, but its code has in a variable: each function below looks at the frames of
# those who called. A test for each fails where a version of torch has changed what it looks for.
def l1_loss_weight() -> Any:
    """Return the `weight` of the call of `l1_loss` that is running: torch drops it for those who override it."""
    code = torch.nn.functional.l1_loss.__code__
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame and frame.f_locals.get("weight")


def _code_that_calls_hooks() -> types.CodeType:
    code: types.CodeType = torch.nn.Module._call_impl.__code__
    return next((c for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name == "inner"), code)


_CALLS_HOOKS = _code_that_calls_hooks()


def module_with_legacy_hook() -> str | None:
    """Return the class of a module that looks for the node that its hook (`register_backward_hook`) is put on."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CALLS_HOOKS:
            return type(frame.f_locals.get("self")).__name__
        frame = frame.f_back
    return None


def parameter_being_converted(is_users: Callable[[str], bool]) -> Any:
    """Return what `module.to(…)` has made of the parameter at hand, where it is that which asks, else None.

    `is_users` says whether a file holds code of the user's, who may ask, too.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code is not torch.nn.Module._apply.__code__:
        frame = None if is_users(frame.f_code.co_filename) else frame.f_back
    return None if frame is None else frame.f_locals.get("param_applied")


# Where torch checks values that programs give to distributions, and raises an error where they are wrong.
_VALUE_CHECKS = {
    ("distribution.py", "__init__"), ("distribution.py", "_validate_sample"), ("uniform.py", "__init__"),
    ("geometric.py", "__init__"),
}  # fmt: skip
_DISTRIBUTIONS = TORCH_FOLDER + "distributions"
_CONSTRAINTS = os.path.join(_DISTRIBUTIONS, "constraints.py")
_ASKS = "_all_true_or_runtime_assert"  # through which the checks ask from torch 2.15 on


def distribution_that_checks(is_ours: Callable[[str], bool]) -> str | None:
    """Return the class of the distribution that checks a value (`validate_args`), where one does, else None.

    Frames of files that are thunder's (`is_ours`) are passed over.
    """
    frame: Any = sys._getframe(1)
    while is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    while frame.f_code.co_filename == _CONSTRAINTS or frame.f_code.co_name == _ASKS:  # constraints ask others
        frame = frame.f_back
    folder, file = os.path.split(frame.f_code.co_filename)
    if folder != _DISTRIBUTIONS or (file, frame.f_code.co_name) not in _VALUE_CHECKS:
        return None
    return type(frame.f_locals.get("self")).__name__
