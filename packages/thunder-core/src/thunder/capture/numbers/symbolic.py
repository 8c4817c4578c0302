# SPDX-License-Identifier: Apache-2.0
"""Which numbers and sizes of a program's inputs are symbolic, and how they get into the program.

A jitted callable has one `Dynamic`. With `cache="symbolic values"` the sizes of argument tensors and the numbers among
the arguments are symbolic from the start; else, and for everything that is reached in another way, a size or number
becomes symbolic when the guard on it has failed twice.

While a program is traced its `Inputs` make the symbols. A number that an object, a dict, a list, a global or a closure
holds is replaced there by its symbol for as long as the program runs, so that native Python reads it.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from thunder.capture.base.sources import Argument, Place
from thunder.capture.numbers.substitutions import Plants
from thunder.core.state import state
from thunder.core.symint.numbers import SymbolicNumber, is_unbacked

if TYPE_CHECKING:
    from thunder.capture.tensors.tracer import Tracer
    from thunder.core.proxies import NumberProxy

__all__ = ["FAILURES", "Dynamic", "Inputs", "Number", "Size"]

# So many failures of its guard make a number or size symbolic.
FAILURES = 2


def length_of(place: Place) -> Place:
    """Where the length of a list stands."""
    return place.to("len({})", "length")


class Dynamic:
    """What is symbolic in the programs of one callable."""

    def __init__(self, everything: bool = False):
        self.everything = everything  # arguments are symbolic from the start
        self.sizes: dict[str, set[int]] = {}
        self.numbers: set[str] = set()
        self.containers: set[str] = set()  # of numbers, which are looked at one by one
        self.converts = False  # the program asks for numbers that only running tells (`conversions.py`)
        self.tells = False  # it has to know some of them, which inputs tell (`told.py`)
        self.given_up: str | None = None  # why nothing is symbolic any more
        self._failures: Counter[tuple[str, Any]] = Counter()

    def __bool__(self) -> bool:
        return self.given_up is None and (
            self.everything or self.converts or bool(self.sizes or self.numbers or self.containers)
        )

    def dims(self, place: Place | None, tensor: torch.Tensor) -> frozenset[int]:
        """The dimensions of a tensor whose sizes are symbolic. Those of size 0 and 1 never are: they broadcast."""
        if place is None:
            return frozenset()
        if self.everything and isinstance(place.beginning, Argument):
            wanted: Iterable[int] = range(tensor.ndim)
        else:
            wanted = self.sizes.get(str(place), ())
        return frozenset(d for d in wanted if d < tensor.ndim and tensor.shape[d] > 1)

    def takes(self, place: Place, value: Any) -> bool:
        """Whether a number is symbolic."""
        if type(value) is not int and (type(value) is not float or not math.isfinite(value)):
            return False
        return (self.everything and isinstance(place.beginning, Argument)) or str(place) in self.numbers

    # -- failures -----------------------------------------------------------------------------------------------------
    def size_changed(self, place: str, dim: int) -> None:
        """A guard found another size."""
        if self._counted((place, dim)):
            self.sizes.setdefault(place, set()).add(dim)

    def number_changed(self, place: str) -> None:
        """A guard found another number."""
        if self._counted((place, None)):
            self.numbers.add(place)

    def contents_changed(self, place: str) -> None:
        """A guard found other numbers in a container."""
        if self._counted((place, "contents")):
            self.containers.add(place)

    def _counted(self, key: tuple[str, Any]) -> bool:
        self._failures[key] += 1
        return self._failures[key] >= FAILURES

    def forget(self) -> None:
        """Starts anew."""
        self.__init__(self.everything)  # type: ignore[misc]


class Size(NamedTuple):
    """A symbolic size of an input: a leaf, the name of the input in the program, its dimension."""

    leaf: NumberProxy
    tensor: str
    dim: int


class Number(NamedTuple):
    """A number that is an input: a leaf, what it is in this call, where it is found."""

    leaf: NumberProxy
    value: Any
    place: Place


class Inputs:
    """The symbolic inputs of one run."""

    def __init__(self, tracer: Tracer, dynamic: Dynamic, plants: Plants):
        self._tracer = tracer
        self.dynamic = dynamic
        self.place_of: Callable[[torch.Tensor], Place | None] = lambda tensor: None
        self.guarded_number = self.number
        self.place_of_list: Callable[[Any], tuple[int, Place] | None] = lambda x: None
        self.sizes: list[Size] = []
        self.numbers: list[Number] = []
        self.dims: dict[int, frozenset[int]] = {}  # by the ids of tensors
        self.plants = plants
        self._known: dict[Place, Any] = {}

    def dims_of(self, tensor: torch.Tensor) -> frozenset[int]:
        """The dimensions of an input whose sizes are symbolic."""
        found = self.dims.get(id(tensor))
        if found is None:
            found = self.dims[id(tensor)] = self.dynamic.dims(self.place_of(tensor), tensor)
        return found

    def shape(self, name: str, tensor: torch.Tensor) -> tuple[Any, ...]:
        """The shape of a new input with symbols for the sizes that are symbolic."""
        from thunder.core.symint.symbols import symbols_of

        shape: list[Any] = list(tensor.shape)
        for dim in sorted(self.dims_of(tensor)):
            shape[dim] = symbols_of(self._tracer.trace).size(shape[dim])
            self.sizes.append(Size(shape[dim].proxy, name, dim))
        return tuple(shape)

    def number(self, place: Place, value: Any) -> Any:
        """The symbol of a number that is an input."""
        from thunder.core.symint.symbols import symbols_of

        found = self._known.get(place)
        if found is None:
            trace = self._tracer.trace
            found = symbols_of(trace).number(value, trace.add_name(place.label.removeprefix("t_") or "n"))
            self._known[place] = found
            trace.args.append(found.proxy)
            self.numbers.append(Number(found.proxy, value, place))
        return found

    def plant(self, target: Any, key: Any, before: Any, symbol: Any) -> None:
        """Puts a symbol where the program finds a number."""
        self.plants.plant(target, key, before, symbol)

    def stands_for(self, name: str) -> Any:
        """What takes the place of a built-in while the program runs, as it may be given symbolic numbers."""
        from thunder.capture.dispatch.builtin_overrides import STAND_INS

        if name == "type":
            return TypeOf
        if name == "len" and (self.dynamic.converts or any(place.startswith("len(") for place in self.dynamic.numbers)):
            return self._length
        return STAND_INS.get(name) if self.dynamic.converts else None

    def _length(self, x: Any) -> Any:
        """`len(x)` for the program: of some lists a number that is an input, and what the program has added.

        Of a tensor it may be a number that only running tells.
        """
        if isinstance(x, torch.Tensor) and x.dim() and is_unbacked(x.shape[0]):
            return x.shape[0]
        place = self.place_of_list(x) if type(x) in (list, deque) and state.frontend is self._tracer else None
        if place is None:
            return len(x)
        before, where = place
        inner = length_of(where)
        if not self.dynamic.takes(inner, before):
            return len(x)
        return self.guarded_number(inner, before) + (len(x) - before)

    def owns(self, number: Any) -> bool:
        """Whether a symbolic number is one of this run's."""
        return number.symbols is self._tracer.trace.info.get("symbols")


class _LikeType(type):
    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, type)

    def __subclasscheck__(cls, x: Any) -> bool:
        return issubclass(x, type)


def _as_the_program_sees(kind: type) -> Any:
    """A built-in type, in a program for which something else stands for it."""
    if kind in (int, float, bool, complex):
        symbolic = getattr(state.frontend, "symbolic", None)
        return kind if symbolic is None else symbolic.stands_for(kind.__name__) or kind
    return kind


class TypeOf(type, metaclass=_LikeType):
    """`type` for programs with symbolic numbers: those are of the type `int` or `float`."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """`type(x)` and `type(name, bases, namespace)`."""
        if len(args) == 1 and not kwargs:
            found = args[0].__class__ if isinstance(args[0], SymbolicNumber) else type(args[0])
            return TypeOf if found is type else _as_the_program_sees(found)
        return type(*args, **kwargs)

    def __init__(cls, *args: Any, **kwargs: Any) -> None:
        pass
