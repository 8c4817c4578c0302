# SPDX-License-Identifier: Apache-2.0
"""Private parts of torch that tracing and compiling use, each with a fallback for versions that lack it.

`runtime/torch_private.py` contains those that compiled programs use at run time. All other code uses torch's documented
interface or one of these two files, with two exceptions: operators with private names (`torch._softmax_backward_data`,
`torch._C._nn`), and parts that only one file needs (`capture/torch_patches.py`, `transforms/graph_capture.py`,
`dynamo.py`).
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import importlib
import os
import sys
import threading
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.utils._device
import torch.utils._pytree as pytree  # torch.func uses its containers
from torch._prims_common import suggest_memory_format
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "ATTENTION_ADDS_A_BATCH",
    "DISABLED_DISPATCH",
    "DISABLED_FUNCTION",
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
    "WithoutMemory",
    "compile_stance",
    "distribution_that_checks",
    "fully_shard",
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


# The folder of torch's own Python code.
TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])

# Since 2.14, equal operands of clamp, fmax and fmin share the gradient, and there is none at a bound that is a number.
TIES_ARE_SHARED = VERSION >= (2, 14)

# Since 2.14, three-dimensional attention is treated as a batch of one, for which torch has kernels.
ATTENTION_ADDS_A_BATCH = VERSION >= (2, 14)


# On the CPU, the results of these operators have the memory format of their first argument.
_LAID_OUT_AS_INPUT = frozenset(
    getattr(torch.ops.aten, name).default
    for name in (
        "channel_shuffle", "native_group_norm", "reflection_pad2d", "reflection_pad3d", "replication_pad2d",
        "replication_pad3d",
    )
)  # fmt: skip


@functools.cache
def _set_device_guard() -> None:
    """Set the device guard that torch's mode would set, in a thread that does not end.

    In CUDA builds without a GPU torch replaces the guard by a thread-local one. If the first thread that enters the
    mode has ended, the process crashes at its first backward pass.
    """
    ensure = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)
    if ensure is None or not torch.backends.cuda.is_built() or torch.cuda.is_available():
        return
    if threading.current_thread() is threading.main_thread():
        ensure()
        return
    done, end = _thread.allocate_lock(), _thread.allocate_lock()
    done.acquire(), end.acquire()

    def run() -> None:
        ensure()
        done.release()
        end.acquire()  # for ever

    _thread.start_new_thread(run, ())  # programs do not see it among Python's threads
    done.acquire()


class FakeTensorMode(fake_tensor.FakeTensorMode):
    """torch's mode, with the correct memory format of the operators above, also in versions where torch's is wrong."""

    def __enter__(self) -> Any:
        _set_device_guard()
        return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = super().__torch_dispatch__(func, types, args, kwargs)
        if func not in _LAID_OUT_AS_INPUT or args[0].device.type != "cpu":
            return found
        layout = suggest_memory_format(args[0])
        if isinstance(found, torch.Tensor):
            return torch.empty_like(found, memory_format=layout)
        return torch.empty_like(found[0], memory_format=layout), *found[1:]


def _meta_tensors(x: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(x) if isinstance(t, torch.Tensor) and t.is_meta]


class WithoutMemory(TorchDispatchMode):
    """Make reads of addresses on the meta device raise an error: they are 0, and kernels would use them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        others = {x.untyped_storage()._cdata for x in _meta_tensors((args, kwargs))}  # the caller's are left alone
        for x in _meta_tensors(found):
            if x.untyped_storage()._cdata not in others:
                torch._C._set_throw_on_mutable_data_ptr(x)
        return found


# torch documents these private names for authors of tensor classes and modes. There is no public alternative.
DisableTorchFunctionSubclass: Any = torch._C.DisableTorchFunctionSubclass  # disables overrides by tensor classes
DisableTorchFunction: Any = torch._C.DisableTorchFunction  # also disables overrides by modes

# The override of a tensor class that overrides nothing.
DISABLED_FUNCTION: Any = getattr(torch._C, "_disabled_torch_function_impl", None)
DISABLED_DISPATCH: Any = getattr(torch._C, "_disabled_torch_dispatch_impl", None)

