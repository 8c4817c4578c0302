# SPDX-License-Identifier: Apache-2.0
"""Symbolic inputs: which sizes and numbers of a program's inputs are symbolic, and how symbols enter the program.

A jitted callable has one `Dynamic`. With `cache="symbolic values"`, the sizes of argument tensors and the numeric
arguments are symbolic from the start. Otherwise, and for values other than arguments, a size or number becomes symbolic
when its guard has failed twice.

While a program is traced, its `Inputs` create the symbols. A number in an object, a dict, a list, a global or a closure
is replaced there with its symbol until the program has run, so that native Python code reads the symbol.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from thunder.capture.base.sources import Argument, Length, Source
from thunder.capture.numbers.marks import Range, marked_dynamic, marked_static
from thunder.capture.numbers.overrides import BUILTINS
from thunder.core.state import state
from thunder.core.symint.numbers import is_unbacked
from thunder.core.symint.symbols import symbols_of

if TYPE_CHECKING:
    from thunder.core.proxies import NumberProxy
    from thunder.core.trace import Trace

__all__ = ["FAILURES", "ONLY_DECIDES", "Dynamic", "Inputs", "Number", "Size"]

# A number or size becomes symbolic when its guard has failed this many times.
FAILURES = 2


class Ways(NamedTuple):
    """How programs are traced that use data-dependent numbers."""

    overrides_builtins: bool  # the program computes with unbacked numbers (`builtin_overrides.py`)
    derives_scalars: bool  # Python needs values that integer inputs determine (`derived_scalars.py`)
    decides: bool  # Python needs other values of the program (`decisions.py`)


ONLY_DECIDES = Ways(False, False, True)


class Dynamic:
    """The sizes and numbers that are symbolic in the programs of one callable."""

    def __init__(self, everything: bool = False):
        self.everything = everything  # arguments are symbolic from the start
        self.sizes: dict[str, set[int]] = {}
        self.numbers: set[str] = set()
        self.lengths = False  # whether some of the numbers are lengths of lists
        self.containers: set[str] = set()  # containers of numbers whose items are guarded one by one
        self.ways = Ways(False, False, False)
        self.plain_math = False  # whether the program would see that functions of `math` are replaced
        self.marked = False  # whether the user has marked sizes of arguments (`marks.py`)
        self.given_up: str | None = None  # why nothing is symbolic any more, or None
        self._failures: Counter[tuple[str, Any]] = Counter()

    def __bool__(self) -> bool:
        return self.given_up is None and (
            self.everything
            or self.marked
            or self.ways.overrides_builtins
            or bool(self.sizes or self.numbers or self.containers)
        )

    @property
    def overrides_math(self) -> bool:
        """Whether functions of `math` are replaced by functions that accept symbolic numbers."""
        return self.ways.overrides_builtins or (bool(self.numbers) and not self.plain_math)

    def further_ways(self) -> list[Ways]:
        """Return the ways to trace a program that needs more data-dependent values than the current way gives it.

        The last one leaves the built-ins as they are, for programs that would see that they are replaced.
        """
        found = [Ways(True, False, False), Ways(True, True, False), Ways(True, True, True)]
        found = [way for way in found if way > self.ways and self.given_up is None]
        return [*found, ONLY_DECIDES] if self.ways != ONLY_DECIDES else found

    def dims(self, source: Source | None, tensor: torch.Tensor) -> frozenset[int]:
        """Return the dimensions of a tensor with symbolic sizes. Sizes 0 and 1 stay constant: they may broadcast."""
        if source is None:
            return frozenset()
        if self.everything and isinstance(source.root, Argument):
            wanted: Iterable[int] = range(tensor.ndim)
        else:
            wanted = self.sizes.get(str(source), ())
        wanted = {*wanted, *marked_dynamic(tensor)} - marked_static(tensor)
        return frozenset(d for d in wanted if d < tensor.ndim and tensor.shape[d] > 1)

    def look_for_marks(self, leaves: Iterable[Any]) -> None:
        """Record whether a size of an argument is marked as dynamic."""
        self.marked = self.marked or any(isinstance(x, torch.Tensor) and marked_dynamic(x) for x in leaves)

    def takes(self, source: Source, value: Any) -> bool:
        """Check whether a number is symbolic."""
        if type(value) is not int and (type(value) is not float or not math.isfinite(value)):
            return False
        return (self.everything and isinstance(source.root, Argument)) or str(source) in self.numbers

    # -- failures -----------------------------------------------------------------------------------------------------
    def size_changed(self, source: Source, dim: int) -> None:
        """Count a guard failure because a size differs."""
        if self._counted((str(source), dim)):
            self.sizes.setdefault(str(source), set()).add(dim)

    def number_changed(self, source: Source) -> None:
        """Count a guard failure because a number differs."""
        if self._counted((str(source), None)):
            self.numbers.add(str(source))
            self.lengths |= isinstance(source, Length)

    def contents_changed(self, source: Source) -> None:
        """Count a guard failure because numbers in a container differ."""
        if self._counted((str(source), "contents")):
            self.containers.add(str(source))

    def _counted(self, key: tuple[str, Any]) -> bool:
        self._failures[key] += 1
        return self._failures[key] >= FAILURES

    def forget(self) -> None:
        """Reset all symbolic sizes, numbers and counts of failures."""
        self.__init__(self.everything)  # type: ignore[misc]


class Size(NamedTuple):
    """A symbolic size of an input: its leaf, the name of the input in the trace, and the dimension."""

    leaf: NumberProxy
    tensor: str
    dim: int


class Number(NamedTuple):
    """A number that is an input: its leaf, its value in this call, and its source."""

    leaf: NumberProxy
    value: Any
    source: Source


class Inputs:
    """The symbolic inputs of one trace."""

    def __init__(self, trace: Trace, dynamic: Dynamic):
        self._trace = trace
        self.dynamic = dynamic
        self.source_of: Callable[[torch.Tensor], Source | None] = lambda tensor: None
        self.guarded_number = self.number
        self.source_of_list: Callable[[Any], tuple[int, Source] | None] = lambda x: None
        self.sizes: list[Size] = []
        self.numbers: list[Number] = []
        self.marked: list[tuple[str, Any]] = []  # descriptions of marked sizes, with their symbols
        self.dims: dict[int, frozenset[int]] = {}  # by the ids of tensors
        self._known: dict[Source, Any] = {}

    def dims_of(self, tensor: torch.Tensor) -> frozenset[int]:
        """Return the dimensions of an input whose sizes are symbolic."""
        found = self.dims.get(id(tensor))
        if found is None:
            found = self.dims[id(tensor)] = self.dynamic.dims(self.source_of(tensor), tensor)
        return found

    def shape(self, name: str, tensor: torch.Tensor) -> tuple[Any, ...]:
        """Return the shape of a new input, with symbols for its symbolic sizes."""
        shape: list[Any] = list(tensor.shape)
        marks = marked_dynamic(tensor)
        for dim in sorted(self.dims_of(tensor)):
            shape[dim] = size = symbols_of(self._trace).size(shape[dim])
            self.sizes.append(Size(size.proxy, name, dim))
            if dim in marks:
                self._use_mark(f"size {dim} of {name}", size, tensor.shape[dim], marks[dim])
        return tuple(shape)

    def _use_mark(self, description: str, size: Any, hint: int, bounds: Range) -> None:
        """Add the bounds of a marked size to the constraints of the program."""
        if hint not in bounds:
            return  # the bounds hold for the first program only
        self.marked.append((description, size))
        _ = bounds.min is None or bool(size >= bounds.min)
        _ = bounds.max is None or bool(size <= bounds.max)

    def number(self, source: Source, value: Any) -> Any:
        """Return the symbol of a number that is an input."""
        found = self._known.get(source)
        if found is None:
            trace = self._trace
            found = symbols_of(trace).number(value, trace.add_name(source.label.removeprefix("t_") or "n"))
            self._known[source] = found
            trace.args.append(found.proxy)
            self.numbers.append(Number(found.proxy, value, source))
        return found

    def stands_for(self, name: str) -> Any:
        """Return the replacement of a built-in that may be called with symbolic numbers, or None."""
        if name == "len" and (self.dynamic.ways.overrides_builtins or self.dynamic.lengths):
            return self._length
        return BUILTINS.get(name) if self.dynamic.ways.overrides_builtins else None

    def _length(self, x: Any) -> Any:
        """Compute `len(x)` for the program.

        If the length of a list is an input, return its symbol plus the number of items that the program has added. The
        length of a tensor may be a data-dependent number.
        """
        if isinstance(x, torch.Tensor) and x.dim() and is_unbacked(x.shape[0]):
            return x.shape[0]
        source = self.source_of_list(x) if type(x) in (list, deque) and self._is_running() else None
        if source is None:
            return len(x)
        before, list_source = source
        inner = list_source.to(Length)
        if not self.dynamic.takes(inner, before):
            return len(x)
        return self.guarded_number(inner, before) + (len(x) - before)

    def _is_running(self) -> bool:
        return state.frontend is not None and state.trace is self._trace

    def owns(self, number: Any) -> bool:
        """Check whether a symbolic number belongs to this trace."""
        return number.symbols is self._trace.info.get("symbols")
