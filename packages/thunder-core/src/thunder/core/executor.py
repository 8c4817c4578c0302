# SPDX-License-Identifier: Apache-2.0
"""What passes and plugins ask of an executor. The classes that executors are instances of are in `thunder.extend`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # plugins are listed without torch, which symbols import
    from thunder.core.symbol import BoundSymbol

__all__ = ["ExecutorLike"]


class ExecutorLike(Protocol):
    """Who runs operations of a trace: `thunder.extend.Executor`."""

    name: str
    version: str | None
    is_fallback: bool
    implmap: dict[Any, Any]

    def grad_rule(self, bsym: BoundSymbol, *, named: bool = True) -> Callable[..., Any] | None:
        """Return the gradient rule that it brings for that operation, if it takes it."""

    def takes(self, bsym: BoundSymbol, *, named: bool = True) -> bool:
        """Check whether it runs that operation in one way or another."""