# A context in which all dispatch modes of user code are inactive.
without_modes: Callable[[], Any] = getattr(
    torch.utils._python_dispatch, "_disable_current_modes", contextlib.nullcontext
)


def swap_contents(a: torch.Tensor, b: torch.Tensor) -> None:
    """Exchange the contents of two tensors, without checking whether weak references to them exist."""
    swap = getattr(torch._C, "_swap_tensor_impl", torch.utils.swap_tensors)
    swap(a, b)


def set_attention_order(order: Sequence[int]) -> None:
    """Set the order in which torch tries attention's kernels. `order` is a result of `attention_order`."""
    torch._C._set_sdp_priority_order(order)


# The number of the kernel that attention chooses for its arguments: 0 (plain operations) if torch does not provide it.
fused_sdp_choice: Callable[..., int] = getattr(torch, "_fused_sdp_choice", lambda *args, **kwargs: 0)


def compile_stance() -> list[tuple[Any, str]]:
    """Return the module and name of the variable that `torch.compiler.set_stance` sets."""
    module = sys.modules.get("torch._dynamo.eval_frame")
    return [(module, "_stance")] if hasattr(module, "_stance") else []


# Whether overrides of torch functions are active. `DisableTorchFunction` changes this state.
torch_function_state: Callable[[], Any] = getattr(torch._C, "_get_torch_function_state", lambda: None)
set_torch_function_state: Callable[[Any], None] = getattr(torch._C, "_set_torch_function_state", lambda before: None)


def mode_stacks() -> tuple[list[Any], list[Any]]:
    """Return the active function modes and dispatch modes, from outermost to innermost."""
    dispatch = getattr(torch.utils._python_dispatch, "_get_current_dispatch_mode_stack", list)
    return list(torch.overrides._get_current_function_mode_stack()), list(dispatch())


def restore_mode_stacks(before: tuple[list[Any], list[Any]]) -> None:
    """Exit the modes that are not in `before`, and enter the modes of `before` that are no longer active."""
    python_dispatch = torch.utils._python_dispatch
    ways = ((torch.overrides._pop_mode, torch.overrides._push_mode),
            (getattr(python_dispatch, "_pop_mode", None), getattr(python_dispatch, "_push_mode", None)))  # fmt: skip
    for i, (pop, push) in enumerate(ways):
        wanted, found = before[i], mode_stacks()[i]
        while found and not (len(found) <= len(wanted) and all(a is b for a, b in zip(found, wanted))):
            with contextlib.suppress(Exception):
                found[-1].__exit__(None, None, None)
            if len(mode_stacks()[i]) == len(found):  # the mode was not entered as a context
                pop()  # type: ignore[misc]
            found = mode_stacks()[i]
        for mode in wanted[len(found) :]:
            push(mode)  # type: ignore[misc]


def function_transforms() -> list[tuple[Any, str, str]]:
    """Return the functions of torch that implement the transforms of `torch.func`, with their replacements.

    A replacement is the name of a function in `capture/higher_order/function_transforms.py`. If torch lacks these
    functions, only calls through `torch.func` are traced.
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


def flex_attention() -> Any | None:
    """Return the module of flex attention if it is imported and has the parts that are replaced while tracing."""
    module: Any = sys.modules.get("torch.nn.attention.flex_attention")
    return module if hasattr(module, "flex_attention_hop") and hasattr(module, "_apply_kernel_options") else None


def masks_nothing(block_mask: tuple[Any, ...]) -> bool:
    """Check whether the entries of a block mask are those that flex attention uses without a mask."""
    module: Any = flex_attention()
    *_, rows, columns, mask_mod = block_mask
    large = getattr(module, "_LARGE_SPARSE_BLOCK_SIZE", None)
    return mask_mod is getattr(module, "noop_mask", None) and rows == large and columns == large


def autocast_key(device: str) -> str:
    """Return the name of the dispatch key of autocast on a type of device, which torch's PrivateUse1 may be."""
    if device == torch._C._get_privateuse1_backend_name():
        return "AutocastPrivateUse1"
    return f"Autocast{device.upper()}"


def has_kernel(operators: Iterable[str], key: str) -> bool:
    """Check whether one of these operators of torch has a kernel for a dispatch key."""
    for operator in operators:
        try:
            if torch._C._dispatch_has_kernel_for_dispatch_key(operator, key):
                return True
        except RuntimeError:  # an operator of TorchScript alone
            continue
    return False


