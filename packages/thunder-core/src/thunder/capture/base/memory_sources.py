# SPDX-License-Identifier: Apache-2.0
"""Sources of properties of a tensor's memory."""

from __future__ import annotations

from typing import Any

from thunder.capture.base.sources import Source
from thunder.runtime.torch_private import suggest_memory_format

__all__ = ["HasOffset", "SuggestedFormat"]


class HasOffset(Source):
    """Whether a tensor starts in the middle of its storage."""

    __slots__ = ()

    def read(self, start: Any, *operands: Any) -> Any:
        """Return whether the offset is not zero."""
        return start.storage_offset() != 0

    def code(self, start: str, *operands: str) -> str:
        """Return `start.storage_offset() != 0`."""
        return f"({start}.storage_offset() != 0)"


class SuggestedFormat(Source):
    """The memory format that torch would give a copy of a tensor."""

    __slots__ = ()

    def read(self, start: Any, *operands: Any) -> Any:
        """Return the format."""
        return suggest_memory_format(start)

    def code(self, start: str, *operands: str) -> str:
        """Return a call of the function that determines the format."""
        return f"suggest_memory_format({start})"

    @property
    def helpers(self) -> dict[str, Any]:
        """The function that determines the format."""
        return {"suggest_memory_format": suggest_memory_format}
