# SPDX-License-Identifier: Apache-2.0
"""Templates: reuse the recording of a call, under other names, for calls that differ in names only.

Networks repeat their layers, and the operations that tracing a call records depend on the metadata of its values
(shape, dtype, device), on which of them are the same, and on its other arguments. Two calls that agree in all of that
have the same `likeness`; then the `Recorded` operations of the first, renamed, serve for the second, in a fraction of
the time of tracing.

Contract: the result is what tracing the second call would have recorded, names included.
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
    """The values of a call in order of occurrence, and the index of each name."""

    __slots__ = ("found", "place")

    def __init__(self) -> None:
        self.found: list[Proxy] = []
        self.place: dict[str, int] = {}


class Unlike(Exception):
    """Raised for a call that cannot share a template."""


def likeness(x: Any, values: Values, tracked: set[str]) -> Any:
    """Return a key that is equal exactly for arguments that differ in names only; `values` collects their tensors.

    It includes whether a tensor is `tracked`. Calls with symbolic numbers are not shared: what is known about
    these numbers may change.
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
        """Return the names assigned since, if all are consecutive names of tensors; else raise `Unlike`."""
        start = self.before.pop("t", 0)
        now = dict(self.trace._counters)
        end = now.pop("t", 0)
        if now != self.before or len(self.trace.names) - self.count != end - start:
            raise Unlike
        return [f"t{i}" for i in range(start, end)]


class Recorded:
    """The operations recorded for a call with these values: the names they read, and the names of their results."""

    __slots__ = ("_complete", "_made", "names", "operations")

    def __init__(self, values: Values, made: list[str], operations: Sequence[BoundSymbol]):
        self.names = list(values.place)
        self.operations = operations
        self._made = made
        self._complete = False

    @property
    def made(self) -> list[str]:
        """The names of its results. Computed when first needed, as many programs have no two equal calls."""
        if not self._complete:
            # Parts of operations that are recorded unchanged have names from before.
            known = {*self.names, *self._made}
            self._made = [*self._made, *dict.fromkeys(n for n in _made_below(self.inner()) if n not in known)]
            self._complete = True
        return self._made

    def inner(self) -> Iterable[BoundSymbol]:
        """Return the operations that are renamed."""
        return self.operations

    def renamed(self, values: Values, trace: Trace) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the replacements of the recorded values for a call with other values, and the names of its results."""
        return dict(zip(self.names, values.found)), dict(zip(self.made, trace.make_names(len(self.made))))


def _made_below(operations: Iterable[BoundSymbol]) -> Iterator[str]:
    for op in operations:
        for part in op.subsymbols:
            yield from part.out_names
        yield from _made_below(op.subsymbols)