def flex_attention_autocasts(device: str) -> bool:
    """Check whether autocast casts the inputs of flex attention on a device, which depends on torch's version."""
    key = getattr(torch._C.DispatchKey, autocast_key(device), None)
    operators: Any = sys.modules.get("torch._higher_order_ops.flex_attention")
    return key in getattr(getattr(operators, "flex_attention", None), "py_kernels", {})


class FlexAttentionOperators:
    """The higher-order operators behind flex attention, which Inductor compiles to one kernel each."""

    def __init__(self) -> None:
        # By name at run time, because only programs that run it should wait for the import.
        self._functions: Any = importlib.import_module("torch.nn.attention.flex_attention")
        # By name at run time, because the package has an operator of this name.
        self._operators: Any = importlib.import_module("torch._higher_order_ops.flex_attention")
        self.forward: Any = self._operators.flex_attention
        self.backward: Any = self._operators.flex_attention_backward

    def empty_block_mask(self, query: torch.Tensor, key: torch.Tensor) -> tuple[Any, ...]:
        """Return the entries of the block mask that masks nothing."""
        return tuple(self._functions._create_empty_block_mask(query, key).as_tuple())

    def joint_graph(self, score_mod: Any, query: torch.Tensor, captured: tuple[torch.Tensor, ...]) -> Any:
        """Return the graph of the gradients of `score_mod`: of the score, and of captured tensors that require grad."""
        element = query.new_zeros((), requires_grad=True)
        indices = [query.new_zeros((), dtype=torch.int) for _ in range(4)]
        with torch.enable_grad(), self.indexing():
            return self._operators.create_fw_bw_graph(score_mod, (element, *indices), captured)[1]

    def indexing(self) -> Any:
        """Return the mode in which a tensor can be indexed by elements of a batch."""
        (owner, name), *_ = modes_that_replace_indexing()
        return getattr(owner, name)()


def modes_that_replace_indexing() -> list[tuple[Any, str]]:
    """Return the modes in which functions of flex attention call another operation instead of indexing."""
    module, name = sys.modules.get("torch._dynamo._trace_wrapped_higher_order_op"), "TransformGetItemToIndex"
    return [(module, name)] if hasattr(module, name) else []


def mask_detectors() -> list[tuple[Any, str]]:
    """Return the functions with which torch's transformer modules detect causal masks. The list may be empty."""
    module = torch.nn.modules.transformer
    return [(module, name) for name in ("_detect_is_causal_mask",) if hasattr(module, name)]


def sharding() -> list[tuple[Any, str]]:
    """Return the function that modules sharded by FSDP 1 call first, or [] if it is not imported."""
    module = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    return [(module, "_root_pre_forward")] if hasattr(module, "_root_pre_forward") else []


class FullyShard:
    """The classes behind `fully_shard` whose methods are the hooks of sharded modules."""

    def __init__(self) -> None:
        self.state: Any = sys.modules["torch.distributed.fsdp._fully_shard._fsdp_state"].FSDPState  # type: ignore[attr-defined]
        self.module: Any = sys.modules["torch.distributed.fsdp._fully_shard._fully_shard"].FSDPModule  # type: ignore[attr-defined]
        self.unit: Any = sys.modules["torch.distributed.fsdp._fully_shard._fsdp_param_group"].FSDPParamGroup  # type: ignore[attr-defined]


def fully_shard() -> FullyShard | None:
    """Return the classes behind `fully_shard`, or None if it is not imported."""
    return FullyShard() if "torch.distributed.fsdp._fully_shard._fsdp_state" in sys.modules else None


def settings_of_sharded() -> list[str]:
    """Return the methods of sharded modules that change how units communicate."""
    names = vars(FullyShard().module)
    return [n for n in names if n.startswith("set_") and n not in _HARMLESS]


# The first is part of the program, and the others do not change what is computed.
_HARMLESS = frozenset({
    "set_requires_gradient_sync", "set_is_last_backward", "set_modules_to_forward_prefetch",
    "set_modules_to_backward_prefetch", "set_unshard_in_backward",
})  # fmt: skip


