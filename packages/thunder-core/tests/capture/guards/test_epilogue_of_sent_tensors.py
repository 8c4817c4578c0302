# SPDX-License-Identifier: Apache-2.0
"""Tensors that a program sends away, to queues, generators, threads and context variables, are those of eager mode."""

from __future__ import annotations

import contextvars
import queue
import threading
from typing import Any

import pytest
import torch

import thunder
from thunder.core.errors import TracingError


def _receive(found: list[Any]) -> Any:
    while True:
        last = yield
        found.append(type(last))


QUEUE: queue.Queue[Any] = queue.Queue()
LOCAL = threading.local()
RECEIVED: list[type] = []
RECEIVER = _receive(RECEIVED)
next(RECEIVER)


def test_tensors_that_are_sent_away() -> None:
    """A queue, a generator and a threading.local receive the tensors that eager gives them."""
    received: list[Any] = []
    for keep in (lambda x: QUEUE.put(x), lambda x: RECEIVER.send(x), lambda x: setattr(LOCAL, "kept", x)):

        def f(x: Any, keep: Any = keep) -> Any:
            keep(x * 2)
            return x

        jitted = thunder.jit(f)
        for n in (1.0, 2.0, 3.0):
            jitted(torch.full((2,), n))
    while not QUEUE.empty():
        received.append(QUEUE.get())
    torch.testing.assert_close(received, [torch.full((2,), n) for n in (2.0, 4.0, 6.0)])
    assert [torch.Tensor] * 3 == RECEIVED
    torch.testing.assert_close(LOCAL.kept, torch.full((2,), 6.0))
    LOCAL.__dict__.clear()


KEPT: contextvars.ContextVar[Any] = contextvars.ContextVar("KEPT")


def test_tensors_in_context_variables() -> None:
    """One that was never set before the call, and one that was."""

    def f(x: Any) -> Any:
        before = KEPT.get(None)
        KEPT.set(x * 2)
        return KEPT.get() + (0 if before is None else 1)

    jitted = thunder.jit(f)
    context = contextvars.copy_context()
    for k in range(3):
        x = torch.ones(2) + k
        torch.testing.assert_close(context.run(jitted, x), x * 2 + min(k, 1))
        torch.testing.assert_close(context.run(KEPT.get), x * 2)
    with pytest.raises(KeyError):
        contextvars.copy_context().run(lambda: KEPT.get(None) or {}["nothing"])


def test_a_failed_trace_leaves_context_variables() -> None:
    """As they were: unset."""

    def f(x: Any) -> Any:
        KEPT.set(x)
        return x if x.sum() > 0 else -x

    with pytest.raises(TracingError):
        thunder.trace()(f, torch.ones(2))
    assert KEPT.get(None) is None
