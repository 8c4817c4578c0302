# SPDX-License-Identifier: Apache-2.0
"""Functions of torch that no torch function override reaches, replaced while a program is traced.

A replacement asks whether the program that is traced calls it, and is torch's own function for everybody else: other
threads, and thunder and torch themselves.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch

from thunder.core.numbers import SymbolicNumber
from thunder.core.state import state
from thunder.frontend.checkpointing import checkpoint_traced
from thunder.frontend.conversions import CONVERSIONS, functions_replaced
from thunder.frontend.custom_function import apply_traced
from thunder.frontend.fallback import leave_to_python
from thunder.torch import private

__all__ = ["replaced_entry_points"]


def _tracer() -> Any:
    """Who traces the program that is running."""
    return state.frontend


class _CompilingHere:
    """Stands for `torch.compiler`'s flag: true on the thread that traces."""

    def __init__(self, thread: int, before: Any):
        self.before = before
        self.thread = thread

    def __bool__(self) -> bool:
        return threading.get_ident() == self.thread or bool(self.before)

    # Programs treat what `torch.compiler.is_compiling()` gives as the boolean that it is elsewhere.
    def __or__(self, other: Any) -> Any:
        return bool(self) | other

    def __and__(self, other: Any) -> Any:
        return bool(self) & other

    def __xor__(self, other: Any) -> Any:
        return bool(self) ^ other

    __ror__, __rand__, __rxor__ = __or__, __and__, __xor__

    def __eq__(self, other: object) -> bool:
        return bool(self) == other

    def __hash__(self) -> int:
        return hash(bool(self))

    def __index__(self) -> int:
        return int(bool(self))

    def __repr__(self) -> str:
        return repr(bool(self))


def _uncompiled(compile: Any) -> Any:
    """`torch.compile`, which in a traced program gives the function as it is."""

    def call(model: Any = None, **options: Any) -> Any:
        if state.frontend is None:
            return compile(model, **options)
        return (lambda model: model) if model is None else model

    return call


def _compiled_callables_unwrapped() -> Any:
    """Callables that `torch.compile` made run their own Python, so that it is traced."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()  # nobody has compiled anything
    return torch.compiler.set_stance("force_eager")


def _checkpointed() -> list[tuple[Any, str, Any]]:
    """`torch.utils.checkpoint.checkpoint`, which programs hold under names of their own.

    torch wraps it in a function that looks up, at each call, what to run: that is replaced too. (A private part of
    torch: without it only calls through its module are seen.)
    """
    module = sys.modules["torch.utils.checkpoint"]
    original = module.checkpoint

    def traced(*args: Any, **kwargs: Any) -> Any:
        return checkpoint_traced(_tracer(), *args, **kwargs)

    def here_or(fn: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return (traced if state.frontend is not None else fn)(*args, **kwargs)

        return call

    found: list[tuple[Any, str, Any]] = [(module, "checkpoint", here_or(original))]
    inner = getattr(original, "__wrapped__", None)
    if inner is not None:
        found.append((inner, "__dynamo_disable", here_or(inner.__dict__.get("__dynamo_disable", inner))))
    return found


def _sharded() -> list[tuple[Any, str, Any]]:
    """What FSDP calls before a module runs: it gathers parameters in ways that no trace can say."""

    def left_to_python(gather: Any) -> Any:
        def call(sharded: Any, *args: Any, **kwargs: Any) -> Any:
            if state.frontend is None:
                return gather(sharded, *args, **kwargs)
            private.forward_not_begun(sharded)
            return leave_to_python("the program calls a module whose parameters are sharded (FSDP)")

        return call

    return [(owner, name, left_to_python(getattr(owner, name))) for owner, name in private.sharding()]


def _function_transforms() -> list[tuple[Any, str, Any]]:
    """The transforms of `torch.func`, and those of torch's functions that do their work.

    Programs hold transforms, and functions that were made by them, under names of their own: these are seen through the
    latter.
    """
    from thunder.frontend import functional

    def here_or(fn: Any, ours: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return (ours if state.frontend is not None else fn)(*args, **kwargs)

        return call

    public = ("grad", "grad_and_value", "vjp", "jvp", "vmap", "jacrev", "jacfwd", "hessian")
    found = [(torch.func, name, getattr(functional, name)) for name in public] + [(torch, "vmap", functional.vmap)]
    found += [(module, name, getattr(functional, ours)) for module, name, ours in private.function_transforms()]
    return [(owner, name, here_or(getattr(owner, name), ours)) for owner, name, ours in found]


def _control_flow() -> list[tuple[Any, str, Any]]:
    """`torch.cond`, and what torch's operations with functions in them have in common (a private part of torch)."""
    from thunder.frontend.branching import cond_traced, refuse_control_flow

    cond, utils = torch.cond, cast("Any", sys.modules.get("torch._higher_order_ops.utils"))

    def call(*args: Any, **kwargs: Any) -> Any:
        return cond_traced(_tracer(), *args, **kwargs) if state.frontend is not None else cond(*args, **kwargs)

    found: list[tuple[Any, str, Any]] = [(torch, "cond", call)]
    if hasattr(utils, "_hop_compile_and_call"):
        found.append((utils, "_hop_compile_and_call", refuse_control_flow(utils._hop_compile_and_call)))
    return found