def prepare_sharded_forward(state: Any) -> None:
    """Let torch initialize a sharded root module, as its first forward does, unless a forward is running."""
    state._lazy_init()


def end_sharded_forward(state: Any) -> None:
    """Reset the state that torch sets when the forward of a sharded module begins."""
    state._training_state = type(state._training_state).IDLE
    state._modules_to_run_forward.clear()


def in_sharded_forward(unit: Any) -> bool:
    """Check whether the forward of modules that are sharded together has begun, and not all of them have run."""
    states: Any = sys.modules["torch.distributed.fsdp._fully_shard._fsdp_state"]
    return bool(states._get_module_fsdp_state(unit.modules[0])._modules_to_run_forward)


def is_initialized(module: Any) -> bool:
    """Check whether torch has initialized the state of a sharded module, as its first forward does."""
    return module._get_fsdp_state()._is_root is not None


def unshard_handle() -> Any:
    """Return what `unshard(async_op=True)` returns, with a `wait()` that does nothing."""
    return sys.modules["torch.distributed.fsdp._fully_shard._fully_shard"].UnshardHandle()  # type: ignore[attr-defined]


def holders_of_parameter(p: Any) -> list[tuple[Any, str]]:
    """Return the modules that hold a sharded parameter, each with its name there."""
    info = p._module_info
    return [(info.module, info.param_name), *zip(info.shared_modules, info.shared_param_names)]


def name_of_unit(unit: Any) -> str:
    """Return the name of the module, in the model, whose parameters `fully_shard` communicates together."""
    return unit._module_fqn or "the root"


def halves_of_gather(unit: Any) -> tuple[Any, Any] | None:
    """Return the groups that gather shards in two steps, if a unit keeps its parameters on a part of the ranks.

    The second one is the part. The first has the ranks with the same place in their parts.
    """
    after = unit.post_forward_mesh_info
    if after is None or after is unit.mesh_info or after.mesh == unit.mesh_info.mesh:
        return None
    return after.replicate_process_group, after.shard_process_group


def without_overrides(fn: Any, *args: Any) -> Any:
    """Call a function without torch's function modes."""
    with torch._C.DisableTorchFunction():
        return fn(*args)


HigherOrderOperator: Any = torch._ops.HigherOrderOperator
"""The class of operators that have functions as arguments, e.g. control flow."""

OpOverload: Any = torch._ops.OpOverload
OpOverloadPacket: Any = torch._ops.OpOverloadPacket
"""The classes of `torch.ops`: an operator for certain argument types, and all operators of the same name."""


# -- frames of torch's own Python -------------------------------------------------------------------------------------
# torch does not pass some values as arguments, but stores them in local variables. Each function below finds such a
# value in the callers' frames. Each has a test, which fails if a version of torch changes these variables.
def l1_loss_weight() -> Any:
    """Return the `weight` of the running call of `l1_loss`, because torch does not pass it to overrides."""
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
    """Return the class of the module that is currently searching for the node of a `register_backward_hook` hook."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CALLS_HOOKS:
            return type(frame.f_locals.get("self")).__name__
        frame = frame.f_back
    return None


def parameter_being_converted(is_users: Callable[[str], bool]) -> Any:
    """Return the parameter that `module.to(…)` has converted, if that method is the caller, otherwise None.

    `is_users` checks whether a file contains user code, which may be the caller too.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code is not torch.nn.Module._apply.__code__:
        frame = None if is_users(frame.f_code.co_filename) else frame.f_back
    return None if frame is None else frame.f_locals.get("param_applied")


# The functions of torch that check values of distributions and raise an error if the values are wrong.
_VALUE_CHECKS = {
    ("distribution.py", "__init__"), ("distribution.py", "_validate_sample"), ("uniform.py", "__init__"),
    ("geometric.py", "__init__"),
}  # fmt: skip
_DISTRIBUTIONS = TORCH_FOLDER + "distributions"
_CONSTRAINTS = os.path.join(_DISTRIBUTIONS, "constraints.py")
_ASKS = "_all_true_or_runtime_assert"  # the function that the checks call since torch 2.15


