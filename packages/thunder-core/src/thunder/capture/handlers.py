# SPDX-License-Identifier: Apache-2.0
"""Import of all handlers of torch functions, and construction of a tracer that uses them.

Each module of `dispatch/` and `higher_order/` registers its own handlers on import (`dispatch/registry.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from thunder.capture.dispatch import (  # noqa: F401
    attention,
    conversions,
    data_dependent,
    deterministic,
    draws,
    factories,
    foreach,
    functional,
    gradient_state,
    indexing,
    initializers,
    metadata,
    numpy_calls,
    opaque_metadata,
    opaque_operations,
    packed_sequences,
    reshaping,
    rnn,
    scalars,
    writing,
)
from thunder.capture.dispatch.dispatch import call_torch_function
from thunder.capture.higher_order import (  # noqa: F401
    branching,
    gradient_hooks,
    inner_gradients,
    leaf_gradients,
    scanning,
)
from thunder.capture.tensors.tracer import Tracer
from thunder.extend import Executor

__all__ = ["make_tracer"]


def make_tracer(name: str, executors: Sequence[Executor] = (), *, lift: bool = True) -> Tracer:
    """Return a tracer with all handlers. Unless `lift`, the tracer accepts only arguments as tensor inputs."""
    return Tracer(name, call_torch_function, executors, lift=lift)
