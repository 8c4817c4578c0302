# SPDX-License-Identifier: Apache-2.0
"""The interface of executors that passes and plugins use. The classes that implement it are in `thunder.extend`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # importing symbols imports torch, and the command that lists plugins must not import torch
    from thunder.core.symbol import BoundSymbol

__all__ = ["ExecutorLike"]


class ExecutorLike(Protocol):
    """An executor, as `thunder.extend.Executor` implements it."""

    name: str
    version: str | None
    is_fallback: bool
    plugin: str | None
    implmap: dict[Any, Any]
    memory: Any

    def grad_rule(self, bsym: BoundSymbol, *, named: bool = True) -> Callable[..., Any] | None:
        """Return the executor's gradient rule for `bsym`, or None if it has no rule or does not accept `bsym`."""

    def takes(self, bsym: BoundSymbol, *, named: bool = True) -> bool:
        """Check whether the executor can run `bsym`, by an implementation or in a fusion."""
