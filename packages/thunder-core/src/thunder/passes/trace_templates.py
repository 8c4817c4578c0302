# SPDX-License-Identifier: Apache-2.0
"""Templates: reuse the recorded operations of a call, with new names, for calls that differ only in names.

Networks repeat their layers. The operations that tracing a call records depend only on the metadata of its values
(shape, dtype, device), on which of these values are identical, and on its other arguments. Two calls that agree in all
of these have the same `likeness`. The `Recorded` operations of the first call are then renamed for the second call,
which takes a fraction of the time of tracing.

Contract: the result, including its names, is the same as that of tracing the second call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from thunder.core.proxies import Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.symint.numbers import SymbolicNumber
from thunder.core.trace import Trace

__all__ = ["Recorded", "Unlike", "Values", "likeness"]

_BY_VALUE = frozenset({int, bool, str, type(None), bytes, type(...)})


class Values:
    """The values of a call in order of occurrence, and the index of each value by name."""

    __slots__ = ("found", "place")

    def __init__(self) -> None:
        self.found: list[Proxy] = []
        self.place: dict[str, int] = {}


class Unlike(Exception):
    """An exception for a call that cannot share a template."""


def likeness(x: Any, values: Values, tracked: set[str]) -> Any:
    """Return a key that is equal for two arguments if and only if they differ only in names.

    `values` collects the tensors. The key includes whether a tensor is in `tracked`. Calls with symbolic numbers share
    no template, because the known constraints on these numbers may change.
    """
    kind = type(x)
    if kind is TensorProxy:
        name, shape, place = x.name, x.shape, values.place
        if name in place:
            return place[name]
        for size in shape:
            if type(size) is not int:
                raise Unlike
        place[name] = len(place)
        values.found.append(x)
        return shape, id(x.dtype), id(x.device), x.requires_grad, name in tracked
    if kind in _BY_VALUE:
        return kind, x
    if kind is float or kind is complex:
        return kind, repr(x)  # so that 0.0 and -0.0 differ, and nan equals itself
    if isinstance(x, (tuple, list)):
        return kind, tuple([likeness(item, values, tracked) for item in x])
    if kind is dict:
        return kind, tuple([(key, likeness(item, values, tracked)) for key, item in x.items()])
    if kind is slice:
        return kind, tuple([likeness(item, values, tracked) for item in (x.start, x.stop, x.step)])
    if isinstance(x, (Proxy, SymbolicNumber)):
        raise Unlike
    return kind, id(x)


class Names:
    """The names that a trace assigns while operations are recorded into it."""

    def __init__(self, trace: Trace):
        self.trace = trace
        self.before = dict(trace._counters)
        self.count = len(trace.names)

    def made(self) -> list[str]:
        """Return the names assigned since `__init__`. Raise `Unlike` unless all are consecutive names of tensors."""
        start = self.before.pop("t", 0)
        now = dict(self.trace._counters)
        end = now.pop("t", 0)
        if now != self.before or len(self.trace.names) - self.count != end - start:
            raise Unlike
        return [f"t{i}" for i in range(start, end)]


class Recorded:
    """The operations recorded for a call, with the names of the values that they read and of their results."""

    __slots__ = ("_complete", "_made", "names", "operations")

    def __init__(self, values: Values, made: list[str], operations: Sequence[BoundSymbol]):
        self.names = list(values.place)
        self.operations = operations
        self._made = made
        self._complete = False

    @property
    def made(self) -> list[str]:
        """The names of the results, computed when first needed, because many programs contain no two equal calls."""
        if not self._complete:
            # The parts of an operation that is recorded unchanged have older names.
            known = {*self.names, *self._made}
            self._made = [*self._made, *dict.fromkeys(n for n in _made_below(self.inner()) if n not in known)]
            self._complete = True
        return self._made

    def inner(self) -> Iterable[BoundSymbol]:
        """Return the operations to rename."""
        return self.operations

    def renamed(self, values: Values, trace: Trace) -> tuple[dict[str, Any], dict[str, str]]:
        """Return two dictionaries: recorded values -> the values of another call, and recorded results -> new names."""
        return dict(zip(self.names, values.found)), dict(zip(self.made, trace.make_names(len(self.made))))


def _made_below(operations: Iterable[BoundSymbol]) -> Iterator[str]:
    for op in operations:
        for part in op.subsymbols:
            yield from part.out_names
        yield from _made_below(op.subsymbols)
