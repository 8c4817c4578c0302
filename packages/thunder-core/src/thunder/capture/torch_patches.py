# SPDX-License-Identifier: Apache-2.0
"""Replacements of torch functions that torch's function overrides do not intercept, while a program is traced.

A replacement calls the original function of torch unless the traced program calls it. Other threads, thunder and torch
itself therefore see no change.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

import torch

from thunder.capture.base.fallback import fall_back
from thunder.capture.base.substitutions import Substitutions
from thunder.capture.base.tracing_mode import TracingMode
from thunder.capture.dispatch.builtin_overrides import CONVERSIONS, functions_replaced
from thunder.capture.dispatch.collectives import replaced_collectives
from thunder.capture.dispatch.dtensor_methods import replaced_dtensor_methods
from thunder.capture.dispatch.initializers import truncated_normal
from thunder.capture.dispatch.numpy_calls import replaced_functions
from thunder.capture.dispatch.override_queries import override_queries
from thunder.capture.dispatch.process_groups import replaced_methods
from thunder.capture.dispatch.scalars import number_checks
from thunder.capture.dispatch.subclasses import as_subclass
from thunder.capture.higher_order import function_transforms
from thunder.capture.higher_order.branching import cond_traced, refuse_control_flow
from thunder.capture.higher_order.checkpointing import checkpoint_traced
from thunder.capture.higher_order.custom_function import apply_traced
from thunder.capture.higher_order.data_parallel import data_parallel_forward
from thunder.capture.higher_order.flex_attention import flex_attention_traced, kernel_options
from thunder.capture.higher_order.fully_sharded import (
    forward_ends,
    gather_parameters,
    reshard,
    root_forward_begins,
    set_gradient_sync,
    unshard,
)
from thunder.capture.higher_order.gradient_hooks import module_hook_class
from thunder.capture.higher_order.scanning import scan_traced
from thunder.capture.numbers.overrides import BUILTINS
from thunder.core.state import state
from thunder.core.symint.numbers import SymbolicNumber
from thunder.torch import private

__all__ = ["replace_torch_functions"]


def _tracer() -> Any:
    """Return the tracer of the running program."""
    return state.frontend


def _here(ours: Callable[..., Any], original: Callable[..., Any]) -> Any:
    """Return a function that calls `ours` for the traced program, and `original` for all other callers."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return (ours if state.frontend is not None else original)(*args, **kwargs)

    return call


class _CompilingHere:
    """Replaces `torch.compiler`'s flag: true on the tracing thread.

    For optimizers it is false: their code for compilers computes with other roundings than eager mode. Sharded modules
    (`fully_shard`) refuse to initialize themselves where it is true.
    """

    def __init__(self, thread: int, before: Any):
        self.before = before
        self.thread = thread

    def __bool__(self) -> bool:
        if threading.get_ident() != self.thread:
            return bool(self.before)
        asked_by = sys._getframe(2).f_globals.get("__name__", "")  # the frame between is `is_compiling`
        return not asked_by.startswith(("torch.optim.", "torch.distributed.fsdp."))


def _is_compiling() -> bool:
    """Replace the code of `torch.compiler.is_compiling`, whose globals contain the flag: return a plain boolean."""
    return bool(_is_compiling_flag)  # type: ignore[name-defined]  # noqa: F821


def _uncompiled(model: Any = None, **options: Any) -> Any:
    """Replace `torch.compile` in a traced program: return the function uncompiled."""
    return (lambda model: model) if model is None else model


def _code_of_apply() -> types.CodeType:
    __class__ = torch.autograd.Function  # a free variable, as in the method of torch, which calls `super()`

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return _thunder_apply(cls, __class__, args, kwargs)  # type: ignore[name-defined]  # noqa: F821

    return apply.__code__


# `torch.autograd.Function.apply`. If it is written in Python, a copy of it for callers outside of the program.
_APPLY: Any = next(c.__dict__["apply"] for c in torch.autograd.Function.__mro__ if "apply" in c.__dict__)
_METHOD: Any = getattr(_APPLY, "__func__", None)
_IS_PYTHON = isinstance(_METHOD, types.FunctionType) and _METHOD.__code__.co_freevars == ("__class__",)
_BY_TORCH: Any = (
    types.FunctionType(_METHOD.__code__, _METHOD.__globals__, "apply", None, _METHOD.__closure__)
    if _IS_PYTHON
    else None
)


