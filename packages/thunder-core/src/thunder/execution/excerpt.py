# SPDX-License-Identifier: Apache-2.0
"""Programs that consist of some operations of a trace, to run these operations by themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thunder.core.prims import python_return
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.state import tracectx
from thunder.core.symbol import BoundSymbol, OpTags
from thunder.core.trace import Trace
from thunder.execution.claim import transform_for_execution
from thunder.extend import get_always_executors

__all__ = ["all_levels", "distinct", "excerpt", "is_repeatable", "reference_of"]

_NOT_REPEATABLE = frozenset({OpTags.RANDOM_OP, OpTags.RECOMPUTED, OpTags.GENERATOR_STATE_OP, OpTags.COLLECTIVE})


def distinct(values: Sequence[object]) -> list[Proxy]:
    """Return the values of a trace among `values`, each once."""
    return list({p.name: p for p in values if isinstance(p, Proxy)}.values())


def all_levels(operations: Sequence[BoundSymbol]) -> Iterator[BoundSymbol]:
    """Yield operations and the operations of their decompositions."""
    for op in operations:
        yield op
        yield from all_levels(op.subsymbols)


def excerpt(
    args: Sequence[Proxy], operations: Sequence[BoundSymbol], output: Sequence[Proxy], name: str = "computation"
) -> Trace:
    """Return the program that runs `operations` on `args` and returns `output`."""
    trace = Trace(name, args=args)
    trace.names.update(p.name for op in all_levels(operations) for p in (*op.flat_args, *op.flat_outs))
    trace.bound_symbols[:] = operations
    with tracectx(trace):
        python_return(tuple(output))
    return trace


def is_repeatable(op: BoundSymbol) -> bool:
    """Check whether two runs of an operation on the same inputs return the same values, and have no other effect.

    Random draws do not, nor do tensors without defined values. The operations of a decomposition count.
    """
    return not op.has_effect and not any(
        not _NOT_REPEATABLE.isdisjoint(part.sym.tags) or part.sym.name.startswith("empty") for part in all_levels([op])
    )


def reference_of(op: BoundSymbol) -> Trace | None:
    """Return the program in which torch runs an operation's decomposition, or None if there is none.

    Its arguments are the distinct arguments of the operation, and its results are `op.out_names`. An operation that is
    not repeatable, or that computes symbolic sizes or numbers, has no reference.
    """
    given, made = distinct(op.flat_args), [p for p in distinct(op.flat_outs) if p.name in op.out_names]
    symbolic = any(isinstance(p, NumberProxy) for p in (*given, *made)) or any(
        type(n) is not int for p in (*given, *made) if isinstance(p, TensorProxy) for n in p.shape
    )
    if not op.subsymbols or symbolic or not is_repeatable(op):
        return None
    return transform_for_execution(excerpt(given, op.subsymbols, made, "reference"), get_always_executors())[-1]
