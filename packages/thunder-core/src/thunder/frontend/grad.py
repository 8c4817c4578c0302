# SPDX-License-Identifier: Apache-2.0
"""`thunder.core.transforms.grad`: a jitted function's gradients as a list. (`thunder.grad` is in `functional.py`.)"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thunder.core.trace import Trace
from thunder.extend import Executor
from thunder.frontend.jit import JitFunction, jitted_of
from thunder.frontend.options import Options
from thunder.passes.autodiff import differentiate

__all__ = ["grad"]


def _gradients(trace: Trace, executors: Sequence[Executor]) -> Trace:
    out = differentiate(trace, executors)
    out.info["inputs_at_first_use"] = True  # backward reads some inputs far from the top of the program
    return out


def grad(fn: Callable[..., Any]) -> JitFunction:
    """Return a function that returns a list of the gradients of `fn` for each floating point tensor argument, in order.

    The cotangent of an output that is not a scalar is a tensor of ones. `fn` is a jitted function or a plain function.
    """
    jitted = jitted_of(fn)
    if not isinstance(jitted, JitFunction):
        jitted = JitFunction(fn, Options())
    return jitted.with_transform(_gradients)
