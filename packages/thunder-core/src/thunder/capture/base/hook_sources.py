# SPDX-License-Identifier: Apache-2.0
"""Sources of whether a tensor has hooks on its gradient."""

from __future__ import annotations

from typing import Any

from thunder.capture.base.sources import Source
from thunder.runtime.autograd.leaf_hooks import has_leaf_hooks

__all__ = ["HasGradientHooks", "HasLeafHooks"]


class HasGradientHooks(Source):
    """Whether a tensor has gradient hooks or retains its gradient."""

    __slots__ = ()

    def read(self, start: Any, *operands: Any) -> Any:
        """Return whether the tensor has hooks or retains its gradient."""
        return bool(start._backward_hooks) or start.retains_grad

    def code(self, start: str, *operands: str) -> str:
        """Return the condition."""
        return f"(bool({start}._backward_hooks) or {start}.retains_grad)"


class HasLeafHooks(Source):
    """Whether autograd runs hooks when it accumulates the gradient of a leaf."""

    __slots__ = ()

    def read(self, start: Any, *operands: Any) -> Any:
        """Return whether the leaf or its node has hooks."""
        return has_leaf_hooks(start)

    def code(self, start: str, *operands: str) -> str:
        """Return a call of a function that searches for hooks."""
        return f"has_leaf_hooks({start})"

    @property
    def helpers(self) -> dict[str, Any]:
        """The function that searches for hooks."""
        return {"has_leaf_hooks": has_leaf_hooks}
