# SPDX-License-Identifier: Apache-2.0
"""The compile options and passes that plugins registered. `thunder.jit` reads these in addition to the executors."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from thunder.core.errors import ThunderError, mark_as_of_extension
from thunder.transforms.base import PHASES, PassContext

__all__ = ["PHASES", "Catalog", "OptionSpec", "PassContext", "TransformSpec"]


@dataclass(frozen=True)
class OptionSpec:
    """A compile option: `thunder.jit(fn, NAME=value)`."""

    name: str
    type: type | tuple[type, ...] = object
    default: Any = None
    help: str = ""
    choices: tuple[Any, ...] | None = None
    owner: str = "thunder"

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"an option's name must be a Python identifier, but it is {self.name!r}")
        if self.default is not None:
            self.check(self.default)

    def check(self, value: Any) -> Any:
        """Return `value`. Raise TypeError or ValueError if the option does not accept it."""
        if value is None and self.default is None:  # an option of any type may be unset
            return value
        types = self.type if isinstance(self.type, tuple) else (self.type,)
        accepted = (*types, int) if float in types else types
        # A bool is an int in Python, but a bool in place of a number is a mistake.
        if not isinstance(value, accepted) or (isinstance(value, bool) and not {bool, object} & set(types)):
            names = " or ".join(kind.__name__ for kind in types)
            raise TypeError(f"option {self.name!r} of {self.owner} must be {names}, but it is {value!r}")
        if self.choices is not None and value not in self.choices:
            raise ValueError(f"option {self.name!r} of {self.owner} must be one of {self.choices}, but it is {value!r}")
        return value


@dataclass(frozen=True)
class TransformSpec:
    """A pass over traces that runs in `phase`, `before` and `after` the named passes of that phase, if present.

    A pass of an `executor` runs only in programs that use this executor.
    """

    name: str
    transform: Callable[[Any, PassContext], Any]
    phase: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    owner: str = "thunder"
    executor: str | None = None

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            raise ValueError(
                f"transform {self.name!r} has an unknown phase {self.phase!r}; the phases are {', '.join(PHASES)}"
            )
        if not callable(self.transform):
            raise TypeError(f"transform {self.name!r} must be callable, but it is {self.transform!r}")

    def apply(self, trace: Any, context: PassContext) -> Any:
        """Run the pass on `trace`. If it raises, the error names the plugin, not the user's program or thunder."""
        if self.executor is not None and all(ex.name != self.executor for ex in context.executors):
            return trace
        try:
            result = self.transform(trace, context)
        except ThunderError as error:  # the error already has a message for the user
            mark_as_of_extension(error)
            raise
        except Exception as error:
            failed = ThunderError(
                f"the pass {self.name!r} of {self.owner} failed: {type(error).__name__}: {error}. "
                "The plugin causes this error, not your program. THUNDER_DISABLE_PLUGINS disables the plugin"
            )
            mark_as_of_extension(failed)
            raise failed from error
        if result is None:
            failed = ThunderError(f"the pass {self.name!r} of {self.owner} returned no trace")
            mark_as_of_extension(failed)
            raise failed
        return result


class Catalog:
    """Options and passes in use, by name. Names are unique: a conflict raises an error that names both owners."""

    def __init__(self) -> None:
        self._options: dict[str, OptionSpec] = {}
        self._transforms: dict[str, TransformSpec] = {}
        self._lock = threading.Lock()

    def add(self, options: Iterable[OptionSpec], transforms: Iterable[TransformSpec]) -> None:
        """Add all options and passes. Add none if a name is taken or if the passes cannot be ordered."""
        with self._lock:
            new_options, new_transforms = dict(self._options), dict(self._transforms)
            for option in options:
                _add_unique(new_options, option, "option")
            for transform in transforms:
                _add_unique(new_transforms, transform, "transform")
            for phase in PHASES:
                _ordered(new_transforms, phase)
            self._options, self._transforms = new_options, new_transforms

    def remove(self, owner: str) -> None:
        """Remove the options and passes of one owner."""
        with self._lock:
            self._options = {name: spec for name, spec in self._options.items() if spec.owner != owner}
            self._transforms = {name: spec for name, spec in self._transforms.items() if spec.owner != owner}

    def options(self) -> dict[str, OptionSpec]:
        """Return the options in use, by name."""
        return dict(self._options)

    def transforms(self, phase: str) -> tuple[TransformSpec, ...]:
        """Return the passes of `phase` in execution order."""
        if phase not in PHASES:
            raise ValueError(f"{phase!r} is not a phase of compilation; the phases are {', '.join(PHASES)}")
        return _ordered(self._transforms, phase)

    def check_options(self, values: Mapping[str, Any], others: Iterable[str] = ()) -> dict[str, Any]:
        """Validate the values and return them. `others` are further valid option names, for the message."""
        checked = {}
        for name, value in values.items():
            if name not in self._options:
                raise TypeError(_unknown_option(name, {*self._options, *others}))
            checked[name] = self._options[name].check(value)
        return checked


def _add_unique(table: dict[str, Any], spec: OptionSpec | TransformSpec, kind: str) -> None:
    taken = table.get(spec.name)
    if taken is not None:
        raise ValueError(f"{kind} {spec.name!r} of {spec.owner} is already registered by {taken.owner}")
    table[spec.name] = spec


def _unknown_option(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f", did you mean {close[0]!r}?" if close else ""
    return f"unknown compile option {name!r}{hint or '.'} The options are: {', '.join(sorted(known)) or 'none'}"


def _ordered(transforms: Mapping[str, TransformSpec], phase: str) -> tuple[TransformSpec, ...]:
    """Sort passes topologically.

    Passes without an order are sorted by name, so the result is the same in every process.
    """
    mine = {name: spec for name, spec in transforms.items() if spec.phase == phase}
    earlier: dict[str, set[str]] = {
        name: {other for other in spec.after if other in mine} for name, spec in mine.items()
    }
    for name, spec in mine.items():
        for other in spec.before:
            if other in mine:
                earlier[other].add(name)
    order: list[TransformSpec] = []
    while earlier:
        free = min((name for name, waits_for in earlier.items() if not waits_for), default=None)
        if free is None:
            owners = ", ".join(f"{name!r} of {mine[name].owner}" for name in sorted(earlier))
            raise ValueError(f"the transforms {owners} cannot be ordered: their before= and after= form a cycle")
        order.append(mine[free])
        del earlier[free]
        for waits_for in earlier.values():
            waits_for.discard(free)
    return tuple(order)
