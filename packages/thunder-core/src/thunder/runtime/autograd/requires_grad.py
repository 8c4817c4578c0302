# SPDX-License-Identifier: Apache-2.0
"""Programs that change `requires_grad` of their inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["switching_requires_grad"]


def switching_requires_grad(run: Callable[..., Any], on: Sequence[int], off: Sequence[int]) -> Callable[..., Any]:
    """Return `run`, which sets `requires_grad` of the inputs at the positions `on`, and unsets it at `off`.

    The results depend on all of these inputs as autograd sees it. If `run` raises, it has changed nothing.
    """

    @functools.wraps(run)
    def call(*inputs: Any) -> Any:
        for i in on:
            inputs[i].requires_grad_()
        try:
            results = run(*inputs)
        except BaseException:
            for i in on:
                inputs[i].requires_grad_(False)
            raise
        for i in off:
            inputs[i].requires_grad_(False)
        return results

    return call
