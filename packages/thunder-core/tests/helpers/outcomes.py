# SPDX-License-Identifier: Apache-2.0
"""What calls come to, for tests: results compared, errors as results, cache hits counted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch

import thunder


def counts(jitted: Any) -> tuple[int, int]:
    """Return how often a jitted function was compiled, and how often a cached program served it."""
    return thunder.cache_misses(jitted), thunder.cache_hits(jitted)


def result_or_error(fn: Callable[..., Any], *args: Any) -> Any:
    """Return the result of a call, or the type of the exception that it raises."""
    try:
        return fn(*args)
    except Exception as error:
        return type(error)


def message_and_notes(error: BaseException) -> str:
    """Return an error's message, and its notes, which name the line of user code and the module."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def rand(*shape: int) -> torch.Tensor:
    """Return float64 numbers of the normal distribution."""
    return torch.randn(*shape, dtype=torch.float64)


def same(actual: Any, expected: Any) -> None:
    """Compare trees of float64 tensors closely; NaN equals NaN."""
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-10, equal_nan=True)


def in_threads(work: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> None:
    """Call `work` with each of these arguments in a thread of its own, at once, and wait for all."""
    threads = [threading.Thread(target=work, args=args) for args in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