def distribution_that_checks(is_ours: Callable[[str], bool]) -> str | None:
    """Return the class of the distribution that is currently checking a value (`validate_args`), or None.

    Frames of thunder's files (for which `is_ours` is true) are skipped.
    """
    frame: Any = sys._getframe(1)
    while is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    # Constraints call other constraints.
    while frame.f_code.co_filename == _CONSTRAINTS or frame.f_code.co_name == _ASKS:
        frame = frame.f_back
    folder, file = os.path.split(frame.f_code.co_filename)
    if folder != _DISTRIBUTIONS or (file, frame.f_code.co_name) not in _VALUE_CHECKS:
        return None
    return type(frame.f_locals.get("self")).__name__


# -- DistributedDataParallel ------------------------------------------------------------------------------------------
def broadcasts_buffers(ddp: Any) -> bool:
    """Check whether a `DistributedDataParallel` module has buffers that its forward broadcasts."""
    wanted = ddp.forward_sync_buffers if hasattr(ddp, "forward_sync_buffers") else ddp.broadcast_buffers
    return bool(wanted) and len(ddp.modules_buffers) > 0


def has_builtin_hook(ddp: Any) -> bool:
    """Check whether a communication hook of C++ is registered, which leaves no trace in Python."""
    return bool(vars(ddp)["logger"]._get_ddp_logging_data().strs_map.get("comm_hook"))


def fake_store() -> Any:
    """Return a store for process groups of the backend "fake", in which nothing communicates, and register it."""
    # Imported by name at run time: it loads what torch's own tests need.
    return importlib.import_module("torch.testing._internal.distributed.fake_pg").FakeStore()


def timeout_of_group() -> float | None:
    """Return the seconds after which collectives of the default process group fail, or None if it is not known."""
    import torch.distributed.distributed_c10d as c10d

    group: Any = c10d._get_default_group()
    try:
        backends = [group._get_backend(device) for device in group._device_types]
        return min(backend.options._timeout.total_seconds() for backend in backends)
    except (AttributeError, RuntimeError, ValueError):
        return None


def named_as_constructed(ddp: Any) -> bool:
    """Check whether a module has the parameters that it had when DDP was constructed, the same objects."""
    named = [p for name, p in ddp.module.named_parameters() if name not in ddp.parameters_to_ignore]
    known = ddp._module_parameters
    return len(named) == len(known) and all(p is other for p, other in zip(named, known))


def reduced_parameters(ddp: Any) -> list[torch.Tensor] | None:
    """Return the parameters whose gradients DDP averages: those that required grad when it was constructed.

    Return None if a parameter has been frozen or unfrozen since, which DDP does not notice.
    """
    found = [p for p in ddp._module_parameters if p.requires_grad]
    size = sum(p.numel() * p.element_size() for p in found)
    facts = vars(ddp)["logger"]._get_ddp_logging_data().ints_map
    constructed = facts.get("num_parameter_tensors"), facts.get("total_parameter_size_bytes")
    return found if constructed == (len(found), size) else None


def formed_buckets(ddp: Any) -> list[list[int]]:
    """Return the buckets that DDP has formed after its first step: the positions of its trained parameters."""
    ddp.logger.set_runtime_stats_and_log()
    text = ddp.logger._get_ddp_logging_data().strs_map.get("rebuilt_per_bucket_param_indices")
    if text:
        return [[int(i) for i in bucket.split()] for bucket in text.split(",")]
    position = {id(p): i for i, p in enumerate(p for p in ddp._module_parameters if p.requires_grad)}
    return [[position[id(p)] for p in bucket.parameters()] for bucket in ddp.reducer._get_zeros_like_grad_buckets()]


def buckets_of_gradients(ddp: Any, parameters: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Return the buckets in which DDP reduces gradients from its second step on: lists of parameters.

    `parameters` are in the order in which gradients become ready, or with `find_unused_parameters` in the module's.
    """
    first = torch.distributed._DEFAULT_FIRST_BUCKET_BYTES if ddp.bucket_bytes_cap_default else ddp.bucket_bytes_cap
    limits = list(ddp.bucket_bytes_cap_list or (first, ddp.bucket_bytes_cap))
    buckets, _ = torch.distributed._compute_bucket_assignment_by_size(list(parameters), limits)
    found = [[parameters[i] for i in bucket] for bucket in buckets]
    return found[::-1] if ddp.find_unused_parameters else found
