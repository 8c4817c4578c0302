# SPDX-License-Identifier: Apache-2.0
"""A program that times pending candidates before its third call (`measured=True`, `extend/measuring.py`).

The first call compiles, and backward programs are compiled when gradients first arrive. The third call begins when all
of this is done, no activations of an earlier step are alive, and CUDA graphs are not captured yet. Candidates run in
the stream of the call, behind the work that is already in its queue. Afterwards nothing of this remains in warm calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder.core.state import state
from thunder.extend.measuring import Measurements
from thunder.runtime.torch_private import function_transform_active
from thunder.torch.private import DeviceContext, mode_stacks

__all__ = ["MeasuringRun"]

_CALLS = 2  # the calls before candidates are timed


class MeasuringRun:
    """The `run` of a specialization until nothing is pending. `put` replaces it by the program itself."""

    def __init__(self, run: Callable[..., Any], measurements: Measurements, put: Callable[[Callable[..., Any]], None]):
        self._run = run
        self._measurements = measurements
        self._put = put
        self._calls = 0

    def __call__(self, *inputs: Any) -> Any:
        self._calls += 1
        if self._calls > _CALLS and _is_plain():
            self._measurements.measure_pending()
            if not self._measurements.pending:
                self._put(self._run)
        return self._run(*inputs)


def _is_plain() -> bool:
    """Check that no tracer, mode or transform of torch would see the candidates."""
    functions, dispatch = mode_stacks()
    devices = all(isinstance(mode, DeviceContext) for mode in functions)  # torch.set_default_device
    return state.frontend is None and devices and not dispatch and not function_transform_active()
