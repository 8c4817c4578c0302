# SPDX-License-Identifier: Apache-2.0
"""What an executor knows of the memory of its operations' results, for passes that write to memory that exists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from thunder.core.proxies import TensorProxy
from thunder.core.strides import Strides, contiguous_strides
from thunder.core.symbol import BoundSymbol, OpTags

__all__ = ["NewResults", "ResultMemory"]

_MAY_SHARE = frozenset({OpTags.IN_PLACE_OP, OpTags.VIEW_OP, OpTags.OPAQUE_OP})


class ResultMemory:
    """The answers of an executor about operations that it has claimed. These answers, the defaults, are always right.

    A subclass knows more (`Executor.memory`).
    """

    def may_share(self, op: BoundSymbol) -> Sequence[str] | None:
        """Return the arguments whose memory the results may share. None: all arguments, or memory that is used again.

        If this is not None, a result shares memory with no other result unless it shares the memory of an argument.
        """
        return None

    def written(self, op: BoundSymbol) -> Sequence[str] | None:
        """Return the arguments that an operation writes to. None: not known."""
        return None

    def strides(self, op: BoundSymbol, known: Mapping[str, Strides]) -> Mapping[str, Strides]:
        """Return the strides of results that are dense, as far as they are certain, given strides that are `known`.

        Strides have the form of `core.strides.dense_strides`. Strides of the arguments that are not dense are unknown.
        """
        return {}

    def may_write(self, op: BoundSymbol) -> Callable[[str, TensorProxy, frozenset[str]], bool]:
        """Return a function that checks whether `written_to` accepts a result's name, target and arguments.

        An executor whose operations have many results should not make an operation for each of them.
        """
        return lambda name, target, whole: self.written_to(op, {name: (target, whole)}) is not None

    def written_to(
        self, op: BoundSymbol, targets: Mapping[str, tuple[TensorProxy, frozenset[str]]]
    ) -> BoundSymbol | None:
        """Return `op`, changed to write results to memory that exists, or None if the executor cannot do that.

        `targets` contains for each such result a tensor with the result's shape, dtype, device and strides, and the
        arguments that have the same memory, each with its elements at the places of the result's. The results must
        be equal to those of `op` to the bit. Each result is decided on its own: any of those that the executor can
        write alone, it can write together.
        """
        return None


class NewResults(ResultMemory):
    """The memory of an executor whose operations return new tensors, and keep no argument when they have returned.

    Operators that were registered with `out=` can write to memory that exists.
    """

    def may_share(self, op: BoundSymbol) -> Sequence[str] | None:
        return () if _MAY_SHARE.isdisjoint(op.sym.tags) else None

    def written(self, op: BoundSymbol) -> Sequence[str] | None:
        return [op.kwargs["out"].name] if isinstance(op.kwargs.get("out"), TensorProxy) else None

    def strides(self, op: BoundSymbol, known: Mapping[str, Strides]) -> Mapping[str, Strides]:
        out = op.output
        if op.sym.writer is None or not isinstance(out, TensorProxy) or any(type(n) is not int for n in out.shape):
            return {}
        return {out.name: contiguous_strides(tuple(out.shape))}

    def written_to(
        self, op: BoundSymbol, targets: Mapping[str, tuple[TensorProxy, frozenset[str]]]
    ) -> BoundSymbol | None:
        writer = op.sym.writer
        if writer is None or not isinstance(op.output, TensorProxy) or [*targets] != [op.output.name]:
            return None
        ((target, whole),) = targets.values()
        if whole and OpTags.ELEMENTWISE_OP not in op.sym.tags:  # it may read elements that it has already written
            return None
        return op.replace(sym=writer, kwargs={**op.kwargs, "out": target})