def _mask_detectors() -> list[tuple[Any, str, Any]]:
    """What looks whether a mask's values are those of the causal mask, which is a hint: without it the mask is used."""

    def without_looking(fn: Any) -> Any:
        def call(mask: Any, is_causal: bool | None = None, *args: Any, **kwargs: Any) -> bool:
            return is_causal is True if state.frontend is not None else fn(mask, is_causal, *args, **kwargs)

        return call

    return [(module, name, without_looking(getattr(module, name))) for module, name in private.mask_detectors()]


def _flex_attention() -> list[tuple[Any, str, Any]]:
    """Flex attention as its mathematics, in which the user's functions of scores are seen."""
    found = private.flex_attention()
    if found is None:
        return []
    module, name, mathematics = found

    def here_or(original: Any, ours: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return (ours if state.frontend is not None else original)(*args, **kwargs)

        return call

    def indexing(original: Any) -> Any:
        # torch's vmap needs another operation for a tensor that is indexed by its examples, thunder's does not.
        return lambda: nullcontext() if state.frontend is not None else original()

    modes = [(owner, mode, indexing(getattr(owner, mode))) for owner, mode in private.modes_that_replace_indexing()]
    replaced = [(module, name, here_or(getattr(module, name), mathematics)), *modes]
    if hasattr(module, "_validate_device"):  # devices for which torch's kernels have gradients
        replaced.append((module, "_validate_device", here_or(module._validate_device, lambda *tensors: None)))
    return replaced


def _masks_of_unknown_size() -> list[tuple[Any, str, Any]]:
    """`torch.nn.attention.bias.CausalBias`, made with sizes that are symbolic.

    As a tensor it is as large as the mask that it says, with nothing in it. torch asks symbolic sizes for their values.
    """
    found: Any = sys.modules.get("torch.nn.attention.bias")
    if found is None:
        return []

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        symbolic = any(isinstance(x, SymbolicNumber) for x in (*args, *kwargs.values()))
        return torch.Tensor.__new__(cls) if symbolic else torch.Tensor.__new__(cls, *args, **kwargs)

    return [(found.CausalBias, "__new__", new)]


def _initializers() -> list[tuple[Any, str, Any]]:
    """`trunc_normal_`, which draws again until it likes what it has drawn: torch runs it whole."""
    from thunder.frontend.special import truncated_normal

    name = "_no_grad_trunc_normal_"
    original = getattr(torch.nn.init, name, None)
    if original is None:
        return []

    def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if state.frontend is None:
            return original(tensor, *args, **kwargs)
        return truncated_normal(_tracer(), original, tensor, args, kwargs)

    return [(torch.nn.init, name, call)]


@contextmanager
def replaced_entry_points(*, numbers: bool = False) -> Iterator[None]:
    """Within it, what torch's overrides do not reach goes to the tracer of the program that calls it.

    With `numbers` functions of Python's do too, which the program gives numbers that only running tells.

    The replacements hold no tracer: what is imported meanwhile may keep them.
    """
    from thunder.frontend.gradient_hooks import module_hook_class
    from thunder.frontend.unknown import number_checks

    function = torch.autograd.Function
    apply = next(c.__dict__["apply"] for c in function.__mro__ if "apply" in c.__dict__)

    def original(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return apply.__get__(None, cls)(*args, **kwargs)  # a class method, in some versions of torch one written in C

    def traced_apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if state.frontend is None:
            return original(cls, *args, **kwargs)
        return apply_traced(_tracer(), cls, args, kwargs)

    def left_to_python(name: str, fn: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if state.frontend is None:
                return fn(*args, **kwargs)
            return leave_to_python(f"the program calls {name}")

        return call

    flag = torch.compiler._is_compiling_flag
    owners: list[tuple[Any, str, Any]] = [
        (function, "apply", classmethod(traced_apply)),
        (torch.compiler, "_is_compiling_flag", _CompilingHere(threading.get_ident(), flag)),
    ]
    linearize = getattr(torch.func, "linearize", None)
    if linearize is not None:
        owners.append((torch.func, "linearize", left_to_python("torch.func.linearize", linearize)))
    owners += _function_transforms()
    owners += _control_flow()
    owners.append((torch.nn.modules.module, "BackwardHook", module_hook_class()))
    owners.append((torch, "compile", _uncompiled(torch.compile)))
    # A cumulative average is made with the number of batches.
    owners.append((torch.nn.modules.batchnorm, "float", CONVERSIONS["float"]))
    seeds = ("manual_seed", "seed", "set_rng_state")
    owners += [(torch, name, left_to_python(f"torch.{name}", getattr(torch, name))) for name in seeds]
    owners += [
        (o, name, left_to_python("modules that FSDP shards", getattr(o, name))) for o, name in private.sharding()
    ]
    owners += _sharded() + _checkpointed() + number_checks() + _mask_detectors() + _flex_attention() + _initializers()
    owners += _masks_of_unknown_size()
    owners += functions_replaced() if numbers else []
    absent = object()
    before = [(owner, name, owner.__dict__.get(name, absent)) for owner, name, _ in owners]
    try:
        for owner, name, replacement in owners:
            setattr(owner, name, replacement)
        with _compiled_callables_unwrapped():
            yield
    finally:
        for owner, name, value in before:
            if value is absent:
                delattr(owner, name)  # inherited
            else:
                setattr(owner, name, value)
