# SPDX-License-Identifier: Apache-2.0
"""`torch.utils.checkpoint` inside a traced program: its operations become a region that backward computes again."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import noop_context_fn

from thunder.capture.base.fallback import fall_back
from thunder.capture.base.user_lines import user_line
from thunder.capture.tensors.tracer import Tracer, needs_grad
from thunder.passes.checkpoint import region
from thunder.torch.private import TorchDispatchMode

__all__ = ["checkpoint_traced"]


def checkpoint_traced(
    tracer: Tracer,
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: Any = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """Call `torch.utils.checkpoint.checkpoint(function, *args, **kwargs)` in a traced program.

    Both variants of `use_reentrant` compute the region again. They differ only in the limits of torch's reentrant
    variant, e.g. it returns no gradients if no input requires grad.
    """
    if use_reentrant is None:
        warnings.warn("torch.utils.checkpoint: the use_reentrant parameter should be passed explicitly", stacklevel=4)
        use_reentrant = True
    if use_reentrant and kwargs:
        raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
    if context_fn is not noop_context_fn:
        if use_reentrant:
            raise ValueError("Passing `context_fn` or `debug` is only supported when use_reentrant=False.")
        _check_contexts(context_fn)
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    if use_reentrant and not any(isinstance(a, torch.Tensor) and needs_grad(a) for a in args):
        warnings.warn("None of the inputs have requires_grad=True. Gradients will be None", stacklevel=4)
        with torch.no_grad():
            return function(*args, **kwargs)
    source = user_line()
    try:
        with tracer.scope_of_part() as operations:
            return function(*args, **kwargs)
    finally:
        if operations:
            tracer.has_regions = True
            tracer.trace.record(region(operations, same_random_numbers=preserve_rng_state, source=source))


def _check_contexts(context_fn: Callable[[], Any]) -> None:
    """Fall back unless the contexts only choose which values to save, because thunder makes this choice."""
    for context in context_fn():
        if not isinstance(context, TorchDispatchMode):
            fall_back(f"torch.utils.checkpoint enters the context {type(context).__name__} around its region")
