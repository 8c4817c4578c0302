# SPDX-License-Identifier: Apache-2.0
"""The memory of the operations of a claimed program: what they write to, and which arguments their results may share.

Executors know it (`Executor.memory`). Without their answer, the memory is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable

from thunder.core.symbol import BoundSymbol, OpTags

__all__ = ["SharedMemory", "shared_arguments", "written_arguments"]


def written_arguments(op: BoundSymbol) -> list[str] | None:
    """Return the tensors that an operation writes to, or None if they are not known."""
    executor = op.sym.executor
    if not op.has_effect or not _may_write(op):
        return []
    return None if executor is None else executor.memory.written(op)


def _may_write(op: BoundSymbol) -> bool:
    return OpTags.IN_PLACE_OP in op.sym.tags or any(map(_may_write, op.subsymbols))


def shared_arguments(op: BoundSymbol) -> list[str] | None:
    """Return the arguments whose memory the results of an operation may share. None: all, and it may keep them."""
    if op.sym.is_structural:
        return []
    if OpTags.VIEW_OP in op.sym.tags and OpTags.OPAQUE_OP not in op.sym.tags:
        return [*op.arg_names]
    if op.sym.executor is None:
        return None
    found = op.sym.executor.memory.may_share(op)
    # An operation that writes returns what it wrote to.
    written = written_arguments(op)
    if found is None and written:
        return written
    return None if found is None or written is None else [*found, *written]


class SharedMemory:
    """The values of a program in groups: values of different groups share no memory.

    Inputs are in groups of their own, as far as they are written (`runtime.guards.check_distinct`).
    """

    def __init__(self, operations: Iterable[BoundSymbol]) -> None:
        self._parents: dict[str, str] = {}
        unknown = ""  # memory that operations may have kept
        for op in operations:
            shared = shared_arguments(op)
            names = [*op.out_names, *(op.arg_names if shared is None else shared)]
            if shared is None:
                names.append(unknown)
            elif not shared:
                continue
            for name in names[1:]:
                self._parents[self.group(name)] = self.group(names[0])

    def group(self, name: str) -> str:
        """Return the group of a value."""
        parents = self._parents
        while (parent := parents.get(name, name)) != name:
            parents[name] = name = parents.get(parent, parent)
        return name