def _custom_apply() -> list[tuple[Any, str, Any]]:
    """Return replacements of `torch.autograd.Function.apply` that keep the user's gradient function.

    The code of the method is replaced, because programs store the method (`relu = MyReLU.apply`). In some versions of
    torch the method is in C.
    """

    def traced(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return apply_traced(_tracer(), cls, args, kwargs)

    if not _IS_PYTHON:
        original = lambda cls, *args, **kwargs: _APPLY.__get__(None, cls)(*args, **kwargs)  # noqa: E731
        return [(torch.autograd.Function, "apply", classmethod(_here(traced, original)))]
    call = _here(traced, _BY_TORCH)
    module = sys.modules[_METHOD.__module__]
    found: list[tuple[Any, str, Any]] = [
        (module, "_thunder_apply", lambda cls, _, args, kwargs: call(cls, *args, **kwargs)),
        (_METHOD, "__code__", _code_of_apply()),
    ]
    return found


def _left_to_python() -> list[tuple[Any, str, Any]]:
    """Return replacements that fall back, for functions that no trace can express."""

    def left(name: str, fn: Any) -> Any:
        return _here(lambda *args, **kwargs: fall_back(f"the program calls {name}"), fn)

    names: list[tuple[Any, str]] = [
        (torch, "manual_seed"), (torch, "seed"), (torch, "set_rng_state"), (torch, "set_printoptions"),
        (torch.func, "linearize"), (torch.utils.data.DataLoader, "__iter__"), (torch.utils.data, "random_split"),
        (torch.utils.data.RandomSampler, "__iter__"),
    ]  # fmt: skip
    lbfgs = torch.optim.LBFGS
    search = "LBFGS.step, which calls its closure until values of tensors end the search"
    return [
        (lbfgs, "step", left(search, lbfgs.step)),
        *[
            (owner, name, left(f"{owner.__name__}.{name}", getattr(owner, name)))
            for owner, name in names
            if hasattr(owner, name)
        ],
    ]


def _checkpointed() -> list[tuple[Any, str, Any]]:
    """Return replacements of `torch.utils.checkpoint.checkpoint`, which programs may have imported under other names.

    torch wraps `checkpoint` in a function that looks up the function to run at each call. This lookup, a private part
    of torch, is replaced too. Without it only calls through the module would be intercepted.
    """
    module = sys.modules["torch.utils.checkpoint"]
    original = module.checkpoint

    def traced(*args: Any, **kwargs: Any) -> Any:
        return checkpoint_traced(_tracer(), *args, **kwargs)

    found: list[tuple[Any, str, Any]] = [(module, "checkpoint", _here(traced, original))]
    inner = getattr(original, "__wrapped__", None)
    if inner is not None:
        found.append((inner, "__dynamo_disable", _here(traced, inner.__dict__.get("__dynamo_disable", inner))))
    return found


def _distributed() -> list[tuple[Any, str, Any]]:
    """Return replacements for modules that communicate with other processes around their forward.

    A program that calls a module whose parameters FSDP 1 gathers falls back. The modules inside it are compiled.
    """
    parallel = torch.nn.parallel.DistributedDataParallel

    def left(*args: Any, **kwargs: Any) -> Any:
        return fall_back("the program calls a module whose parameters are sharded (FSDP 1)")

    def replicated(*args: Any, **kwargs: Any) -> Any:
        return data_parallel_forward(_tracer(), *args, **kwargs)

    found = [(owner, name, _here(left, getattr(owner, name))) for owner, name in private.sharding()]
    return [*found, *_fully_sharded(), (parallel, "forward", _here(replicated, parallel.forward))]


def _fully_sharded() -> list[tuple[Any, str, Any]]:
    """Return replacements of what the hooks of modules sharded by `fully_shard` call."""
    classes = private.fully_shard()
    if classes is None:
        return []
    replaced: list[tuple[Any, str, Any]] = [
        (classes.state, "_root_pre_forward", lambda *args: root_forward_begins(_tracer(), *args)),
        (classes.state, "_register_pre_backward_hook", lambda state, output: output),
        (classes.unit, "pre_forward", lambda *args: gather_parameters(_tracer(), *args)),
        (classes.unit, "post_forward", lambda *args: forward_ends(_tracer(), *args)),
        (classes.unit, "_prefetch_unshard", lambda *args: None),
        (classes.module, "set_requires_gradient_sync", lambda *args, **kw: set_gradient_sync(_tracer(), *args, **kw)),
        (classes.module, "unshard", lambda *args, **kwargs: unshard(_tracer(), *args, **kwargs)),
        (classes.module, "reshard", lambda *args: reshard(_tracer(), *args)),
        *[(classes.module, name, functools.partial(_changed_by_hand, name)) for name in private.settings_of_sharded()],
    ]
    return [
        (owner, name, staticmethod(_here(ours, getattr(owner, name))) if name == "_prefetch_unshard" else
         functools.wraps(getattr(owner, name))(_here(ours, getattr(owner, name))))
        for owner, name, ours in replaced
    ]  # fmt: skip


def _changed_by_hand(name: str, *args: Any, **kwargs: Any) -> Any:
    return fall_back(f"the program calls {name} of a sharded module (fully_shard)")


def _function_transforms() -> list[tuple[Any, str, Any]]:
    """Return replacements of the transforms of `torch.func`, and of the torch functions that implement them.

    Programs may have imported transforms, or results of transforms, under other names. Calls of these are intercepted
    in the implementing functions.
    """
    public = function_transforms.public
    found = [(torch.func, name, ours) for name, ours in public.items()]
    found += [(torch, name, ours) for name, ours in public.items() if name == "vmap"]
    found += [
        (module, name, function_transforms.implementations[ours])
        for module, name, ours in private.function_transforms()
    ]
    return [(owner, name, _here(ours, getattr(owner, name))) for owner, name, ours in found]


def _active_transforms() -> list[tuple[Any, str, Any]]:
    """Return a replacement of the query whether a transform of `torch.func` is active: it also sees traced ones."""
    name = "_are_functorch_transforms_active"
    original = getattr(torch._C, name, None)
    if original is None:
        return []

    def ours() -> bool:
        return any(part.is_transform for part in _tracer().parts) or original()

    return [(torch._C, name, functools.wraps(original)(_here(ours, original)))]


def _control_flow() -> list[tuple[Any, str, Any]]:
    """Return replacements of `torch.cond` and of the private function that torch's higher-order operators call."""
    utils = cast("Any", sys.modules.get("torch._higher_order_ops.utils"))
    found: list[tuple[Any, str, Any]] = [
        (torch, "cond", _here(lambda *args, **kwargs: cond_traced(_tracer(), *args, **kwargs), torch.cond))
    ]
    if hasattr(utils, "_hop_compile_and_call"):
        found.append((utils, "_hop_compile_and_call", refuse_control_flow(utils._hop_compile_and_call)))
    scans: Any = sys.modules.get("torch._higher_order_ops.associative_scan")
    if hasattr(scans, "generic_associative_scan"):
        found.append((scans, "generic_associative_scan", _here(_scan, scans.generic_associative_scan)))
    return found


def _scan(combine: Any, leaves: Any, dim: int = 0, additional_inputs: Any = ()) -> Any:
    """Replace `generic_associative_scan`, which `associative_scan` calls with the dimension moved to the front."""
    with TracingMode():
        return list(scan_traced(_tracer(), combine, leaves, additional_inputs))


def _mask_detectors() -> list[tuple[Any, str, Any]]:
    """Return replacements of the functions that check whether a mask's values are causal.

    Their result is only a hint. Without the hint, attention uses the mask.
    """

    def without_looking(mask: Any, is_causal: bool | None = None, *args: Any, **kwargs: Any) -> bool:
        return is_causal is True

    return [(module, name, _here(without_looking, getattr(module, name))) for module, name in private.mask_detectors()]


def _flex_attention() -> list[tuple[Any, str, Any]]:
    """Return replacements that make flex attention an operation with the traced functions of scores and masks."""
    module = private.flex_attention()
    if module is None:
        return []

    def traced(*args: Any, **kwargs: Any) -> Any:
        return flex_attention_traced(_tracer(), *args, **kwargs)

    # torch's vmap needs another operation if a batched index selects from a tensor; thunder's vmap does not.
    modes = private.modes_that_replace_indexing()
    replaced = [(module, "flex_attention_hop", _here(traced, module.flex_attention_hop))]
    replaced += [(owner, mode, _here(nullcontext, getattr(owner, mode))) for owner, mode in modes]
    options = module._apply_kernel_options
    replaced.append((module, "_apply_kernel_options", _here(kernel_options(options), options)))
    if hasattr(module, "_validate_device"):  # it checks for devices whose kernels support gradients
        replaced.append((module, "_validate_device", _here(lambda *tensors: None, module._validate_device)))
    return replaced


def _masks_of_unknown_size() -> list[tuple[Any, str, Any]]:
    """Return a replacement of `torch.nn.attention.bias.CausalBias.__new__` that accepts symbolic sizes.

    A `CausalBias` is a tensor with the mask's shape and no data. torch would convert symbolic sizes to values, so with
    symbolic sizes the tensor is created without a shape.
    """
    found: Any = sys.modules.get("torch.nn.attention.bias")
    if found is None:
        return []

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        symbolic = any(isinstance(x, SymbolicNumber) for x in (*args, *kwargs.values()))
        return torch.Tensor.__new__(cls) if symbolic else torch.Tensor.__new__(cls, *args, **kwargs)

    return [(found.CausalBias, "__new__", new)]


def _schedulers() -> list[tuple[Any, str, Any]]:
    """Return a replacement of a scheduler's method that looks its step count up in a dict, which needs its value.

    The step count is compared with the dict's keys instead, so that it can be an input.
    """
    cls = torch.optim.lr_scheduler.MultiStepLR
    original = cls.get_lr

    def get_lr(scheduler: Any) -> Any:
        now = scheduler.last_epoch
        if not isinstance(now, SymbolicNumber) or any(now == milestone for milestone in scheduler.milestones):
            return original(scheduler)
        rates = [group["lr"] for group in scheduler.optimizer.param_groups]
        return [rate.clone() if isinstance(rate, torch.Tensor) else rate for rate in rates]

    return [(cls, "get_lr", _here(get_lr, original))]


def _adafactor() -> list[tuple[Any, str, Any]]:
    """Return replacements of `max` and `min` in Adafactor, which computes its rates from norms of tensors."""
    module = sys.modules.get("torch.optim._adafactor")
    return [] if module is None else [(module, name, BUILTINS[name]) for name in ("max", "min")]


def _initializers() -> list[tuple[Any, str, Any]]:
    """Return a replacement of `trunc_normal_` as one operation, because it draws again until values are in range."""
    name = "_no_grad_trunc_normal_"
    original = getattr(torch.nn.init, name, None)
    if original is None:
        return []

    def whole(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return truncated_normal(_tracer(), original, tensor, args, kwargs)

    return [(torch.nn.init, name, _here(whole, original))]


def replace_torch_functions(substitutions: Substitutions, *, numbers: bool = False) -> None:
    """Replace torch functions that overrides do not intercept, until the board is restored.

    With `numbers`, functions of Python that accept data-dependent numbers are replaced, too. The replacements do not
    reference a tracer, because modules imported meanwhile may keep them.
    """
    torch.overrides.get_overridable_functions()  # torch computes it once, and would remember the replacements
    flag = torch.compiler._is_compiling_flag
    owners: list[tuple[Any, str, Any]] = [
        (torch.compiler, "_is_compiling_flag", _CompilingHere(threading.get_ident(), flag)),
        (torch.compiler.is_compiling, "__code__", _is_compiling.__code__),
        # torch does not pass this method to overrides.
        (torch.Tensor, "as_subclass", _here(lambda *args: as_subclass(_tracer(), *args), torch.Tensor.as_subclass)),
        (torch, "compile", _here(_uncompiled, torch.compile)),
        (torch.nn.modules.module, "BackwardHook", module_hook_class()),
        # The cumulative average of batch norm converts the number of batches with `float`.
        (torch.nn.modules.batchnorm, "float", CONVERSIONS["float"]),
        # ReduceLROnPlateau converts the loss.
        (torch.optim.lr_scheduler, "float", CONVERSIONS["float"]),
    ]
    owners += (
        _custom_apply()
        + _left_to_python()
        + _function_transforms()
        + _active_transforms()
        + _control_flow()
        + _distributed()
        + _checkpointed()
    )
    owners += (
        override_queries()
        + number_checks()
        + _mask_detectors()
        + _flex_attention()
        + _initializers()
        + _schedulers()
        + _adafactor()
        + _masks_of_unknown_size()
    )
    owners += [
        (owner, name, _here(ours, getattr(owner, name)))
        for owner, name, ours in (*replaced_collectives(), *replaced_methods(), *replaced_functions())
    ]
    owners += replaced_dtensor_methods()
    owners += functions_replaced() if numbers else []
    for owner, name, replacement in owners:
        substitutions.set(owner, name, replacement)
    if "torch._dynamo" in sys.modules:  # otherwise nothing has been compiled by torch.compile
        # With this stance, callables made by `torch.compile` run their own Python, so that it is traced. Creating the
        # context already sets the stance, so the step that undoes it is pushed first.
        for owner, name in private.compile_stance():
            substitutions.set(owner, name, getattr(owner, name))
        substitutions.enter(torch.compiler.set_stance("force_eager"))
