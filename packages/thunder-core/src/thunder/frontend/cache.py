# SPDX-License-Identifier: Apache-2.0
"""The cache of one callable: its specializations, and the lookup of the specialization for a call.

A specialization matches a call if its prologue accepts the call. Each specialization records which specialization ran
after it. The first candidate is the recorded successor of the last used specialization, so that alternating calls hit
immediately. The second candidate is the specialization that last ran for arguments of the same shapes. Then follow the
others, newest first.

The cache counts guards that fail in a cache miss. Numbers and sizes that keep changing become symbolic
(`capture/numbers/symbolic.py`).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from thunder.core.events import current_log
from thunder.core.state import registrations
from thunder.frontend.options import MAX_SPECIALIZATIONS
from thunder.frontend.paths import Path
from thunder.frontend.specialization import Specialization
from thunder.runtime.guards import GuardFailed

__all__ = ["MAX_SPECIALIZATIONS", "NOT_FOR_THIS_CALL", "Cache", "Refusal"]

# The exceptions of a prologue that does not accept a call: a guard failed, or a source does not exist in this call.
NOT_FOR_THIS_CALL = (GuardFailed, KeyError, IndexError, AttributeError, TypeError, ValueError, ArithmeticError)

_MAX_KEYS = 64
_BY_VALUE = frozenset({bool, int, float, type(None)})
_WITH_SHAPE = frozenset({torch.Tensor, torch.nn.Parameter})


class Refusal:
    """The failed guard of a specialization. It refers to values of the call, so it must not outlive the call."""

    __slots__ = ("failure", "specialization")

    def __init__(self, specialization: Specialization, failure: Exception):
        failure.__traceback__ = None  # the frames would hold the call's arguments
        self.specialization = specialization
        self.failure = failure

    @property
    def is_about_numbers(self) -> bool:
        """Whether the guard failed because a number or a size has changed."""
        guarded = self.specialization.guarded
        return guarded is not None and guarded.is_about_numbers(self.failure)

    def __str__(self) -> str:
        if isinstance(self.failure, GuardFailed):
            return str(self.failure)
        return f"a value that the program read no longer exists ({type(self.failure).__name__}: {self.failure})"


class Cache:
    """The specializations of one callable, at most `size` of them."""

    def __init__(self, *, symbolic: bool = False, size: int = MAX_SPECIALIZATIONS):
        self.size = size
        self._symbolic = symbolic
        self._dynamic: Any = None
        self.kept = 0  # counts specializations that were added
        self._hits_of_dropped = 0
        self.likeliest: Specialization | None = None
        self._last: Specialization | None = None
        self._all: list[Specialization] = []  # newest first
        self._by_key: dict[Any, Specialization] = {}

    def __len__(self) -> int:
        return len(self._all)

    @property
    def dynamic(self) -> Any:
        """The numbers and sizes that are symbolic: a `Dynamic`, which only a compilation needs."""
        if self._dynamic is None:
            # Imported by name at run time: calls of cached programs do not load the tracer.
            symbolic = importlib.import_module("thunder.capture.numbers.symbolic")
            self._dynamic = symbolic.Dynamic(self._symbolic)
        return self._dynamic

    def __iter__(self) -> Iterator[Specialization]:
        return iter(self._all)

    @property
    def is_full(self) -> bool:
        """Whether another specialization would replace one that can still run."""
        epoch = registrations[0]
        return sum(s.epoch == epoch for s in self._all) >= self.size

    @property
    def hits(self) -> int:
        """The number of calls that specializations of this cache served."""
        return self._hits_of_dropped + sum(s.hits for s in self._all)

    def find(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        refused: list[Refusal],
        observed: Sequence[Any] | None = None,
    ) -> tuple[Specialization, Any] | None:
        """Return the specialization for a call, and its inputs. Append the failures of others to `refused`.

        With `observed`, the specialization must be a path that begins with these answers.
        """
        epoch = registrations[0]
        tried = {id(refusal.specialization) for refusal in refused}
        key = _key(args, kwargs)
        first = self._by_key.get(key)
        for specialization in self._all if first is None else (first, *self._all):
            if id(specialization) in tried or specialization.epoch != epoch:
                continue
            if observed and (specialization.path is None or not specialization.path.agrees(observed)):
                continue
            tried.add(id(specialization))
            try:
                inputs = specialization.prologue(*args, **kwargs)  # type: ignore[misc]
            except NOT_FOR_THIS_CALL as failure:
                refused.append(Refusal(specialization, failure))
                continue
            self._remember(key, specialization)
            return specialization, inputs
        return None

    def _remember(self, key: Any, specialization: Specialization) -> None:
        if len(self._by_key) >= _MAX_KEYS:
            self._by_key.clear()
        self._by_key[key] = specialization
        if self._last is not None:
            self._last.after = specialization
        self._last = specialization
        self.likeliest = specialization.after

    def used(self, specialization: Specialization) -> None:
        """Record that the likeliest specialization accepted a call."""
        self._last = specialization
        self.likeliest = specialization.after

    def keep(self, specialization: Specialization, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Add a specialization, and drop those that were compiled with other registered implementations."""
        epoch = registrations[0]
        self.kept += 1
        stale = sum(s.epoch != epoch for s in self._all)
        if stale:
            reason = "an executor, an implementation or a gradient rule was registered"
            current_log().add("cache", reason, details={"dropped": stale})
        hits = self.hits
        self._all = [specialization, *[s for s in self._all if s.epoch == epoch]][: self.size]
        self._hits_of_dropped += hits - self.hits
        if self._last not in self._all:
            self._last = None
        self._by_key = {key: s for key, s in self._by_key.items() if s in self._all}
        self._remember(_key(args, kwargs), specialization)

    @property
    def paths(self) -> list[Path]:
        """The paths of a function that branches on values of tensors, newest first."""
        return [s.path for s in self._all if s.path is not None]

    def clear(self) -> None:
        """Drop all specializations."""
        hits = self.hits
        self.__init__(symbolic=self._symbolic, size=self.size)  # type: ignore[misc]
        self._hits_of_dropped = hits

    def newest_first(self, refused: list[Refusal]) -> list[Refusal]:
        """Return refusals in the order of their specializations, newest first."""
        position = {id(s): i for i, s in enumerate(self._all)}
        return sorted(refused, key=lambda refusal: position.get(id(refusal.specialization), len(position)))

    def learn(self, refused: list[Refusal], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record the numbers and sizes that made guards fail, for the newest specialization with such a failure."""
        for refusal in refused:
            guarded = refusal.specialization.guarded
            if guarded is not None and refusal.is_about_numbers:
                guarded.learn(self.dynamic, args, kwargs)
                return


def _key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a cheap lookup key of arguments: shapes of tensors, values of numbers, and types of other values.

    For other subclasses of `torch.Tensor`, `x.shape` may call the user's `__torch_function__`, or not be hashable.
    """
    values = (*args, *kwargs, *kwargs.values()) if kwargs else args
    return tuple([
        x.shape if type(x) in _WITH_SHAPE else x if type(x) in _BY_VALUE else type(x) for x in values
    ])  # fmt: skip
